"""A bridge: a small network that predicts another network's output from features of modes."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from torch import Tensor, nn

from modebridge import trees
from modebridge.bridges.build import Kind
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import without_side_effects

__all__ = ["Bridge"]


class Bridge(nn.Module):
    """A body and what it reads: the taps of one mode (type I) or of two (type II, in order).

    Args:
        body: maps the features to logits (B, K), or to (B, h, K) for h heads.
        reads: the modes whose features it reads; stored as hashes of their content.
        tap: name of the submodule whose output is the feature; several names for several features per mode.
        r: the predicted position on the curve; None if the target is not on a curve.
        name: name in tables.
        share: counted FLOPs relative to one base network; None if not counted.
        heads: number of heads h; each is a member of ensembles.
    """

    def __init__(
        self,
        body: nn.Module,
        reads: Sequence[Mode],
        tap: str | Sequence[str],
        r: float | None = 0.5,
        name: str = "bridge",
        share: float | None = None,
        heads: int = 1,
    ) -> None:
        super().__init__()
        if len(reads) not in (1, 2):
            raise ModebridgeError(
                f"Expected a bridge to read one mode (type I) or two (type II), but got {len(reads)}; pass one or two."
            )
        self.body = body
        self.reads = tuple(mode.id for mode in reads)
        self.taps = (tap,) if isinstance(tap, str) else tuple(tap)
        self.r = r
        self.name = name
        self.share = share
        self.heads = heads
        self._base = trees.size(reads[0].params)

    @property
    def kind(self) -> Kind:
        """Type "I" or "II"."""
        return "I" if len(self.reads) == 1 else "II"

    @property
    def tap(self) -> str:
        """The tap or taps as text."""
        return " + ".join(self.taps)

    @property
    def places(self) -> list[tuple[int, str]]:
        """The input features in order: index of the mode in `reads`, and tap."""
        return [(k, tap) for k in range(len(self.reads)) for tap in self.taps]

    @property
    def parameter_share(self) -> float | None:
        """Its parameters relative to one base network; a cheap bridge at a deep tap can have many.

        None if the base has no parameters.
        """
        count = sum(parameter.numel() for parameter in self.parameters())
        return count / self._base if self._base else None

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, K), or (B, h, K), from the features of the modes in `reads`, in the order of `places`."""
        if len(features) != len(self.places):
            raise ModebridgeError(
                f"Expected a type {self.kind} bridge to get {len(self.places)} features, "
                f"but got {len(features)}; pass one per mode it reads and tap."
            )
        # Other bridges read the same features: a body that changes its inputs in place gets a copy.
        return without_side_effects(self.body, self.body, *features)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Type, tap, position, name, heads and cost."""
        share = "" if self.share is None else f", share={self.share:.2%} of the FLOPs"
        if self.parameter_share is not None:
            share += f"{',' if not share else ' and'} {self.parameter_share:.2%} of the parameters"
        heads = f", {self.heads} heads" if self.heads > 1 else ""
        return f"type {self.kind}, tap={self.tap}, r={self.r}, name={self.name}{heads}{share}"

    def head_logits(self, *features: Tensor) -> list[Tensor]:
        """The logits (B, K) of each head."""
        logits = self(*features)
        return [logits] if self.heads == 1 else list(logits.unbind(dim=1))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the bridge as a folder that `modebridge.load` reads; see `modebridge.files.save`."""
        from modebridge.files import save

        save(self, path)
