r"""Do CutMix, the wide block and labels pay if the modes do not fit their training images? On digits.

    python benchmarks/underfit.py train --seeds 60-67 --out FILE.json [--levels "1 epoch"] [--epochs 5]
    python benchmarks/underfit.py table results/underfit-digits.json
    python benchmarks/underfit.py train --confirm --seeds 70-77 --out FILE.json
    python benchmarks/underfit.py confirm results/underfit-digits-fresh.json

The recipe digits with modes that are trained as it says or that underfit (`LEVELS`), and bridges on mode 0 with other
targets, bodies and mixing (`VARIANTS`); all bridges with one kind of mixing are trained in one pass. The running
statistics of all modes are estimated again after training, because those of a few steps are wrong. A level takes about
70 s per seed on one core, and 25 s more for modes of 20 epochs. FILE.json has one JSON object per line, like that of
benchmarks/frontier.py: the scores of every variant, calibrated on validation images, and once per seed and level how
well the modes fit the training images and how much they differ, plain and mixed. Modes are kept in a cache.

The limits at which `fit_bridge` adds a head on labels and leaves CutMix were chosen on seeds 60 to 67. `--confirm`
trains only what it chooses between, on more levels (`CONFIRMED`), and `confirm` prints what its choice is worth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

import torch
from torch import Tensor

from frontier.places import shifted
from frontier.scene import Scene
from frontier.scoring import Record, keep, read
from frontier.table import interval, way
from frontier.training import Bench
from frontier.variants import Part, Regime, Variant
from holds.common import logits_of_members
from modebridge import seeds
from modebridge.bridges import kl_divergence, mix
from modebridge.cutmix import draw_shares, pixel_shares
from modebridge.modes import refresh_statistics
from modebridge.nets import ResNet
from modebridge.recipes import Recipe, find_recipe
from modebridge.runs import Run, RunFolder
from modebridge.training.fitted import Fit, look_at_fit
from seed_ranges import seeds_in

LEVELS: Mapping[str, Mapping[str, Any]] = {
    "20 epochs": {},
    "2 epochs": {"epochs": 2},
    "1 epoch": {"epochs": 1},
    "weight decay 0.07": {"weight_decay": 0.07},
}
"""Changes to the recipe's training of modes, by title. On seed 5, which they were chosen on, modes are right on 100,
88, 76 and 64 % of the training images. With weight decay they underfit although they are trained as long as the first;
on other seeds it varies how much."""
CONFIRMED: Mapping[str, Mapping[str, Any]] = {
    **LEVELS,
    "6 epochs": {"epochs": 6},
    "4 epochs": {"epochs": 4},
    "3 epochs": {"epochs": 3},
    "weight decay 0.05": {"weight_decay": 0.05},
}
"""The same and four levels near the limits, written down before seeds 70 to 77 were trained: on seed 5 modes are right
on 99, 96, 93 and 95 % of the training images."""

MIXING = {
    "no mixing": Regime(mixup=0.0),
    "mixup 0.4": Regime(mixup=0.4),
    "CutMix 1": Regime(mixup=0.0, cutmix=1.0),
}
BODIES = {"paper body": "", "wide block": "default"}
"""The design of a `Part`: the paper's small body, and what `budget=` builds for the FLOPs of that."""
AIMS = {
    "3 others": ("others", tuple(MIXING), tuple(BODIES)),
    "3 others + labels": ("others + labels", ("mixup 0.4", "CutMix 1"), tuple(BODIES)),
    "labels": ("labels", ("mixup 0.4",), tuple(BODIES)),
    "1 other": ("mode 1", ("mixup 0.4",), ("paper body",)),
}
"""The aim of a `Part`, with which mixing and which bodies; one head per target."""
VARIANTS = {
    f"{title}; {body}; {mixing}": Variant((Part(aim, design=BODIES[body], regime=MIXING[mixing]),))
    for title, (aim, mixings, bodies) in AIMS.items()
    for mixing in mixings
    for body in bodies
}
"""Written down with the levels before seeds 60 to 67 were trained, which nothing had used before. results/ has all of
them with the recipe's epochs of bridges (35), and with 5; 70 were planned if there was time, and there was not."""
BASELINE = "3 others; paper body; mixup 0.4"
FITTING, LABELS, MIXUP = (
    "3 others; wide block; CutMix 1",
    "3 others + labels; wide block; CutMix 1",
    "3 others + labels; wide block; mixup 0.4",
)
"""What `fit_bridge` chooses between: on modes that fit, below its limit for labels, and below that for CutMix."""
CHOICES = (FITTING, LABELS, MIXUP, "labels; wide block; mixup 0.4", "1 other; paper body; mixup 0.4")
"""What `--confirm` trains: those three, labels alone, and the bridge nearest to the paper's that needs no curve."""
FIT = "fit"
"""The variant of the records that say how well the modes fit the training images."""
Rows: TypeAlias = Mapping[str, Mapping[int, Record]]
"""Records by variant and seed."""


def bench_of(recipe: Recipe, seed: int, folder: Path | None, epochs: int) -> tuple[Bench, Record]:
    """The modes of a seed, ready for bridges on the first, and how well they fit.

    Args:
        recipe: data and training.
        seed: seed of everything.
        folder: where modes are kept; None for nowhere.
        epochs: epochs of bridges; 0 for the recipe's.
    """
    run = Run(recipe, seed=seed, folder=RunFolder(folder) if folder else None)
    context, data = run.context, run.context.data
    modes = []
    for k in range(recipe.modes):
        mode = run.mode(k)
        statistics = refresh_statistics(context.net, mode.params, mode.buffers, data.statistics("mode", k))
        modes.append(replace(mode, buffers=statistics))
    assert isinstance(context.net, ResNet)
    assert isinstance(context.example, Tensor)
    bench = Bench(
        Scene(context.net, modes, {}, context.example, {"small": recipe.small}, seed),
        lambda shift: shifted(data.train("bridges", bridges=True), shift),
        {"valid": data.valid(), "test": data.test()},
        data.valid(),
        {split: data.labels(split) for split in ("valid", "test")},  # type: ignore[arg-type]
        replace(recipe.bridge, epochs=epochs or recipe.bridge.epochs, seed=context.seed_of("bridges")),
        context.engine,
    )
    images, labels = (torch.cat(parts) for parts in zip(*data.plain_train(data.facts.counts["train"]), strict=True))
    splits = {title: [(_mixed(images, regime, seed), labels)] for title, regime in MIXING.items()}
    networks = {f"mode-{k}": mode for k, mode in enumerate(modes)}
    logits = logits_of_members(context.net, networks, {}, {**splits, "valid": data.valid()}, context.engine)
    seen = look_at_fit(context.net, modes[:1], bench.train(0), data.facts.classes, context.engine)
    return bench, {**_fit(list(logits.values()), labels.cpu()), "chosen": chosen(seen)}


def chosen(fit: Fit) -> str:
    """The variant that is `fit_bridge`'s default on modes that fit so well."""
    return (LABELS if fit.suits_cutmix else MIXUP) if fit.needs_labels else FITTING


def _mixed(images: Tensor, regime: Regime, seed: int) -> Tensor:
    if not (regime.mixup or regime.cutmix):
        return images
    drawn = seeds.seed_for(seed, "underfit", str(regime))
    draw = draw_shares(len(images), regime.mixup, regime.cutmix, drawn)
    partner = torch.randperm(len(images), generator=torch.Generator().manual_seed(drawn))
    return mix(images, pixel_shares(draw, images), partner)


def _fit(logits: Sequence[Mapping[str, Tensor]], labels: Tensor) -> Record:
    """Scores of modes on plain training images, and the mean KL from the other modes to mode 0 on those and others."""
    plain = [one["no mixing"].double() for one in logits]
    hits = [float((table.argmax(-1) == labels).double().mean()) for table in plain]
    first = logits[0]
    apart = {
        split: mean(
            float(kl_divergence(other[split].double().softmax(-1), first[split].double()).mean())
            for other in logits[1:]
        )
        for split in first
    }
    loss = float(torch.nn.functional.cross_entropy(plain[0], labels))
    return {"train": {"accuracy": hits[0], "nll": loss}, "train_accuracies": hits, "kl": apart}


def train(given: argparse.Namespace) -> None:
    recipe = find_recipe("digits")
    levels = given.levels or ",".join(CONFIRMED if given.confirm else LEVELS)
    mixings, levels = ([part.strip() for part in text.split(",")] for text in (given.mixing, levels))
    names = CHOICES if given.confirm else VARIANTS
    variants = {name: VARIANTS[name] for name in names if name.split("; ")[2] in mixings}
    for seed in seeds_in(given.seeds):
        for title in levels:
            start = time.perf_counter()
            changed = replace(recipe, mode=replace(recipe.mode, **CONFIRMED[title]))
            bench, fit = bench_of(changed, seed, given.cache / title.replace(" ", "-") / str(seed), given.epochs)
            ready = time.perf_counter()
            facts = {"data": f"digits; modes: {title}; bridges: {bench.config.epochs} epochs", "seed": seed}
            for _ in bench.passes(variants, facts, given.out):
                pass
            keep(given.out, [{**facts, "variant": FIT, "line": False, **fit}])
            done = time.perf_counter()
            print(f"seed {seed}, {title}: modes {ready - start:.0f} s, bridges {done - ready:.0f} s", flush=True)


def table(records: Sequence[Record]) -> list[str]:
    """The lines of the Markdown tables: one per level, then what each factor changes at every level."""
    levels = _levels(records)
    lines = [line for data, rows in levels.items() for line in _of_one(data, rows)]
    pairs = [pair for pair in _pairs() if any(set(pair) <= rows.keys() for rows in levels.values())]
    lines += ["### One factor at a time: difference in NLL", "", "| | " + " | ".join(levels) + " |"]
    lines.append("|---|" + "---:|" * len(levels))
    for one, other in pairs:
        cells = [_apart(rows, one, other) for rows in levels.values()]
        instead = next(part for part in other.split("; ") if part not in one.split("; "))
        lines.append(f"| {one} minus {instead} | " + " | ".join(cells) + " |")
    return lines


def confirm(records: Sequence[Record]) -> list[str]:
    """The lines of a Markdown table: what the choice of `fit_bridge` is worth at every level, the best fit first."""
    against = (*CHOICES, "DE-1", "DE-2")
    lines = [
        "| modes | right on training images | labels on | CutMix on | ACC % | NLL | "
        + " | ".join(f"minus {name}" for name in against)
        + " |",
        "|---|" + "---:|" * (5 + len(against)),
    ]
    levels = _levels(records)
    for data in sorted(levels, key=lambda data: -mean(f["train"]["accuracy"] for f in levels[data][FIT].values())):
        rows = levels[data]
        fits = rows[FIT]
        picked = {seed: rows[fit["chosen"]][seed] for seed, fit in fits.items()}
        choices = [fit["chosen"] for fit in fits.values()]
        cells = [
            data.split("; ")[1].removeprefix("modes: "),
            f"{100 * mean(fit['train']['accuracy'] for fit in fits.values()):.1f} %",
            f"{sum(name != FITTING for name in choices)} of {len(choices)}",
            f"{sum(name != MIXUP for name in choices)} of {len(choices)}",
            f"{100 * mean(record['test']['accuracy'] for record in picked.values()):.2f}",
            f"{mean(record['test']['nll'] for record in picked.values()):.4f}",
            *(_apart({**rows, "": picked}, "", name) for name in against),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _levels(records: Sequence[Record]) -> dict[str, dict[str, dict[int, Record]]]:
    levels: dict[str, dict[str, dict[int, Record]]] = {}
    for record in records:
        levels.setdefault(record["data"], {}).setdefault(record["variant"], {})[record["seed"]] = record
    return levels


def _of_one(data: str, rows: Rows) -> list[str]:
    fits = list(rows[FIT].values())
    kl = {split: mean(fit["kl"][split] for fit in fits) for split in fits[0]["kl"]}
    losses = {name: mean(record["test"]["nll"] for record in row.values()) for name, row in rows.items() if name != FIT}
    every = [accuracy for fit in fits for accuracy in fit["train_accuracies"]]
    lines = [
        f"### {data}",
        "",
        f"Seeds {', '.join(map(str, rows[FIT]))}. Mode 0 on plain training images: "
        f"{100 * mean(fit['train']['accuracy'] for fit in fits):.1f} % right, NLL "
        f"{mean(fit['train']['nll'] for fit in fits):.3f}; all modes {100 * mean(every):.1f} % "
        f"({100 * min(every):.1f} to {100 * max(every):.1f}). Mean KL from the other modes to mode 0: on training "
        "images "
        + ", ".join(f"{split} {kl[split]:.3f}" for split in MIXING)
        + f"; on validation images {kl['valid']:.3f}. In brackets 95 % t intervals over seeds.",
        "",
        f"| beside mode 0 | FLOPs | ACC % | NLL | way to DE-2 | NLL minus {BASELINE} |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, loss in losses.items():
        row = rows[name].values()
        share = way(losses["DE-1"], loss, losses["DE-2"])
        cells = [
            f"x{mean(record['flops'] for record in row):.2f}",
            f"{100 * mean(record['test']['accuracy'] for record in row):.2f}",
            f"{loss:.4f}",
            "" if share is None else f"{100 * share:.0f} %",
            "" if name == BASELINE else _apart(rows, name, BASELINE),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _pairs() -> list[tuple[str, str]]:
    """Variants that differ in one factor, the second of which has that of the baseline."""
    usual = BASELINE.split("; ")
    pairs = []
    for factor in (2, 1, 0):
        for name in VARIANTS:
            parts = name.split("; ")
            other = "; ".join([*parts[:factor], usual[factor], *parts[factor + 1 :]])
            if other != name and other in VARIANTS:
                pairs.append((name, other))
    return pairs


def _apart(rows: Rows, one: str, other: str) -> str:
    """The paired difference in NLL with its interval; empty if not measured."""
    if one not in rows or other not in rows:
        return ""
    shared = [seed for seed in rows[one] if seed in rows[other]]
    middle, low, high = interval([rows[one][s]["test"]["nll"] - rows[other][s]["test"]["nll"] for s in shared])
    return f"{middle:+.4f} [{low:+.4f} to {high:+.4f}]" if len(shared) > 1 else f"{middle:+.4f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    sub = verbs.add_parser("train")
    sub.add_argument("--seeds", required=True, help="for example 5, 20,21 or 60-67")
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--levels", default="", help="titles of levels, separated by commas")
    sub.add_argument("--confirm", action="store_true", help="only what fit_bridge chooses between, on more levels")
    sub.add_argument("--mixing", default=",".join(MIXING), help="kinds of mixing, separated by commas")
    sub.add_argument("--epochs", type=int, default=0, help="epochs of bridges; 0 for the recipe's")
    sub.add_argument("--cache", type=Path, default=Path("runs/underfit"))
    printed = {"table": table, "confirm": confirm}
    for verb in printed:
        verbs.add_parser(verb).add_argument("file", type=Path)
    given = parser.parse_args(arguments)
    if given.verb in printed:
        print("\n".join(printed[given.verb](read(given.file))))
    else:
        torch.set_num_threads(1)
        train(given)


if __name__ == "__main__":
    main()
