"""One temperature per number of bridges, so that an elastic answer is calibrated however many members run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from modebridge.ensembles import Mean, average, fit_temperature
from modebridge.errors import ModebridgeError, plural

__all__ = ["Temperatures", "fit_temperatures"]


@dataclass(frozen=True)
class Temperatures:
    """The temperatures that divide the log of the mean probability.

    Args:
        first: temperature of the first base alone, used for confident images.
        by_bridges: temperatures of all bases with 0, 1, ... bridges.
        heads: number of heads of each bridge, each of which is a member; () if every bridge has one.
    """

    first: float
    by_bridges: tuple[float, ...]
    heads: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if all(count == 1 for count in self.heads):  # one representation, so that equal objects compare equal
            object.__setattr__(self, "heads", ())

    @classmethod
    def same(cls, temperature: float, bridges: int, heads: Sequence[int] = ()) -> Temperatures:
        """The same temperature for every number of bridges."""
        return cls(temperature, (temperature,) * (bridges + 1), tuple(heads))

    def members(self, bridges: int) -> int:
        """The number of members in the first `bridges` bridges.

        >>> Temperatures.same(1.0, 2).members(2), Temperatures.same(1.0, 2, (3, 1)).members(2)
        (2, 4)
        """
        return sum(self.heads[:bridges]) if self.heads else bridges

    def of_members(self, count: int) -> float:
        """The temperature of all bases and the bridges that have `count` members together.

        >>> Temperatures(1.0, (1.1, 1.2, 1.3), (3, 1)).of_members(3)
        1.2
        """
        known = [self.members(bridges) for bridges in range(len(self.by_bridges))]
        if count not in known:
            raise ModebridgeError(
                f"Expected the number of members besides the bases to be one of {known}, but got {count}; pass the "
                "temperatures fitted for these members."
            )
        return self.by_bridges[known.index(count)]

    def check(self, bridges: int) -> None:
        """Refuse the wrong number of temperatures or heads, and temperatures that are not positive."""
        if len(self.by_bridges) != bridges + 1:
            raise ModebridgeError(
                f"Expected a temperature for each of 0 to {bridges} bridges, but got {len(self.by_bridges)}; "
                "fit them with fit_temperatures."
            )
        if self.heads and (len(self.heads) != bridges or min(self.heads) < 1):
            raise ModebridgeError(
                f"Expected one number of heads per bridge, for {plural(bridges, 'bridge')}, but got {self.heads}; "
                "leave it out if each has one."
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
        members: (M, N, K) probabilities on held-out data: the bases, then every head of the bridges in order.
        labels: (N,).
        bases: number of bases among the members.
        mean: how members are averaged.
        heads: number of heads of each bridge; None if each has one.
    """
    if not 1 <= bases <= len(members):
        raise ModebridgeError(
            f"Expected bases to be from 1 to {len(members)}, the number of members, but got {bases}; bases come first."
        )
    counts = [1] * (len(members) - bases) if heads is None else list(heads)
    if bases + sum(counts) != len(members) or min(counts, default=1) < 1:
        raise ModebridgeError(
            f"Expected heads to add up to the {plural(len(members) - bases, 'member')} after the bases, but got "
            f"{counts}; give one number per bridge."
        )
    ends = accumulate(counts, initial=bases)
    fitted = tuple(fit_temperature(average(members[:end], mean), labels) for end in ends)
    return Temperatures(fit_temperature(members[0], labels), fitted, tuple(counts))
