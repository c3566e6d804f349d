"""A bridged ensemble as torch runs it fastest: blocks compiled, members side by side, the whole as one CUDA graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from modebridge.bridges import Bridge
from modebridge.ensembles import BridgedEnsemble
from modebridge.ensembles.temperature import scale
from modebridge.errors import ModebridgeError
from modebridge.nets import check_tap

__all__ = ["Branches", "Stacked", "capture", "compile_regions"]

REGIONS = 512
"""How many shapes of regions one process may compile: more than members times batch sizes of any benchmark."""


class Branches:
    """Runs an ensemble member by member; on a GPU each member has a stream of its own.

    A bridge waits for the feature that it reads and for nothing else, so that it runs beside the rest of its base. On a
    CPU, and outside of a CUDA graph, members run one after another. Not safe for several threads at a time.

    Args:
        ensemble: it is copied.
        device: where to run.
        dtype: of weights and images; the mean of the probabilities is made in float32.
        compiled: whether regions are compiled, see `compile_regions`.
        splits: further taps to split regions at, so that ensembles with and without bridges are cut alike.
    """

    def __init__(
        self,
        ensemble: BridgedEnsemble,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        compiled: bool = False,
        splits: Sequence[str] = (),
    ) -> None:
        self.device = torch.device(device)
        own = copy.deepcopy(ensemble).to(self.device)
        self.temperature = own.temperature
        self.bases = [_placed(base, dtype) for base in own.bases]
        self.bridges = [_placed(bridge, dtype) for bridge in own.bridges]
        self._reads = [tuple(reads) for reads in own._reads]
        self._taps = [bridge.tap for bridge in own.bridges if isinstance(bridge, Bridge)]
        self._features: dict[tuple[int, str], tuple[Tensor, Any]] = {}
        cuts = sorted({*splits, *self._taps})
        for k, base in enumerate(self.bases):
            for tap in {tap for tap, reads in zip(self._taps, self._reads, strict=True) if k in reads}:
                check_tap(base, tap).register_forward_hook(self._reader(k, tap))
            if compiled:
                compile_regions(base, cuts)
        if compiled:
            for bridge in self.bridges:
                compile_regions(bridge, ())
        self._streams = [
            torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
            for _ in range(len(self.bases) + len(self.bridges))
        ]

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """The probabilities (B, K) of images (B, ...) on our device and of our type."""
        logits: list[Tensor] = []
        parallel = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        main = torch.cuda.current_stream(self.device) if parallel else None
        for k, base in enumerate(self.bases):
            logits.append(self._on(self._streams[k], main, None, base, (images,)))
        for j, (bridge, tap, reads) in enumerate(zip(self.bridges, self._taps, self._reads, strict=True)):
            features = [self._features[k, tap] for k in reads]
            stream, events = self._streams[len(self.bases) + j], [event for _, event in features]
            logits.append(self._on(stream, main, events, bridge, [feature for feature, _ in features]))
        if main is not None:
            for stream in self._streams:
                main.wait_stream(stream)  # type: ignore[arg-type]
        # Only now: until the streams have met, memory of one must not be given to another.
        self._features.clear()
        return scale(torch.stack(logits).float().softmax(dim=-1).mean(dim=0), self.temperature)

    def _on(
        self, stream: Any, main: Any, events: Sequence[Any] | None, work: nn.Module, inputs: Sequence[Tensor]
    ) -> Tensor:
        """Run on a stream after some events (None: after the main stream); at once where there are no streams."""
        if main is None:
            return work(*inputs)  # type: ignore[no-any-return]
        if events is None:
            stream.wait_stream(main)
        for event in events or ():
            stream.wait_event(event)
        with torch.cuda.stream(stream):
            return work(*inputs)  # type: ignore[no-any-return]

    def _reader(self, k: int, tap: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def read(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            event = None
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                event = torch.cuda.current_stream(self.device).record_event()
            self._features[k, tap] = (output, event)

        return read


class Stacked:
    """A deep ensemble as one network with stacked weights (`torch.func.vmap`).

    Args:
        ensemble: without bridges; it is copied.
        device: where to run.
        dtype: of weights and images.
        compiled: whether the whole is compiled.
    """

    def __init__(
        self,
        ensemble: BridgedEnsemble,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        compiled: bool = False,
    ) -> None:
        if len(ensemble.bridges):
            raise ModebridgeError(
                f"Expected modes alone to be stacked, but got {len(ensemble.bridges)} bridges; use Branches."
            )
        own = copy.deepcopy(ensemble).to(device)
        # Not channels last: vmap has no rule for pooling in that order, and falls back to a loop.
        bases = [base.to(dtype=dtype, memory_format=torch.contiguous_format) for base in own.bases]
        params, buffers = stack_module_state(bases)
        state = {**{name: tensor.detach() for name, tensor in params.items()}, **buffers}
        bare, temperature = bases[0], own.temperature

        def one(state: dict[str, Tensor], images: Tensor) -> Tensor:
            return functional_call(bare, (state,), (images,))  # type: ignore[no-any-return]

        def all_of_them(state: dict[str, Tensor], images: Tensor) -> Tensor:
            logits = torch.vmap(one, in_dims=(0, None))(state, images)
            return scale(logits.float().softmax(dim=-1).mean(dim=0), temperature)

        self._state = state
        self._run: Any = torch.compile(all_of_them, dynamic=False) if compiled else all_of_them

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The probabilities (B, K) of images (B, ...) on our device and of our type."""
        return self._run(self._state, images)  # type: ignore[no-any-return]


def compile_regions(net: nn.Module, splits: Sequence[str]) -> None:
    """Compile, in place, the largest submodules of which none holds a split inside; hooks stay outside of them.

    Regions of one class and shape share their code, so that all members of all ensembles are compiled in the time of a
    few blocks, where whole networks took minutes each.

    Args:
        net: changed in place.
        splits: names of submodules whose output must be readable between two regions.
    """
    # Shapes of one class share a counter, whose limit is meant for mistakes.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, REGIONS)

    def walk(module: nn.Module, name: str) -> None:
        inside = any(split.startswith(f"{name}." if name else "") and split != name for split in splits)
        children = list(module.named_children())
        if (inside or not name) and children:
            for child, part in children:
                walk(part, f"{name}.{child}" if name else child)
        elif any(True for _ in module.parameters()):
            module.forward = torch.compile(module.forward, dynamic=False)  # type: ignore[method-assign]

    walk(net, "")


def capture(function: Callable[[Tensor], Tensor], images: Tensor) -> Callable[[Tensor], Tensor]:
    """The function as a CUDA graph for images of this shape: one launch a call.

    The answer lies in memory that the next call writes over.

    Args:
        function: of images alone; its weights must stay where they are.
        images: on the GPU.
    """
    static = images.clone()
    side = torch.cuda.Stream(images.device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(images.device))
    with torch.cuda.stream(side):
        for _ in range(3):  # compilation, and cuDNN's choice of algorithms, cannot be captured
            function(static)
    torch.cuda.current_stream(images.device).wait_stream(side)
    torch.cuda.synchronize(images.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = function(static)

    def replay(fresh: Tensor) -> Tensor:
        static.copy_(fresh)
        graph.replay()
        return answer

    return replay


def _placed(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    # Channels last throughout: a bridge in another order than its base makes the backend turn every map around.
    return module.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
