"""Fast ways to run a bridged ensemble in torch: compiled blocks, parallel members, one CUDA graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from modebridge.bridges import Heads
from modebridge.deploy.elastic_answer import Place, heads_of
from modebridge.deploy.fold import fold
from modebridge.deploy.one_module import BasePart, OneModule
from modebridge.ensembles import Ensemble, average, probabilities_of, scale
from modebridge.errors import ModebridgeError, plural
from modebridge.nets import check_tap, frozen_copy, without_side_effects
from modebridge.nets.cuda_graph import CudaGraph

__all__ = ["Branches", "Vmapped", "capture", "compile_regions"]

REGIONS = 512
"""How many shapes of regions one process may compile: more than members times batch sizes in any benchmark."""


class Branches:
    """Runs an ensemble member by member; on a GPU, each member has its own stream.

    A bridge waits only for the features that it reads, so it runs in parallel with the rest of its base; its heads run
    on its stream. On a CPU, and outside of a CUDA graph, members run one after another.

    Args:
        ensemble: modes and bridges; copied.
        device: device to run on.
        dtype: data type of weights and images; probabilities are averaged in at least float32.
        compiled: compile regions, see `compile_regions`.
        splits: additional taps to split regions at, so that ensembles with and without bridges are split alike.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        compiled: bool = False,
        splits: Sequence[str] = (),
    ) -> None:
        self.device = torch.device(device)
        module = OneModule(ensemble).to(self.device)
        self._module = module
        self._events: dict[Place, Any] = {}
        cuts = sorted({*splits, *(tap for taps in module.taps for tap in taps)})
        for k, base in enumerate(module.bases):
            assert isinstance(base, BasePart)
            _placed(base.net, dtype)
            for tap in module.taps[k]:
                check_tap(base.net, tap).register_forward_hook(partial(self._mark, (k, tap)))
            if compiled:
                compile_regions(base.net, cuts)
        for runner in module.runners:
            _placed(runner, dtype)
            if compiled:
                # A trunk with heads is split like one without.
                compile_regions(runner.body if isinstance(runner, Heads) else runner, ())
        self._streams = [
            torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
            for _ in range(len(module.bases) + len(module.runners))
        ]

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """The probabilities (B, K) of images (B, ...), which must have this object's device and data type."""
        module = self._module
        logits: list[Tensor] = []
        features: dict[Place, Tensor] = {}
        main = torch.cuda.current_stream(self.device) if self._capturing else None
        for k, base in enumerate(module.bases):
            out, *at_taps = self._on(self._streams[k], main, None, base, (images,))
            logits.append(out)
            features.update({(k, tap): feature for tap, feature in zip(module.taps[k], at_taps, strict=True)})
        for (j,), runner, stream in zip(module.units, module.runners, self._streams[len(module.bases) :], strict=True):
            inputs = [features[place] for place in module.reads[j]]
            logits += heads_of(
                self._on(stream, main, module.reads[j], partial(without_side_effects, runner, runner), inputs)
            )
        if main is not None:
            for stream in self._streams:
                main.wait_stream(stream)  # type: ignore[arg-type]
        # `features` must live until here: before the streams are joined, memory must not move between them.
        probabilities = average(probabilities_of(torch.stack(logits)), module.mean)
        return scale(probabilities, module.temperatures.by_bridges[-1])

    @property
    def _capturing(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _on(
        self, stream: Any, main: Any, after: Sequence[Place] | None, work: Callable[..., Any], inputs: Sequence[Tensor]
    ) -> Any:
        """Run on a stream after some taps (None: after the main stream); directly if there are no streams."""
        if main is None:
            return work(*inputs)
        if after is None:
            stream.wait_stream(main)
        for place in after or ():
            stream.wait_event(self._events[place])
        with torch.cuda.stream(stream):
            return work(*inputs)

    def _mark(self, place: Place, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if self._capturing:
            self._events[place] = torch.cuda.current_stream(self.device).record_event()


class Vmapped:
    """A deep ensemble as one network with stacked weights (`torch.func.vmap`).

    Args:
        ensemble: an ensemble without bridges; copied.
        device: device to run on.
        dtype: data type of weights and images.
        compiled: compile the whole.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        compiled: bool = False,
    ) -> None:
        if len(ensemble.bridges):
            raise ModebridgeError(
                f"Expected no bridges to stack modes, but got {plural(len(ensemble.bridges), 'bridge')}; use Branches."
            )
        # Not channels last: vmap has no rule for pooling in that format and falls back to a loop.
        plain = torch.contiguous_format
        bases = [fold(frozen_copy(base)).to(device, dtype, memory_format=plain) for base in ensemble.bases]  # type: ignore[call-overload]
        params, buffers = stack_module_state(bases)
        state = {**{name: tensor.detach() for name, tensor in params.items()}, **buffers}
        bare, mean, temperature = bases[0], ensemble.mean, ensemble.temperature.to(device)

        def one(state: dict[str, Tensor], images: Tensor) -> Tensor:
            return functional_call(bare, (state,), (images,))  # type: ignore[no-any-return]

        def stacked(state: dict[str, Tensor], images: Tensor) -> Tensor:
            logits = torch.vmap(one, in_dims=(0, None))(state, images)
            return scale(average(probabilities_of(logits), mean), temperature)

        self._state = state
        self._bare = bare
        # functional_call puts the weights into the module during a pass.
        self._lock = threading.Lock()
        self._run: Any = torch.compile(stacked, dynamic=False) if compiled else stacked

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The probabilities (B, K) of images (B, ...), which must have this object's device and data type."""
        with self._lock:
            return without_side_effects(self._bare, lambda given: self._run(self._state, given), images)  # type: ignore[no-any-return]


def compile_regions(net: nn.Module, splits: Sequence[str], backend: str = "inductor") -> list[str]:
    """Compile, in place, the largest submodules that contain no split; hooks stay outside of them.

    Regions of one class and shape share their code, so all members of all ensembles compile in the time of a few
    blocks; whole networks would take minutes each.

    Args:
        net: network to change in place.
        splits: names of submodules whose output must be readable between two regions.
        backend: backend of `torch.compile`.

    Returns:
        The names of the regions.
    """
    # All shapes of a class share one counter of recompilations, whose default limit is too low for this.
    for limit in ("recompile_limit", "accumulated_recompile_limit"):
        setattr(torch._dynamo.config, limit, max(getattr(torch._dynamo.config, limit), REGIONS))

    def walk(module: nn.Module, name: str) -> None:
        inside = any(split.startswith(f"{name}." if name else "") and split != name for split in splits)
        children = list(module.named_children())
        if (inside or not name) and children:
            for child, part in children:
                walk(part, f"{name}.{child}" if name else child)
        elif any(True for _ in module.parameters()):
            module.forward = torch.compile(module.forward, dynamic=False, backend=backend)
            regions.append(name)

    regions: list[str] = []
    walk(net, "")
    return regions


def capture(function: Callable[[Tensor], Tensor], images: Tensor) -> Callable[[Tensor], Tensor]:
    """Capture a function in a CUDA graph for images of this shape: one launch per call.

    The next call overwrites the memory of the output.

    Args:
        function: function of images; its weights must not move in memory.
        images: images on the GPU.
    """
    static = images.clone()
    graph = CudaGraph(lambda: function(static), [static], images.device)
    return lambda fresh: graph([fresh])


def _placed(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    # Channels last throughout: a bridge in another format than its base would make the backend convert every map.
    return module.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
