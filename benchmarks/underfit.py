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

import torch
from torch import Tensor

from frontier.places import shifted
from frontier.scene import Scene
from frontier.scoring import Record, keep, read
from frontier.training import Bench
from frontier.underfit_tables import confirm, table
from frontier.underfit_variants import (
    CHOICES,
    CONFIRMED,
    FIT,
    FITTING,
    LABELS,
    LEVELS,
    MIXING,
    MIXUP,
    VARIANTS,
)
from frontier.variants import Regime
from holds.common import logits_of_members
from modebridge import seeds
from modebridge.bridges import kl_divergence, mix
from modebridge.cutmix import draw_shares, pixel_shares
from modebridge.modes import refresh_statistics
from modebridge.nets import ResNet
from modebridge.recipes import Recipe, find_recipe
from modebridge.runs import Run, RunFolder
from modebridge.training.fitted import Fit, training_accuracy
from seed_ranges import seeds_in


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
    seen = training_accuracy(context.net, modes[:1], bench.train(0), data.facts.classes, context.engine)
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
