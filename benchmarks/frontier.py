r"""Compare variants of bridges on the same modes at equal budgets: are some better per FLOP than the paper's?

    python benchmarks/frontier.py digits --seeds 30-37 --out FILE.json [--only NAME,...] [--epochs N]
    python benchmarks/frontier.py cifar10 --modes results/cifar10-frn/weights --data DIR --out FILE.json \
        [--pins DIR | --curves 200] [--student results/cifar10-frn/logits/distilled-0] [--seconds 1500 --rates WARM]
    python benchmarks/frontier.py cifar10 --data - --out WARM.json --warm      # compile and time every pass
    python benchmarks/frontier.py cifar10 --data - --out DRY.json --tiny       # a dry run on a CPU, to see that it runs
    python benchmarks/frontier.py table FILE.json ...
    python benchmarks/frontier.py variants

All variants of one regime (mixup, CutMix, epochs) are trained in one pass, with the same result as if trained alone.
Temperatures, and weights of members if a variant has them, are fitted on validation images. FILE.json has one JSON
object per line, for every seed and variant; further calls with other variants or seeds append to it. On digits, modes,
curves and students are cached in a folder (--cache).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frontier.places import cifar10, digits
from frontier.scene import Scene
from frontier.scoring import read
from frontier.table import table
from frontier.training import Bench
from frontier.variants import CANDIDATES, SHIFTED, VARIANTS, Variant, choose, parts_of
from holds.common import Hold, quiet
from seed_ranges import seeds_in


def chosen(only: str, scene: Scene) -> dict[str, Variant]:
    given = [name.strip() for name in only.split(",") if name.strip()]
    groups = {"candidates": CANDIDATES, "shifted": SHIFTED}
    names = [name for part in given for name in groups.get(part, (part,))]
    variants = choose(names, scene)
    left_out = [name for name in names or VARIANTS if name not in variants]
    if left_out:
        print(f"Skipped, because a curve or a library option is missing: {'; '.join(left_out)}", flush=True)
    return variants


def run_digits(given: argparse.Namespace) -> None:
    for seed in seeds_in(given.seeds):
        start = time.perf_counter()
        bench = digits(seed, given.cache, given.epochs, lambda regime: None)
        ready = time.perf_counter()
        for _ in bench.passes(chosen(given.only, bench.scene), {"data": "digits", "seed": seed}, given.out):
            pass
        print(
            f"seed {seed}: {ready - start:.0f} s for modes, curves and student, "
            f"{time.perf_counter() - ready:.0f} s for {len(bench.spent)} bridges",
            flush=True,
        )


def run_cifar10(given: argparse.Namespace) -> None:
    folder = given.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    hold = Hold(folder, given.seconds)
    short = given.tiny or given.warm
    for seed in seeds_in(given.seeds):
        bench = cifar10(
            hold,
            modes=given.modes,
            data=given.data,
            pins=given.pins,
            curve_epochs=min(given.curves, 2) if short else given.curves,
            student=given.student,
            epochs=3 if short else given.epochs,
            seed=seed,
            tiny=given.tiny,
            random=given.warm,
        )
        variants = chosen(given.only, bench.scene)
        if given.rates is not None:
            bench.config = replace(bench.config, epochs=affordable(given.rates, variants, hold.left - 40, bench))
        passes = {str(regime): len(parts) for regime, parts in parts_of(variants).items()}
        hold.say(f"seed {seed}: {bench.config.epochs} epochs of {passes} bridges; {hold.left:.0f} s left")
        for bridges in bench.passes(variants, {"data": "cifar10", "seed": seed}, given.out):
            # Half of the candidates are there if the time runs out.
            files = {name: f"{seed}-{k}" for k, name in enumerate(bench.logits)}
            (folder / f"{seed}-members.json").write_text(json.dumps({n: name for name, n in files.items()}, indent=1))
            hold.save({files[name]: logits for name, logits in bench.logits.items()})
            for name, bridge in bridges.items():
                hold.save_weights(files[name], dict(bridge.named_parameters()), dict(bridge.named_buffers()))
            hold.say(f"seed {seed}: {len(bridges)} bridges saved, {hold.left:.0f} s left")


def affordable(rates: Path, variants: dict[str, Variant], seconds: float, bench: Bench) -> int:
    """The number of epochs of all regimes that fit in the time, estimated from a warm-up run; at most the recipe's."""
    stages = json.loads((rates.with_suffix("") / "stages.json").read_text())
    # The fastest epoch, because a warm-up run may share the GPU with others.
    epoch_s = sum(stages[str(regime)]["fastest_s"] * regime.longer for regime in parts_of(variants))
    return max(2, min(bench.config.epochs, int(seconds / epoch_s)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("digits", "cifar10"):
        sub = verbs.add_parser(verb)
        sub.add_argument("--out", type=Path, required=True)
        sub.add_argument("--only", default="", help="names of variants, separated by commas; or candidates, shifted")
        sub.add_argument("--epochs", type=int, default=0, help="epochs of bridges; 0 for the recipe's")
        sub.add_argument(
            "--seeds", default="0", help="for example 5, 20,21 or 30-37; with saved modes, the seeds of the bridges"
        )
    verbs.choices["digits"].add_argument("--cache", type=Path, default=Path("runs/frontier"))
    sub = verbs.choices["cifar10"]
    sub.add_argument("--modes", type=Path, help="folder with the weights of four modes")
    sub.add_argument("--data", default="-", help="folder of the data set; - for random images")
    sub.add_argument("--pins", type=Path, help="folder with the pins of the curves")
    sub.add_argument("--curves", type=int, default=0, help="without pins: number of epochs to train curves first")
    sub.add_argument("--student", type=Path, help="folder with the logits of the student of DE-4")
    sub.add_argument("--seconds", type=float, default=1500)
    sub.add_argument(
        "--rates", type=Path, help="FILE.json of a warm-up run, to choose as many epochs as fit in the time"
    )
    sub.add_argument("--warm", action="store_true", help="train everything for three epochs, to compile and time it")
    sub.add_argument("--tiny", action="store_true")
    verbs.add_parser("table").add_argument("files", type=Path, nargs="+")
    verbs.add_parser("variants")
    given = parser.parse_args(arguments)
    quiet()
    if given.verb == "table":
        print("\n".join(table([record for file in given.files for record in read(file)])))
    elif given.verb == "variants":
        print("\n".join(f"{name}: {' | '.join(map(str, variant.parts))}" for name, variant in VARIANTS.items()))
    else:
        (run_digits if given.verb == "digits" else run_cifar10)(given)


if __name__ == "__main__":
    main()
