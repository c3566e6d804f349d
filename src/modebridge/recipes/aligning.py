"""The step between modes and curves: every other mode renumbered to match mode 0."""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import nn

from modebridge.alignment import By
from modebridge.evaluate import align
from modebridge.modes import Mode
from modebridge.nets import skeleton
from modebridge.recipes.folder import key_of
from modebridge.recipes.maker import Maker
from modebridge.types import Batches

__all__ = ["aligned_modes"]


def aligned_modes(
    maker: Maker, net: nn.Module, by: By, reference: Mode, modes: Mapping[int, Mode], data: Batches
) -> dict[int, Mode]:
    """Modes renumbered to match the reference, found or made now; what it brought is kept beside each.

    Args:
        maker: keeps them, as `aligned/1` and so on.
        net: the base network.
        by: "activations" or "weights".
        reference: mode 0.
        modes: the others by number.
        data: training images as they are.
    """
    device = maker.engine.device
    found: dict[int, Mode] = {}
    for number, mode in modes.items():
        key = key_of("aligned", by, reference.id, mode.id)
        tensors = maker.find("aligned", str(number), key)
        if tensors is None:
            begin = time.perf_counter()
            placed = skeleton(net).to(device)
            result = align(placed, reference.to(device), mode.to(device), maker.engine.feed(data), by=by)
            notes = {
                "seconds": time.perf_counter() - begin,
                "from": {"parents": [reference.id, mode.id], "by": by},
                "difference": result.difference,
                "quality": [result.quality_before, result.quality_after],
                "barrier": [result.barrier_before, result.barrier_after],
                "said": str(result),
            }
            maker.keep("aligned", str(number), key, result.mode.to("cpu").state, notes)
            maker.engine.processes.wait()
            maker.trained.append(f"aligned {number}")
            tensors = maker.find("aligned", str(number), key)
            assert tensors is not None
        found[number] = Mode.from_state_dict(net, tensors)
    return found
