"""Hold 3, second part: students of the four modes of results/cifar10-frn, and a control trained on labels only.

    python benchmarks/holds/cifar10_students.py DIR OUT --modes results/cifar10-frn/weights --seconds 1500 --rates WARM
    python benchmarks/holds/cifar10_students.py - WARM --warm many      # then one: compile and time a stage
    python benchmarks/holds/cifar10_students.py - OUT --tiny            # a dry run on a CPU

Training is that of the modes of the recipe cifar10, except for mixup: students start from random weights, 200 epochs.
Stage "many" trains the student of DE-4 and the control together with mixup 1.0; stage "one" trains the student of DE-4
with mixup 0.4, for as many epochs as time allows, up to 200.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from common import Hold, WholeBatches, cifar10_setting, cifar10_splits, logits_of_members, quiet, rounded, row
from safetensors.torch import save_file

from modebridge import Mode, fit_students, plan_student
from modebridge.data import Loader, load_modes
from modebridge.nets import ResNet
from modebridge.scoring import LogitTable, MemberCost

MIXUPS = {"many": 1.0, "one": 0.4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--modes", type=Path, help="weights of modes 0 to 3")
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--rates", type=Path, help="folder of the warm-up runs, for seconds per epoch")
    parser.add_argument("--warm", choices=tuple(MIXUPS))
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    quiet()
    out = given.out / given.warm if given.warm else given.out
    out.mkdir(parents=True, exist_ok=True)
    hold = Hold(out, given.seconds)
    engine, recipe, spec, batch = cifar10_setting(tiny=given.tiny)
    splits = cifar10_splits(given.data, engine.device, 20 if given.tiny else 45_000)
    hold.say(f"read {len(splits['train'])} training images; {engine}")
    if given.warm or given.tiny:
        given.epochs = 6
    net = ResNet(spec)
    modes = load_modes(net, given.modes) if given.modes else []
    modes += [Mode.from_module(ResNet(spec, torch.Generator().manual_seed(k))) for k in range(len(modes), 4)]
    modes = modes[:4]
    plain = {split: Loader(splits[split], 500) for split in ("valid", "test")}
    valid = Loader(splits["valid"], 20 if given.tiny else 2500)
    students: dict[str, Mode] = {}
    for stage, mixup in MIXUPS.items():
        if given.warm not in (None, stage):
            continue
        number = list(MIXUPS).index(stage)
        plans = {f"student-4-mixup-{mixup:g}": plan_student(net, modes, seed=200 + number)}
        if stage == "many":
            plans["student-labels-mixup-1"] = plan_student(net, (), seed=210)
        epochs = given.epochs
        if given.rates is not None and not given.warm:
            # The fastest epoch, because a warm-up run shares the GPU with others most of the time.
            epoch_s = json.loads((given.rates / stage / "stages.json").read_text())[stage]["fastest_s"]
            epochs = max(2, min(epochs, int((hold.left - 45) / epoch_s)))
        hold.say(f"{len(plans)} students with mixup {mixup:g} x {epochs} epochs; {hold.left:.0f} s left")
        train = WholeBatches(Loader(splits["train"], batch, shuffle=True, seed=60 + number, pad=4, flip=True))
        trained = fit_students(
            net,
            plans,
            train,
            mixup=mixup,
            config=replace(recipe.mode, epochs=epochs, seed=70 + number),
            valid=valid,
            engine=engine,
            report=hold.report(stage),
        )
        trained = {name: rounded(mode) for name, mode in trained.items()}
        students |= trained
        if given.warm:
            return
        hold.save(logits_of_members(net, trained, {}, plain, engine))
        for name, mode in trained.items():
            halves = {key: tensor.half().contiguous() for key, tensor in mode.state.items()}
            save_file(halves, out / f"weights-{name}.safetensors")
        hold.say(f"{stage} scored")
    named = {f"mode-{k}": mode for k, mode in enumerate(modes)} | students
    logits = logits_of_members(net, named, {}, plain, engine)
    labels = {split: splits[split].labels.cpu().clone() for split in ("valid", "test")}
    save_file(labels, out / "labels.safetensors")
    base = sum(p.numel() for p in net.parameters())
    table = {split: {name: parts[split].half() for name, parts in logits.items()} for split in ("valid", "test")}
    costs = {name: MemberCost(1.0, base) for name in named}
    answers = LogitTable(table["valid"], table["test"], labels["valid"], labels["test"], costs)
    first = tuple(f"mode-{k}" for k in range(4))
    rows: list[tuple[str, ...]] = [first[:count] for count in (1, 2, 4)] + [(name,) for name in students]
    rows += [("mode-0", name) for name in students] + [tuple(students), tuple(n for n in students if "4" in n)]
    print("| members | FLOPs | params | ACC % | NLL | ECE | Brier | T |\n|---|---|---|---|---|---|---|---|")
    for members in rows:
        print(row(" + ".join(members), answers, members), flush=True)
    hold.say("done")


if __name__ == "__main__":
    main()
