"""Hold 4: CIFAR-10, ResNet-32x2 with batch norm: three modes, two curves, bridges and controls, students.

    python benchmarks/holds/cifar10_bn.py DIR OUT --seconds 1400 --rates WARM
    python benchmarks/holds/cifar10_bn.py - WARM --warm modes    # then curves, bridges, students: compile and time
    python benchmarks/holds/cifar10_bn.py - OUT --tiny           # a dry run on a CPU

Settings are those of the recipe cifar10-bn with 100 epochs per stage; see cifar10_modes.py for the last 72 images and
for half precision (batch norm statistics are not rounded). If time is short, all remaining stages get the same share of
their epochs. Curves are validated after every epoch with
statistics of 5,000 training images; midpoints that are scored and imitated use all training images.
"""

from __future__ import annotations

import argparse
import traceback
from dataclasses import replace
from pathlib import Path

import torch
from cifar10_bn_plans import OTHERS, combinations, plans_of
from common import (
    Hold,
    WholeBatches,
    cifar10_setting,
    cifar10_splits,
    planned,
    quiet,
    rates_of,
    round_bridges,
    rounded,
)

from modebridge import Mode, fit_bridges, fit_curves, fit_modes, fit_students, plan_student
from modebridge.bridges import Bridge
from modebridge.curves import BezierCurve
from modebridge.data import Loader, load_modes
from modebridge.nets import ResNet, frozen_copy
from networks import Networks

WARM_EPOCHS = {"modes": 4, "curves": 4, "bridges": 8, "students": 6}
STAGES = tuple(WARM_EPOCHS)
BESIDE = {"curves": 40, "bridges": 35, "students": 75}
"""Seconds of a stage outside its epochs: a longer first epoch, then logits, and the table at the end."""
RATES = {"modes": 3.0, "curves": 2.4, "bridges": 3.2, "students": 2.9}
"""Measured seconds per epoch, for stages whose warm-up run failed or did not reach a second epoch."""
MIXUP = 1.0
"""Mixup of students."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=1400)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--rates", type=Path, help="folder of the warm-up runs, for seconds per epoch")
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="START", help="skip bridges whose names start with this"
    )
    parser.add_argument("--modes", type=Path, help="folder of mode-0 to mode-2.safetensors to continue from")
    parser.add_argument("--warm", choices=STAGES)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    quiet()
    out = given.out / given.warm if given.warm else given.out
    out.mkdir(parents=True, exist_ok=True)
    hold = Hold(out, given.seconds)
    engine, recipe, spec, batch = cifar10_setting(tiny=given.tiny, norm="bn")
    splits = cifar10_splits(given.data, engine.device, 20 if given.tiny else 45_000)
    hold.say(f"read {len(splits['train'])} training images; {engine}")
    net, valid = ResNet(spec), Loader(splits["valid"], 20 if given.tiny else 2500)
    rates: dict[str, float] = {}
    if given.rates is not None:
        rates = rates_of(given.rates, RATES)
        hold.say(f"seconds per epoch: {rates}")

    def fed(seed: int) -> WholeBatches:
        return WholeBatches(Loader(splits["train"], batch, shuffle=True, seed=seed, pad=4, flip=True))

    def epochs_of(stage: str, what: str) -> int:
        epochs = 4 if given.tiny else given.epochs
        if given.warm:
            epochs = WARM_EPOCHS[stage]
        elif rates and stage in BESIDE:
            epochs = planned(stage, dict.fromkeys(STAGES, epochs), hold.left, rates, BESIDE)
        hold.say(f"{what} x {epochs} epochs; {hold.left:.0f} s left")
        return epochs

    nets = [ResNet(spec, torch.Generator().manual_seed(k)) for k in range(3)]
    modes = load_modes(net, given.modes) if given.modes else [Mode.from_module(fresh) for fresh in nets]
    if given.warm in (None, "modes") and not given.modes:
        trained = fit_modes(
            nets,
            [fed(10 + k) for k in range(3)],
            config=replace(recipe.mode, epochs=epochs_of("modes", "3 modes")),
            valid=valid,
            engine=engine,
            report=hold.report("modes"),
        )
        modes = [rounded(mode) for mode in trained]
    if given.warm == "modes":
        return
    if not given.warm:
        networks = Networks(net, splits, engine, hold)
        for k, mode in enumerate(modes):
            hold.save_weights(f"mode-{k}", mode.params, mode.buffers)
        networks.add("modes", {f"mode-{k}": mode for k, mode in enumerate(modes)})
        if not given.modes:
            networks.table(combinations)

    curves = {j: BezierCurve(modes[0], modes[j], (modes[j].params,), {0.5: modes[j].buffers}) for j in OTHERS}
    if given.warm in (None, "curves"):
        few = Loader(splits["train"].part(0, 5000), 2500, shuffle=True, seed=40, pad=4, flip=True)
        fitted = fit_curves(
            net,
            [(modes[0], modes[j]) for j in OTHERS],
            [fed(20 + j) for j in OTHERS],
            config=replace(recipe.curve, epochs=epochs_of("curves", "2 curves")),
            pin_start=recipe.pin_start,
            valid=valid,
            statistics=few,
            engine=engine,
            report=hold.report("curves"),
        )
        placed, every = frozen_copy(net).to(engine.device), Loader(splits["train"], 500, seed=41, pad=4, flip=True)
        for j, curve in zip(OTHERS, fitted, strict=True):
            pin = {name: tensor.half().float() for name, tensor in curve.pins[0].items()}
            # Statistics of the rounded midpoint are estimated on all training images; the old ones are dropped.
            moved = BezierCurve(modes[0], modes[j], (pin,)).to(engine.device).with_statistics(placed, 0.5, every)
            curves[j] = BezierCurve(modes[0], modes[j], (pin,), moved.to("cpu").statistics)
    if given.warm == "curves":
        return
    if not given.warm:
        for j, curve in curves.items():
            statistics = {f"statistics/{name}": tensor for name, tensor in curve.statistics[0.5].items()}
            pin = {f"pin/{name}": tensor for name, tensor in curve.pins[0].items()}
            hold.save_weights(f"pin-0-{j}", pin, statistics)
        networks.add("curves", {f"curve-0-{j}": curve.at(0.5) for j, curve in curves.items()})

    if given.warm in (None, "bridges"):
        plans = plans_of(net, curves, torch.rand(2, 3, 32, 32))
        plans = {name: plan for name, plan in plans.items() if not name.startswith(tuple(given.leave_out))}
        bridges: dict[str, Bridge] = {}
        try:
            bridges = fit_bridges(
                net,
                plans,
                fed(30),
                config=replace(recipe.bridge, epochs=epochs_of("bridges", f"{len(plans)} bridges")),
                mixup=recipe.mixup,
                valid=valid,
                engine=engine,
                report=hold.report("bridges"),
            )
        except Exception:
            # A failure here must not cost the students their time on the GPU.
            traceback.print_exc()
        round_bridges(bridges)
    if given.warm == "bridges":
        return
    if not given.warm:
        for name, bridge in bridges.items():
            hold.save_weights(name, dict(bridge.named_parameters()), dict(bridge.named_buffers()))
        networks.add("bridges", {}, bridges)

    students = {
        "student-3-mixup-1": plan_student(net, modes, seed=200),
        "student-labels-mixup-1": plan_student(net, (), seed=210),
    }
    try:
        learned = fit_students(
            net,
            students,
            fed(60),
            mixup=MIXUP,
            config=replace(recipe.mode, epochs=epochs_of("students", f"{len(students)} students"), seed=70),
            valid=valid,
            engine=engine,
            report=hold.report("students"),
        )
        if not given.warm:
            learned = {name: rounded(mode) for name, mode in learned.items()}
            for name, mode in learned.items():
                hold.save_weights(name, mode.params, mode.buffers)
            networks.add("students", learned)
    finally:
        if not given.warm:
            networks.table(combinations)


if __name__ == "__main__":
    main()
