"""The training that members need; parts shared by several members are trained once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

__all__ = ["Effort"]


@dataclass(frozen=True)
class Effort:
    """The training that members need, and its limit.

    Args:
        parts: the parts to train for each member, by name: modes, curves, bridges, students.
        epochs: training cost of each part, in epochs of one base network.
        most: maximum number of epochs in total.

    >>> effort = Effort({"a": frozenset("xy"), "b": frozenset("yz")}, {"x": 1.0, "y": 10.0, "z": 5.0}, most=12.0)
    >>> effort.of(["a"]), effort.of(["a", "b"]), effort.allows(["a"]), effort.allows(["a", "b"])
    (11.0, 16.0, True, False)
    """

    parts: Mapping[str, frozenset[str]]
    epochs: Mapping[str, float]
    most: float = inf
    _known: dict[frozenset[str], float] = field(default_factory=dict, repr=False, compare=False)

    def of(self, members: Iterable[str]) -> float:
        """The total epochs that some members need."""
        parts = frozenset().union(*(self.parts[name] for name in members))
        if parts not in self._known:
            self._known[parts] = sum(self.epochs[part] for part in sorted(parts))
        return self._known[parts]

    def allows(self, members: Iterable[str]) -> bool:
        """Whether some members are within the limit."""
        return self.most == inf or self.of(members) <= self.most + 1e-9
