"""A place in a checkpoint where a network's names were found, and the error for a checkpoint that fits nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from modebridge.errors import near, some
from modebridge.nets.quirks import unusual
from modebridge.types import Params

__all__ = ["Place", "difference", "join"]


@dataclass
class Place:
    """A place in a checkpoint below which names of the network were found.

    Args:
        container: the path to the flat dict of tensors, as dotted keys.
        head: the prefix of all names in it.
        averaged: whether it looks like EMA or SWA weights.
        tensors: the tensors found, by the network's own names.
        extra: names below it that the network does not have.
    """

    container: str
    head: str
    averaged: bool
    tensors: dict[str, Tensor] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The path to this place."""
        return join(self.container, self.head)

    def missing(self, wanted: Params) -> list[str]:
        """The network's names that are missing here."""
        return [name for name in wanted if name not in self.tensors]

    def misshapen(self, wanted: Params) -> list[str]:
        """The names whose tensors have a different shape here."""
        return [
            name for name, tensor in self.tensors.items() if not unusual(tensor) and tensor.shape != wanted[name].shape
        ]

    def unusual(self) -> list[str]:
        """The names whose tensors are not plain dense tensors."""
        return [name for name, tensor in self.tensors.items() if unusual(tensor)]

    def fits(self, wanted: Params) -> bool:
        """Whether it holds the network and nothing else."""
        return not self.extra and not self.missing(wanted) and not self.unusual() and not self.misshapen(wanted)


def difference(places: Sequence[Place], wanted: Params, containers: Mapping[str, Params], net: str, what: str) -> str:
    """The error message for a checkpoint that fits nowhere, about the closest place."""
    if not places:
        all_names = [join(path, name) for path, tensors in containers.items() for name in tensors]
        got = f"got {some(all_names)}" if all_names else "it holds no tensor"
        return f"Expected {what} to hold the weights of {net}, {some(list(wanted))}, but {got}; check the architecture."
    best = max(places, key=lambda place: (len(place.tensors), -len(place.path)))
    missing, shapes, odd = best.missing(wanted), best.misshapen(wanted), best.unusual()
    start = f"Expected {what} to fit {net}" + (f" below '{best.path}'" if best.path else "")
    if missing or best.extra:
        parts = [f"{some(missing)} missing"] if missing else []
        if missing and best.extra:
            parts[0] += f" ({near(missing[0], best.extra, 3).rstrip('.')})"
        parts += [f"{some(best.extra)} extra"] if best.extra else []
        fix = "" if missing or shapes else ", or leave them out by name with ignore="
        return f"{start}, but got {' and '.join(parts)}; use a network of the file's architecture{fix}."
    if odd:
        return f"{start}, but '{odd[0]}' is {unusual(best.tensors[odd[0]])}; save plain dense tensors of numbers."
    name = shapes[0]
    first = f"'{name}' is {tuple(best.tensors[name].shape)} in the file and {tuple(wanted[name].shape)} in the network"
    sizes = {(tuple(best.tensors[name].shape)[:1], tuple(wanted[name].shape)[:1]) for name in shapes}
    if len(sizes) == 1 and all(best.tensors[name].shape[1:] == wanted[name].shape[1:] for name in shapes):
        in_file, in_net = (size[0] if size else 0 for size in next(iter(sizes)))
        fix = f"build the network with {in_file} classes, or use a file with {in_net}"
        return f"{start}, but {first}: the number of classes differs; {fix}."
    more = f" (and {len(shapes) - 1} more differ)" if len(shapes) > 1 else ""
    return f"{start}, but {first}{more}; use a network of the file's architecture."


def join(*parts: str) -> str:
    """Join keys into one dotted path."""
    return ".".join(part for part in parts if part)
