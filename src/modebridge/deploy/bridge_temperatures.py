"""A temperature for every number of bridges, so that an elastic answer is calibrated however short it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    first: float
    by_bridges: tuple[float, ...]

    @classmethod
    def same(cls, temperature: float, bridges: int) -> Temperatures:
        """One temperature for all, where there is no data to fit more."""
        return cls(temperature, (temperature,) * (bridges + 1))

    def check(self, bridges: int) -> None:
        """Refuse a table of another length, and temperatures that are none."""
        if len(self.by_bridges) != bridges + 1:
            raise ModebridgeError(
                f"Expected a temperature for each of 0 to {bridges} bridges, but got {len(self.by_bridges)}; "
                "fit them with fit_temperatures."
            )
        if not all(0 < temperature < float("inf") for temperature in (self.first, *self.by_bridges)):
            raise ModebridgeError(
                f"Expected temperatures to be positive, but got {(self.first, *self.by_bridges)}; fit them again."
            )


def fit_temperatures(
    members: Sequence[Tensor] | Tensor, labels: Tensor, bases: int, mean: Mean = "probability"
) -> Temperatures:
    """Fit one temperature for the first base and one for each number of bridges.

    Args:
        members: (M, N, K) probabilities of held-out data, the bases first, then the bridges in their order.
        labels: (N,).
        bases: how many of the members are bases.
        mean: how members become one.
    """
    if not 1 <= bases <= len(members):
        raise ModebridgeError(
            f"Expected between 1 and {len(members)} bases among the members, but got {bases}; bases come first."
        )
    tables = [average(members[:count], mean) for count in range(bases, len(members) + 1)]
    return Temperatures(fit_temperature(members[0], labels), tuple(fit_temperature(table, labels) for table in tables))
