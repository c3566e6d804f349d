"""A fast way to run a bridged ensemble in torch: compiled blocks, parallel members, one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.bridges import Heads
from modebridge.deploy.module import BaseModule, EnsembleModule
from modebridge.ensembles import Ensemble, Output, average, features_of, probabilities_of, scale
from modebridge.nets import check_tap

REGIONS = 512
"""How many shapes of regions one process may compile: more than members times batch sizes in any benchmark."""


class Branches:
    """Runs an ensemble member by member; in a CUDA graph, each member has its own stream.

    A bridge waits only for the features that it reads, so it runs in parallel with the rest of its base; its heads run
    on its stream. On a CPU, and outside of a CUDA graph, members run one after another. `splits` are additional taps to
    split compiled regions at, so that ensembles with and without bridges are split alike.
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
        # Channels last throughout: a bridge in another format than its base would make the backend convert every map.
        module = EnsembleModule(ensemble).to(self.device, dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._module: EnsembleModule = module
        self._events: dict[tuple[int, str], Any] = {}
        cuts = sorted({*splits, *(tap for taps in module.taps for tap in taps)})
        for k, base in enumerate(module.bases):
            assert isinstance(base, BaseModule)
            for tap in module.taps[k]:
                check_tap(base.net, tap).register_forward_hook(partial(self._mark, (k, tap)))
            if compiled:
                compile_regions(base.net, cuts)
        for bridge, _ in module.reads if compiled else ():
            # A trunk with heads is split like one without.
            compile_regions(bridge.body.body if isinstance(bridge.body, Heads) else bridge.body, ())
        self._streams = [
            torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
            for _ in range(len(module.bases) + len(module.bridges))
        ]

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """The probabilities (B, K) of images (B, ...), which must have this object's device and data type."""
        outputs: dict[int, Output] = {}
        main = torch.cuda.current_stream(self.device) if self._capturing else None
        streams = iter(self._streams)
        for k, base in enumerate(self._module.bases):
            assert isinstance(base, BaseModule)
            outputs[k] = self._on(next(streams), main, None, base.run, [images])
        logits = [base for base, _ in outputs.values()]
        for bridge, reads in self._module.reads:
            places = [(reads[k], tap) for k, tap in bridge.places]
            logits += self._on(next(streams), main, places, bridge.head_logits, features_of(bridge, reads, outputs))
        if main is not None:
            for stream in self._streams:
                main.wait_stream(stream)  # type: ignore[arg-type]
        # `outputs` must live until here: before the streams are joined, memory must not move between them.
        return scale(average(probabilities_of(torch.stack(logits))), self._module.temperature)

    @property
    def _capturing(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _on(
        self,
        stream: Any,
        main: Any,
        after: Sequence[tuple[int, str]] | None,
        work: Callable[..., Any],
        inputs: Sequence[Tensor],
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

    def _mark(self, place: tuple[int, str], module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if self._capturing:
            self._events[place] = torch.cuda.current_stream(self.device).record_event()


def compile_regions(net: nn.Module, splits: Sequence[str], backend: str = "inductor") -> list[str]:
    """Compile, in place, the largest submodules that contain no split; hooks stay outside of them.

    Regions of one class and shape share their code, so all members of all ensembles compile in the time of a few
    blocks; whole networks would take minutes each. Returns the names of the regions.
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
