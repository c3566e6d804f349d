"""Common parts of all holds: a clock, a log of epochs, and saving logits after every stage."""

from __future__ import annotations

import json
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from modebridge import Mode
from modebridge.bridges import Bridge
from modebridge.data import ImageSet, Loader, load_set
from modebridge.nets import Norm, ResNetSpec, Tapped, frozen_copy, spec_of
from modebridge.recipes import Recipe, find_recipe
from modebridge.scoring import LogitTable, MemberCost, dee
from modebridge.training import Engine, Epoch
from modebridge.types import Batch, Batches

__all__ = [
    "Hold",
    "WholeBatches",
    "answers_of",
    "bridges_in",
    "by_head",
    "cifar10_setting",
    "cifar10_splits",
    "logits_of_members",
    "planned",
    "print_table",
    "quiet",
    "random_splits",
    "rates_of",
    "round_bridges",
    "rounded",
    "row",
]


def quiet() -> None:
    """Keep torch's compile warnings out of the log."""
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)


@dataclass
class Hold:
    """A run with a time limit.

    Args:
        out: folder for logits and stages.json.
        seconds: time limit, from now on.
    """

    out: Path
    seconds: float
    began: float = field(default_factory=time.perf_counter)
    stages: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Remaining seconds."""
        return self.seconds - (time.perf_counter() - self.began)

    def say(self, text: str) -> None:
        """Print a line of the log, with the time since the start."""
        print(f"[{time.perf_counter() - self.began:7.1f} s] {text}", flush=True)

    def report(self, stage: str) -> Callable[[Epoch], None]:
        """An epoch callback that logs a stage and its times: of the first epoch, which compiles, and of the others."""
        seconds: list[float] = []

        def note(epoch: Epoch) -> None:
            seconds.append(epoch.seconds)
            steady = sorted(seconds[1:] or seconds)[len(seconds[1:]) // 2]
            self.stages[stage] = {
                "epochs": epoch.number,
                "total_s": sum(seconds),
                "first_epoch_s": seconds[0],
                "epoch_s": steady,
                # Not of a first epoch, which compiles: plans based on it have failed.
                **({"fastest_s": min(seconds[1:])} if seconds[1:] else {}),
                "images_per_s": epoch.images / steady,
            }
            (self.out / "stages.json").write_text(json.dumps(self.stages, indent=1))
            losses = " ".join(f"{name} {loss:.4f}" for name, loss in epoch.losses.items())
            scores = " ".join(f"{score:.4f}" for score in epoch.scores.values())
            line = f"{stage} {epoch.number}/{epoch.total} {epoch.seconds:.1f} s, {epoch.rate:.0f} images/s: {losses}"
            self.say(f"{line}; valid {scores}" if scores else line)

        return note

    def save(self, logits: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Write the logits of members in half precision, one file per member."""
        for name, splits in logits.items():
            halves = {split: tensor.half().contiguous() for split, tensor in splits.items()}
            save_file(halves, self.out / f"{name}.safetensors")

    def save_weights(
        self, name: str, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], folder: Path | None = None
    ) -> None:
        """Write a network, to `out` or a folder: parameters in half precision, buffers (batch norm) unchanged."""
        tensors = {key: tensor.detach().half() for key, tensor in params.items()} | dict(buffers)
        tensors = {key: tensor.cpu().contiguous() for key, tensor in tensors.items()}
        (folder or self.out).mkdir(parents=True, exist_ok=True)
        save_file(tensors, (folder or self.out) / f"weights-{name}.safetensors")


def rates_of(warm: Path | None, measured: Mapping[str, float], scale: float = 1.0) -> dict[str, float]:
    """Seconds per epoch by stage: those of the warm-up runs in a folder, or as measured before.

    Warm-up runs share the GPU most of the time, so their fastest epoch counts, times `scale`, the number of images of
    an epoch relative to theirs. A run that failed, or did not reach a second epoch, does not count.
    """
    rates = dict(measured)
    for stage, file in {stage: warm / stage / "stages.json" for stage in rates if warm}.items():
        figures = json.loads(file.read_text())[stage] if file.is_file() else {}
        if "fastest_s" in figures:
            rates[stage] = scale * figures["fastest_s"]
    return rates


def planned(
    stage: str, epochs: Mapping[str, int], left: float, rates: Mapping[str, float], beside: Mapping[str, float]
) -> int:
    """The epochs of a stage: as requested, or fewer if time is short: all remaining stages get the same share.

    `epochs` has all stages in order, `rates` their seconds per epoch, and `beside` their seconds outside epochs.

    >>> epochs, rates = {"modes": 20, "bridges": 100, "students": 50}, {"modes": 9.0, "bridges": 3.0, "students": 6.0}
    >>> beside = {"modes": 50, "bridges": 35, "students": 75}
    >>> [planned("bridges", epochs, left, rates, beside) for left in (410.0, 710.0, 2000.0)]
    [50, 100, 100]
    >>> planned("modes", epochs, 550.0, rates, beside), planned("students", epochs, 225.0, rates, beside)
    (10, 25)
    """
    later = list(epochs)[list(epochs).index(stage) :]
    left -= sum(beside[name] for name in later)
    needed = sum(epochs[name] * rates[name] for name in later)
    return epochs[stage] if left >= needed else max(2, int(epochs[stage] * left / needed))


@torch.no_grad()
def logits_of_members(
    net: nn.Module,
    modes: Mapping[str, Mode],
    bridges: Mapping[str, Bridge],
    splits: Mapping[str, Batches],
    engine: Engine,
) -> dict[str, dict[str, Tensor]]:
    """Logits (N, K) by member and split in fp32, (N, h, K) for h heads; every network runs once per batch."""
    device = engine.device
    placed = {name: bridge.to(device).eval() for name, bridge in bridges.items()}
    tapped = Tapped(frozen_copy(net).to(device), sorted({tap for bridge in placed.values() for tap in bridge.taps}))
    states = {name: tapped.state_of(mode.to(device).state) for name, mode in modes.items()}
    names = {mode.id: name for name, mode in modes.items()}
    logits: dict[str, dict[str, Tensor]] = {}
    for split, batches in splits.items():
        parts: dict[str, list[Tensor]] = {name: [] for name in (*modes, *bridges)}
        for images, _ in batches:
            outputs = {name: tapped.run(state, images.to(device)) for name, state in states.items()}
            for name, (output, _) in outputs.items():
                parts[name].append(output.float().cpu())
            for name, bridge in placed.items():
                features = [outputs[names[bridge.reads[k]]][1][tap] for k, tap in bridge.places]
                parts[name].append(bridge(*features).float().cpu())
        for name, pieces in parts.items():
            logits.setdefault(name, {})[split] = torch.cat(pieces)
    return logits


def by_head(logits: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Logits with the heads of a bridge as separate members: NAME-h0, NAME-h1, ..."""
    heads: dict[str, dict[str, Tensor]] = {}
    for name, splits in logits.items():
        for split, tensor in splits.items():
            parts = {name: tensor} if tensor.dim() == 2 else {f"{name}-h{k}": h for k, h in enumerate(tensor.unbind(1))}
            for head, part in parts.items():
                heads.setdefault(head, {})[split] = part.contiguous()
    return heads


def answers_of(
    net: nn.Module,
    modes: Mapping[str, Mode],
    bridges: Mapping[str, Bridge],
    logits: Mapping[str, Mapping[str, Tensor]],
    labels: Mapping[str, Tensor],
) -> LogitTable:
    """Logits of members in half precision, as saved, and their costs.

    A bridge with several heads is a member under its own name, averaged over its heads, and so is each head.
    """
    names = {mode.id: name for name, mode in modes.items()}
    costs = {name: MemberCost(1.0, sum(p.numel() for p in net.parameters())) for name in modes}
    tables = {split: {name: logits[name][split].half() for name in modes} for split in ("valid", "test")}
    for name, bridge in bridges.items():
        size, reads = sum(p.numel() for p in bridge.parameters()), tuple(names[source] for source in bridge.reads)
        heads = [head for head in logits if head == name or head.removeprefix(f"{name}-h").isdecimal()]
        for member in dict.fromkeys((name, *heads)):
            costs[member] = MemberCost(bridge.share or 0.0, size, reads)
        for split, table in tables.items():
            table |= {head: logits[head][split].half() for head in heads}
            if name not in table:
                table[name] = torch.stack([table[head] for head in heads])
    return LogitTable(tables["valid"], tables["test"], labels["valid"], labels["test"], costs)


def bridges_in(answers: LogitTable) -> list[str]:
    """The bridges among the members; heads are not listed one by one."""
    return [name for name, cost in answers.costs.items() if cost.reads and not re.search(r"-h\d+$", name)]


def print_table(
    answers: LogitTable, rows: Iterable[tuple[str, ...]], ensembles: Sequence[tuple[str, ...]] = ()
) -> None:
    """Print rows of members in Markdown; with deep ensembles of 1, 2, ... modes also what a row is worth in those."""
    reference = [answers.score(members).nll for members in ensembles]
    titles = ["members", "FLOPs", "params", "ACC %", "NLL", "ECE", "Brier", "T"]
    titles += ["DEE", "way from DE-1 to DE-2 (NLL)"] if reference else []
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for members in rows:
        print(row(" + ".join(members), answers, members, reference), flush=True)


def row(title: str, answers: LogitTable, members: tuple[str, ...], reference: Sequence[float] = ()) -> str:
    """A row of a table: cost, accuracy, calibrated NLL, ECE, Brier, temperature; DEE if DE-1, DE-2, ... are given."""
    scores = answers.score(members)
    worth = ""
    if reference:
        way = (reference[0] - scores.nll) / (reference[0] - reference[1])
        worth = f" {dee(scores.nll, reference):.2f} | {100 * way:.0f} % |"
    return (
        f"| {title} | x{scores.relative_flops:.2f} | x{scores.relative_params:.2f} | {100 * scores.accuracy:.2f} | "
        f"{scores.nll:.4f} | {scores.ece:.4f} | {scores.brier:.4f} | {scores.temperature:.3f} |{worth}"
    )


class WholeBatches:
    """A loader without the smaller batch at the end of an epoch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return (batch for batch in self._loader if len(batch[1]) == self._loader.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self._loader.set_epoch(epoch)


def rounded(mode: Mode) -> Mode:
    """The mode with weights rounded to half precision; batch norm statistics stay unchanged."""
    return Mode({name: tensor.half().float() for name, tensor in mode.params.items()}, mode.buffers)


def round_bridges(bridges: Mapping[str, Bridge]) -> None:
    """Round the weights of bridges to half precision, in place."""
    for bridge in bridges.values():
        for parameter in bridge.parameters():
            parameter.data = parameter.data.half().float()


def cifar10_setting(*, tiny: bool, norm: Norm = "frn") -> tuple[Engine, Recipe, ResNetSpec, int]:
    """The engine, and the recipe cifar10 with its network and batch size; small ones for a dry run."""
    recipe, spec = find_recipe("cifar10" if norm == "frn" else f"cifar10-{norm}"), spec_of("cifar10", norm)
    if tiny:
        return Engine(), recipe, replace(spec, stages=(1, 1, 3), widths=(8, 8, 8)), 8
    engine = Engine.best()
    if engine.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    return engine, recipe, spec, recipe.data.batch_size


def random_splits(drawn: int, image: tuple[int, int, int], classes: int, *, held_out: int) -> dict[str, ImageSet]:
    """Random images for dry and warm-up runs; the first ones are also validation and test images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (drawn, *image), dtype=torch.uint8, generator=generator)
    some = ImageSet(images, torch.randint(classes, (drawn,), generator=generator), classes)
    return {"train": some} | {split: some.part(0, min(held_out, drawn)) for split in ("valid", "test")}


def cifar10_splits(place: str, device: torch.device, drawn: int) -> dict[str, ImageSet]:
    """The recipe's splits of CIFAR-10 from its folder; for "-", `drawn` random training images instead."""
    if place == "-":
        splits = random_splits(drawn, (3, 32, 32), 10, held_out=5000)
    else:
        read = load_set("cifar10", place)
        splits = {"train": read.train, "valid": read.valid, "test": read.test}  # type: ignore[dict-item]
    return {name: split.to(device) for name, split in splits.items()}
