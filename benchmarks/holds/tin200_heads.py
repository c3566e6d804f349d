"""Hold 6: Tiny ImageNet, ResNet-34 with FRN: three modes, then heads on the other modes: does the default pay here?

    python benchmarks/holds/tin200_heads.py DECODED.safetensors OUT --seconds 1450 --rates WARM
    python benchmarks/holds/tin200_heads.py - WARM --warm modes    # then mixup, cutmix: compile and time a stage
    python benchmarks/holds/tin200_heads.py - OUT --tiny           # a dry run on a CPU

DECODED comes from tin200_decode.py; settings and data are those of tin200.py. There is no curve: in hold 1 the other
mode was the better target (66 % of the way from DE-1 to DE-2 in NLL, the curve 43 %). Stage "mixup" has the references
with the paper's mixup: one head per network on another mode, on its own mode or on labels, and the heads on the other
modes with the paper's small body. Stage "cutmix" has heads with CutMix: with the library's default body for the FLOPs
of that small body, and with the small body itself; with a head on labels besides; and that with the FLOPs of the
paper's three small bridges.

Stages are planned for the epochs of hold 1. If time is short, all remaining stages get the same share of them, and
"cutmix" never gets more epochs than "mixup" had. OUT gets logits after every stage and the weights of heads (bridges/);
the weights of modes, 43 MB each, are written beside it unless --weights says otherwise.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from common import Hold, bridges_in, planned, quiet, rates_of, round_bridges, rounded
from tin200 import BRIDGE, TRAIN, WHOLE, tin200_setting, tin200_splits
from torch import Tensor

from modebridge import Mode, fit_bridges, fit_modes, plan_bridge
from modebridge.bridges import Bridge, label_target, mode_target
from modebridge.data import Loader, load_mode
from modebridge.nets import ResNet
from modebridge.recipes import find_recipe
from modebridge.scoring import LogitTable
from modebridge.training import BridgePlan
from networks import Networks

EPOCHS = {"modes": 28, "mixup": 39, "cutmix": 39}
"""Requested epochs: those of hold 1."""
STAGES = tuple(EPOCHS)
WARM_EPOCHS = {"modes": 4, "mixup": 8, "cutmix": 8}
WARM_IMAGES = 10_240
"""Images of a warm-up run: full batches of both sizes."""
BESIDE = {"modes": 35.0, "mixup": 25.0, "cutmix": 45.0}
"""Seconds of a stage outside its epochs; hold 1: 26 for two modes, 18 for bridges, 11 for the table."""
RATES = {"modes": 3 * WHOLE / 9130, "mixup": WHOLE / 6020, "cutmix": WHOLE / 6020}
"""Measured seconds per epoch, for stages that were not timed: two modes together 9,130 images/s, and 13 bridges with
three frozen networks 6,020, which is more work than the bridges here."""
MODES = tuple(f"mode-{k}" for k in range(3))


def plans_of(net: ResNet, modes: Sequence[Mode], images: Tensor) -> dict[str, dict[str, BridgePlan]]:
    """Bridges by stage and name; those with the same seed start from the same body."""
    others = [mode_target(mode) for mode in modes[1:]]
    small = plan_bridge(net, modes, images, target=others[0]).bridge.share or 0.0
    wanted: dict[str, dict[str, tuple[int, dict[str, object]]]] = {
        "mixup": {
            **{f"other-0-{j}-small": (99 + j, {"target": target}) for j, target in enumerate(others, start=1)},
            "heads-others": (110, {"target": others}),
            "self-0-small": (120, {"target": mode_target(modes[0])}),
            "labels-0-small": (121, {"target": "labels"}),
        },
        "cutmix": {
            "heads-others-default-cutmix": (130, {"budget": small}),
            "heads-others-cutmix": (110, {"target": others}),
            "heads-others-labels-default-cutmix": (
                130,
                {"target": [*others, label_target()], "budget": small, "design": "auto"},
            ),
            "heads-others-labels-x3-cutmix": (
                130,
                {"target": [*others, label_target()], "budget": 3 * small, "design": "auto"},
            ),
        },
    }
    return {
        stage: {
            name: plan_bridge(net, modes, images, name=name, seed=seed, **choice)  # type: ignore[arg-type]
            for name, (seed, choice) in bridges.items()
        }
        for stage, bridges in wanted.items()
    }


def combinations(answers: LogitTable) -> list[tuple[str, ...]]:
    """The rows of the table whose members exist."""
    rows: list[tuple[str, ...]] = [MODES[:count] for count in (1, 2, 3)]
    rows += [(MODES[0], name) for name in bridges_in(answers)]
    rows.append((MODES[0], "other-0-1-small", "other-0-2-small"))
    return [row for row in rows if all(name in answers.test for name in row)]


def expected(timed: Mapping[str, float], spent: Mapping[str, float]) -> dict[str, float]:
    """Seconds per epoch by stage: as timed, at most as measured, and more if the last stage so far took more.

    Args:
        timed: fastest epochs of the warm-up runs, which may have shared the GPU, so that `RATES` is a limit.
        spent: seconds per epoch of finished stages, in order.

    >>> timed = {"modes": 28.0, "mixup": 10.0, "cutmix": 30.0}
    >>> {stage: round(seconds, 1) for stage, seconds in expected(timed, {}).items()}
    {'modes': 28.0, 'mixup': 10.0, 'cutmix': 14.9}
    >>> {stage: round(seconds, 1) for stage, seconds in expected(timed, {"modes": 27.0, "mixup": 11.0}).items()}
    {'modes': 30.8, 'mixup': 11.0, 'cutmix': 16.4}
    """
    rates = {stage: min(seconds, RATES[stage]) for stage, seconds in timed.items()}
    slower = [max(1.0, seconds / rates[stage]) for stage, seconds in spent.items()]
    return {stage: seconds * (slower[-1] if slower else 1.0) for stage, seconds in rates.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=1450)
    parser.add_argument(
        "--epochs",
        type=int,
        nargs=2,
        default=(EPOCHS["modes"], EPOCHS["mixup"]),
        metavar=("MODES", "BRIDGES"),
        help="maximum epochs of modes and of each stage of bridges; fewer if time is short",
    )
    parser.add_argument("--rates", type=Path, help="folder of the warm-up runs, for seconds per epoch")
    parser.add_argument("--modes", type=Path, help="folder of weights-mode-0 to -2.safetensors to continue from")
    parser.add_argument("--weights", type=Path, help="folder for the weights of modes; OUT to bring them back with it")
    parser.add_argument("--warm", choices=STAGES)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    quiet()
    out = given.out / given.warm if given.warm else given.out
    out.mkdir(parents=True, exist_ok=True)
    hold = Hold(out, given.seconds)
    engine, spec, batch, bridge_batch = tin200_setting(tiny=given.tiny)
    splits = tin200_splits(given.data, engine.device, bridge_batch if given.tiny else WARM_IMAGES)
    hold.say(f"read {len(splits['train'])} training images; {engine}")
    net, recipe = ResNet(spec), find_recipe("tin200")
    most = {stage: given.epochs[stage != "modes"] for stage in STAGES}
    if given.tiny or given.warm:
        most = {stage: 2 if given.tiny else WARM_EPOCHS[stage] for stage in STAGES}

    def fed(seed: int, size: int) -> Loader:
        return Loader(splits["train"], size, shuffle=True, seed=seed, pad=4, flip=True)

    def epochs_of(stage: str, what: str) -> int:
        # Read again before every stage: warm-up runs of later stages may still have been running.
        timed = rates_of(given.rates, RATES, WHOLE / WARM_IMAGES)
        rates = expected(timed, {name: part["epoch_s"] for name, part in hold.stages.items() if "fastest_s" in part})
        epochs = most[stage] if given.warm else planned(stage, most, hold.left, rates, BESIDE)
        hold.say(f"{what} x {epochs} epochs of about {rates[stage]:.1f} s; {hold.left:.0f} s left")
        return epochs

    nets = [ResNet(spec, torch.Generator().manual_seed(k)) for k in range(len(MODES))]
    if given.modes:
        modes = [load_mode(net, given.modes / f"weights-{name}.safetensors") for name in MODES]
    elif given.warm in (None, "modes"):
        trained = fit_modes(
            nets,
            [fed(10 + k, batch) for k in range(len(MODES))],
            config=replace(TRAIN, epochs=epochs_of("modes", f"{len(MODES)} modes")),
            engine=engine,
            report=hold.report("modes"),
        )
        modes = [rounded(mode) for mode in trained]
    else:
        modes = [Mode.from_module(fresh) for fresh in nets]
    if given.warm == "modes":
        return
    if not given.warm:
        networks = Networks(net, splits, engine, hold)
        if given.weights or not given.modes:
            folder = given.weights or out.with_name(f"{out.name}-modes")
            for name, mode in zip(MODES, modes, strict=True):
                hold.save_weights(name, mode.params, mode.buffers, folder)
        networks.add("modes", dict(zip(MODES, modes, strict=True)))
        networks.table(combinations)
    plans = plans_of(net, modes, torch.rand(2, *spec.image))

    def train(stage: str) -> dict[str, Bridge]:
        bridges = fit_bridges(
            net,
            plans[stage],
            fed(30, bridge_batch),
            mixup=recipe.mixup if stage == "mixup" else recipe.heads_mixup,
            cutmix=recipe.cutmix if stage == "mixup" else recipe.heads_cutmix,
            config=replace(BRIDGE, epochs=epochs_of(stage, f"{len(plans[stage])} bridges")),
            engine=engine,
            report=hold.report(stage),
        )
        round_bridges(bridges)
        return bridges

    if given.warm:
        train(given.warm)
        return
    failed = []
    for stage in ("mixup", "cutmix"):
        try:
            bridges = train(stage)
            most["cutmix"] = int(hold.stages[stage]["epochs"])
            networks.add(stage, {}, bridges)
            for name, bridge in bridges.items():
                if bridge.heads > 1:
                    parameters, buffers = dict(bridge.named_parameters()), dict(bridge.named_buffers())
                    hold.save_weights(name, parameters, buffers, out / "bridges")
        except Exception:
            # A failure here must not cost the other stage.
            traceback.print_exc()
            failed.append(stage)
    networks.table(combinations, [MODES[:count] for count in (1, 2, 3)])
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
