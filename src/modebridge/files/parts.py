"""A stored object in parts: plain data, and tensors by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from modebridge.errors import ModebridgeError, plural
from modebridge.types import Params

__all__ = ["Given", "Parts", "prefixed"]

MOST = 10_000


@dataclass(frozen=True)
class Parts:
    """A stored object.

    Args:
        kind: name of its class in files, such as "mode".
        config: everything that is not a tensor, in types of JSON.
        tensors: tensors by name.
    """

    kind: str
    config: Mapping[str, Any]
    tensors: Params

    def below(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names start with "PREFIX.", without the prefix and in order.

        >>> Parts("mode", {}, {"params.w": Tensor(), "buffers.n": Tensor()}).below("params")
        {'w': tensor([])}
        """
        start = f"{prefix}."
        return {name[len(start) :]: tensor for name, tensor in self.tensors.items() if name.startswith(start)}

    def check_all_used(self, *prefixes: str) -> None:
        """Raise an error if there are tensors that neither are named like a prefix nor start with "PREFIX."."""
        starts = tuple(f"{prefix}." for prefix in prefixes)
        left = [name for name in self.tensors if name not in prefixes and not name.startswith(starts)]
        if left:
            raise ValueError(f"{plural(len(left), 'tensor')} of parts that it does not have, such as {left[0][:80]}")

    def count(self, name: str) -> int:
        """A count in `config`, limited so that a small file cannot request millions of parts."""
        value = self.config[name]
        if not isinstance(value, int) or not 0 <= value <= MOST:
            raise ValueError(f"{str(value)[:80]} {name}")
        return value

    def part(self, kind: str, prefix: str, config: Mapping[str, Any]) -> Parts:
        """An object inside this one."""
        return Parts(kind, config, self.below(prefix))


@dataclass
class Given:
    """Modules that the user passes when loading, because files hold no code.

    Args:
        net: network of an ensemble.
        bodies: custom bodies of bridges, in the order of the bridges.
    """

    net: nn.Module | None = None
    bodies: list[nn.Module] = field(default_factory=list)

    @classmethod
    def checked(cls, net: object, bodies: object) -> Given:
        """What a user has passed as `net` and `bodies`."""
        if net is not None and not isinstance(net, nn.Module):
            raise ModebridgeError(
                f"Expected net to be a module, but got {_kind(net)}; pass a module of the architecture that was saved."
            )
        if isinstance(bodies, nn.Module):
            raise ModebridgeError("Expected bodies to be a list of modules, but got one module; put it in a list.")
        if not isinstance(bodies, Iterable):
            raise ModebridgeError(f"Expected bodies to be a list of modules, but got {_kind(bodies)}; pass a list.")
        modules: list[nn.Module] = []
        for body in bodies:
            if not isinstance(body, nn.Module):
                raise ModebridgeError(
                    f"Expected bodies to be a list of modules, but it has {_kind(body)}; pass one module per bridge "
                    "with a custom body."
                )
            modules.append(body)
        return cls(net, modules)

    def body(self, bridge: str, class_name: str) -> nn.Module:
        """Take the next body."""
        if not self.bodies:
            raise ModebridgeError(
                f"Expected a body for '{bridge}', because its {class_name} is a custom module of which only the "
                "weights are stored, but got none; pass bodies=[...], one module per such bridge."
            )
        return self.bodies.pop(0)


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def prefixed(prefix: str, tensors: Params) -> dict[str, Tensor]:
    """The same tensors under "PREFIX.NAME"."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
