"""Members of ensembles by name: modes, points of curves, bridges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from modebridge.errors import ModebridgeError
from modebridge.recipes.config import Recipe

__all__ = ["Member", "bridge", "members_of", "mode", "point"]

_FORM = re.compile(r"(mode|curve|II|I|labels)-(\d+)(?:-(\d+))?(?:-([a-z]+[\d.]*))?(?:@([\d.]+))?")


@dataclass(frozen=True)
class Member:
    """One member, before anything of it is trained.

    Args:
        kind: "mode"; "curve" for the network at r on a curve; a bridge of type "I" or "II"; "labels" for the control.
        i: the mode, the one that a type I bridge reads, or the first end.
        j: the other end.
        size: of a bridge: "small", "medium", "slim8".
        r: the position on the curve between the lower and the higher number, whichever end is read.
    """

    kind: Literal["mode", "curve", "I", "II", "labels"]
    i: int
    j: int = -1
    size: str = ""
    r: float = 0.5

    @property
    def name(self) -> str:
        """How files and tables call it.

        >>> Member("I", 0, 1, "small").name, Member("curve", 0, 1, r=0.3).name, Member("mode", 2).name
        ('I-0-1-small', 'curve-0-1@0.3', 'mode-2')
        """
        parts = [self.kind, str(self.i)] + ([str(self.j)] if self.j >= 0 else []) + ([self.size] if self.size else [])
        return "-".join(parts) + ("" if self.r == 0.5 else f"@{self.r:g}")

    @classmethod
    def parse(cls, name: str) -> Member:
        """The member called `name`.

        >>> Member.parse("II-0-2-small@0.3")
        Member(kind='II', i=0, j=2, size='small', r=0.3)
        """
        found = _FORM.fullmatch(name)
        if found is None:
            raise ModebridgeError(f"Expected a member such as mode-0 or I-0-1-small, but got '{name}'; check the name.")
        kind, i, j, size, r = found.groups()
        return cls(kind, int(i), int(j) if j else -1, size or "", float(r) if r else 0.5)  # type: ignore[arg-type]

    @property
    def pair(self) -> tuple[int, int]:
        """The ends of its curve, the lower number first."""
        return min(self.i, self.j), max(self.i, self.j)

    @property
    def reads(self) -> tuple[int, ...]:
        """The modes whose features it takes."""
        return {"I": (self.i,), "labels": (self.i,), "II": self.pair}.get(self.kind, ())

    @property
    def parents(self) -> tuple[int, ...]:
        """The modes that it is made from; the control sees no curve, so its other end is but a name.

        >>> Member("I", 0, 1, "small").parents, Member("labels", 0, 1, "small").parents
        ((0, 1), (0,))
        """
        return {"mode": (), "labels": (self.i,)}.get(self.kind, self.pair)

    @property
    def is_bridge(self) -> bool:
        """Whether it is one of the small networks."""
        return self.kind in ("I", "II", "labels")


def mode(k: int) -> Member:
    """Mode k."""
    return Member("mode", k)


def point(i: int, j: int, r: float = 0.5) -> Member:
    """The network at r on the curve between two modes, r counted from the lower number."""
    return Member("curve", min(i, j), max(i, j), r=r)


def bridge(kind: Literal["I", "II", "labels"], i: int, j: int, size: str = "small", r: float = 0.5) -> Member:
    """A bridge; of type I it reads mode i."""
    i, j = (min(i, j), max(i, j)) if kind == "II" else (i, j)
    return Member(kind, i, j, size, r)


def members_of(recipe: Recipe) -> list[Member]:
    """Everything that a plain run of a recipe trains and scores."""
    pairs = recipe.curves()
    found = [mode(k) for k in range(recipe.modes)] + [point(i, j) for i, j in pairs]
    for size in recipe.sizes:
        for i, j in pairs:
            found.append(bridge("I", i, j, size))
            if recipe.pairs != "first":
                found.append(bridge("I", j, i, size))
        found += [bridge("II", i, j, size) for i, j in (pairs if recipe.type2 == "all" else pairs[:1])]
        if recipe.control:
            found.append(bridge("labels", *pairs[0], size))
    return found
