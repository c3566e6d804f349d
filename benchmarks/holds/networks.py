"""The networks that a hold has trained so far: run on the held-out images, saved and scored after every stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from common import Hold, answers_of, by_head, logits_of_members, print_table
from safetensors.torch import save_file
from torch import Tensor

from modebridge import Mode
from modebridge.bridges import Bridge
from modebridge.data import ImageSet, Loader
from modebridge.nets import ResNet
from modebridge.scoring import LogitTable
from modebridge.training import Engine

__all__ = ["Networks"]


class Networks:
    """The networks trained so far, whose logits are saved after every stage.

    Args:
        net: the architecture.
        splits: splits of the data.
        engine: engine to run on.
        hold: where to save.
    """

    def __init__(self, net: ResNet, splits: Mapping[str, ImageSet], engine: Engine, hold: Hold) -> None:
        self._net, self._engine, self._hold = net, engine, hold
        self._splits = {split: Loader(splits[split], 500) for split in ("valid", "test")}
        self._labels = {split: splits[split].labels.cpu().clone() for split in ("valid", "test")}
        save_file(self._labels, hold.out / "labels.safetensors")
        self.modes: dict[str, Mode] = {}
        self._bridges: dict[str, Bridge] = {}
        self._logits: dict[str, dict[str, Tensor]] = {}

    def add(self, stage: str, modes: Mapping[str, Mode], bridges: Mapping[str, Bridge] | None = None) -> None:
        """Run new networks and bridges on the held-out images and save their logits."""
        self.modes |= modes
        read = {source for bridge in (bridges or {}).values() for source in bridge.reads}
        run = {name: mode for name, mode in self.modes.items() if name in modes or mode.id in read}
        logits = by_head(logits_of_members(self._net, run, bridges or {}, self._splits, self._engine))
        fresh = {name: tensors for name, tensors in logits.items() if name not in self._logits}
        self._logits |= fresh
        self._bridges |= bridges or {}  # not before they have logits, so that a failure above does not cost the table
        self._hold.save(fresh)
        self._hold.say(f"logits of {stage} saved, {self._hold.left:.0f} s left")

    def table(
        self, combinations: Callable[[LogitTable], Iterable[tuple[str, ...]]], ensembles: Sequence[tuple[str, ...]] = ()
    ) -> None:
        """Print the rows that `combinations` chooses (up to .4 s each), see `print_table` for `ensembles`."""
        answers = answers_of(self._net, self.modes, self._bridges, self._logits, self._labels)
        print_table(answers, combinations(answers), ensembles)
        self._hold.say("table done")
