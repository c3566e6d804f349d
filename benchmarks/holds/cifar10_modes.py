"""Hold 2, first part: CIFAR-10, ResNet-32x2 with FRN by the paper's protocol (200 epochs), several modes together.

    python benchmarks/holds/cifar10_modes.py DIR OUT --seconds 760 --rate WARM/stages.json
    python benchmarks/holds/cifar10_modes.py - WARM --warm    # compile and time on random images
    python benchmarks/holds/cifar10_modes.py - OUT --tiny     # a dry run on a CPU

Settings are those of the recipe cifar10, with one exception: the last 72 images of an epoch, different in each, are
skipped, because a smaller batch would need a second compilation. The best epoch on validation is kept, and its weights
are rounded to half precision; the rounded weights are scored, saved and used by the next holds.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path

import torch
from common import Hold, WholeBatches, cifar10_setting, cifar10_splits, logits_of_members, quiet, rounded, row
from safetensors.torch import save_file

from modebridge import fit_modes
from modebridge.data import Loader
from modebridge.nets import ResNet
from modebridge.scoring import LogitTable, MemberCost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--modes", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=200, help="maximum; fewer if time is short")
    parser.add_argument("--seconds", type=float, default=760)
    parser.add_argument("--rate", type=Path, help="stages.json of a warm-up run, for seconds per epoch")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    quiet()
    given.out.mkdir(parents=True, exist_ok=True)
    hold = Hold(given.out, given.seconds)
    engine, recipe, spec, batch = cifar10_setting(tiny=given.tiny)
    splits = cifar10_splits(given.data, engine.device, 20 if given.tiny else 45_000)
    hold.say(f"read {len(splits['train'])} training images; {engine}")
    if given.rate is not None and given.rate.is_file():
        epoch_s = json.loads(given.rate.read_text())["modes"]["epoch_s"]
        given.epochs = min(given.epochs, int((hold.left - 40) / epoch_s))
        hold.say(f"{epoch_s:.2f} s per epoch as timed: {given.epochs} epochs in the remaining {hold.left:.0f} s")
    if given.warm or given.tiny:
        given.epochs = 4
    nets = [ResNet(spec, torch.Generator().manual_seed(k)) for k in range(given.modes)]
    trained = fit_modes(
        nets,
        [
            WholeBatches(Loader(splits["train"], batch, shuffle=True, seed=10 + k, pad=4, flip=True))
            for k in range(given.modes)
        ],
        config=replace(recipe.mode, epochs=given.epochs),
        valid=Loader(splits["valid"], 2500),
        engine=engine,
        report=hold.report("modes"),
    )
    if given.warm:
        return
    modes = {f"mode-{k}": rounded(mode) for k, mode in enumerate(trained)}
    for name, mode in modes.items():
        save_file(
            {key: tensor.half().contiguous() for key, tensor in mode.state.items()},
            given.out / f"weights-{name}.safetensors",
        )
    plain = {split: Loader(splits[split], 500) for split in ("valid", "test")}
    logits = logits_of_members(nets[0], modes, {}, plain, engine)
    hold.save(logits)
    labels = {split: splits[split].labels.cpu().clone() for split in ("valid", "test")}
    save_file(labels, given.out / "labels.safetensors")
    table = {split: {name: parts[split].half() for name, parts in logits.items()} for split in ("valid", "test")}
    size = sum(p.numel() for p in nets[0].parameters())
    answers = LogitTable(
        table["valid"], table["test"], labels["valid"], labels["test"], {name: MemberCost(1.0, size) for name in modes}
    )
    print("| members | FLOPs | params | ACC % | NLL | ECE | Brier | T |\n|---|---|---|---|---|---|---|---|")
    for count in range(1, len(modes) + 1):
        for members in itertools.combinations(modes, count):
            print(row(" + ".join(members), answers, members), flush=True)
    hold.say("done")


if __name__ == "__main__":
    main()
