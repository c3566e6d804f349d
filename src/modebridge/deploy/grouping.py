"""Several bridges of one architecture at one tap run as one: every layer once, for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from modebridge.nets import skeleton

__all__ = ["Grouped", "units"]

Reads: TypeAlias = Sequence[tuple[int, str]]


class Grouped(nn.Module):
    """Bodies that differ only in their weights, vectorised: convolutions become grouped, products batched.

    Args:
        bodies: at least two modules of one architecture that read one feature map.
    """

    def __init__(self, bodies: Sequence[nn.Module]) -> None:
        super().__init__()
        params, buffers = stack_module_state(list(bodies))
        self._names = {name: name.replace(".", "/") for name in (*params, *buffers)}
        for name, tensor in {**params, **buffers}.items():
            self.register_buffer(self._names[name], tensor.detach())
        # In a list, so that its placeholder weights do not count as this module's own.
        self._bare = [skeleton(bodies[0]).to("meta")]
        self.count = len(bodies)

    def forward(self, feature: Tensor) -> Tensor:
        """Logits (J, B, K) of all bodies."""
        state = {name: getattr(self, own) for name, own in self._names.items()}

        def one(weights: dict[str, Tensor]) -> Tensor:
            return functional_call(self._bare[0], (weights,), (feature,))  # type: ignore[no-any-return]

        return vmap(one)(state)


def units(bodies: Sequence[nn.Module], reads: Sequence[Reads]) -> list[tuple[int, ...]]:
    """The numbers of the bridges that can run as one, and of the others alone; only type I bridges go together.

    Args:
        bodies: one a bridge.
        reads: (base, tap) of every feature that each of them takes.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    for j, (body, places) in enumerate(zip(bodies, reads, strict=True)):
        shapes = tuple((name, tuple(tensor.shape)) for name, tensor in body.state_dict().items())
        alone = j if len(places) > 1 else None
        found.setdefault((tuple(places), type(body), repr(body), shapes, alone), []).append(j)
    return [tuple(numbers) for numbers in found.values()]
