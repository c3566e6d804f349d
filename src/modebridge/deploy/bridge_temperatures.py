"""A temperature for every number of bridges, so that an elastic answer is calibrated however short it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from modebridge.ensembles import Mean, average, fit_temperature
from modebridge.errors import ModebridgeError

__all__ = ["Temperatures", "fit_temperatures"]


@dataclass(frozen=True)
class Temperatures:
    """What the log of an averaged probability is divided by.

    Args:
        first: of the first base alone, which answers for the images that it is sure of.
        by_bridges: of all bases and 0, 1, ... bridges.
        heads: of every bridge, each of which is a member; () where every bridge has one.
    """

    first: float
    by_bridges: tuple[float, ...]
    heads: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if all(count == 1 for count in self.heads):  # one way to say it, so that equal tables are equal
            object.__setattr__(self, "heads", ())

    @classmethod
    def same(cls, temperature: float, bridges: int, heads: Sequence[int] = ()) -> Temperatures:
        """One temperature for all, where there is no data to fit more."""
        return cls(temperature, (temperature,) * (bridges + 1), tuple(heads))

    def members(self, bridges: int) -> int:
        """How many members the first so many bridges are.

        >>> Temperatures.same(1.0, 2).members(2), Temperatures.same(1.0, 2, (3, 1)).members(2)
        (2, 4)
        """
        return sum(self.heads[:bridges]) if self.heads else bridges

    def of_members(self, count: int) -> float:
        """The temperature of all bases and the bridges that are so many members.

        >>> Temperatures(1.0, (1.1, 1.2, 1.3), (3, 1)).of_members(3)
        1.2
        """
        for bridges, temperature in enumerate(self.by_bridges):
            if self.members(bridges) == count:
                return temperature
        wanted = [self.members(bridges) for bridges in range(len(self.by_bridges))]
        raise ModebridgeError(
            f"Expected the members beside the bases to be those of whole bridges, {wanted}, but got {count}; give the "
            "temperatures of these members."
        )

    def check(self, bridges: int) -> None:
        """Refuse a table of another length, and temperatures that are none."""
        if len(self.by_bridges) != bridges + 1:
            raise ModebridgeError(
                f"Expected a temperature for each of 0 to {bridges} bridges, but got {len(self.by_bridges)}; "
                "fit them with fit_temperatures."
            )
        if self.heads and (len(self.heads) != bridges or min(self.heads) < 1):
            raise ModebridgeError(
                f"Expected a number of heads for each of {bridges} bridges, but got {self.heads}; leave it out for one "
                "each."
            )
        if not all(0 < temperature < float("inf") for temperature in (self.first, *self.by_bridges)):
            raise ModebridgeError(
                f"Expected temperatures to be positive, but got {(self.first, *self.by_bridges)}; fit them again."
            )


def fit_temperatures(
    members: Sequence[Tensor] | Tensor,
    labels: Tensor,
    bases: int,
    mean: Mean = "probability",
    heads: Sequence[int] | None = None,
) -> Temperatures:
    """Fit one temperature for the first base and one for each number of bridges.

    Args:
        members: (M, N, K) probabilities of held-out data, the bases first, then every head of the bridges in order.
        labels: (N,).
        bases: how many of the members are bases.
        mean: how members become one.
        heads: of every bridge; None where each has one.
    """
    if not 1 <= bases <= len(members):
        raise ModebridgeError(
            f"Expected between 1 and {len(members)} bases among the members, but got {bases}; bases come first."
        )
    counts = [1] * (len(members) - bases) if heads is None else list(heads)
    if bases + sum(counts) != len(members) or min(counts, default=1) < 1:
        raise ModebridgeError(
            f"Expected heads to be those of the {len(members) - bases} members after the bases, but got {counts}; "
            "count them by bridge."
        )
    ends = accumulate(counts, initial=bases)
    fitted = tuple(fit_temperature(average(members[:end], mean), labels) for end in ends)
    return Temperatures(fit_temperature(members[0], labels), fitted, tuple(counts))
