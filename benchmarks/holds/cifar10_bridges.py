"""Holds 2 and 3 on the modes of results/cifar10-frn: a fourth mode, three curves, and all bridges and controls.

    python benchmarks/holds/cifar10_bridges.py DIR OUT --modes results/cifar10-frn/weights --seconds 1500 --rates WARM
    python benchmarks/holds/cifar10_bridges.py - WARM --warm mode      # then curves, bridges: compile and time a stage
    python benchmarks/holds/cifar10_bridges.py - OUT --tiny            # a dry run on a CPU

Settings are those of the recipe cifar10; see cifar10_modes.py for the last 72 images and for half precision. The mode
and the curves get 200 epochs, the bridges the remaining time.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from common import Hold, WholeBatches, cifar10_setting, cifar10_splits, logits_of_members, quiet, rounded, row
from safetensors.torch import save_file

from modebridge import Mode, fit_bridges, fit_curves, fit_modes, plan_bridge
from modebridge.bridges import ensemble_target, mode_target
from modebridge.curves import BezierCurve
from modebridge.data import Loader, load_modes
from modebridge.nets import ResNet
from modebridge.scoring import LogitTable, MemberCost
from modebridge.training import BridgePlan, TrainConfig

OTHERS = (1, 2, 3)
"""The ends of the curves that start at mode 0."""
STAGES = ("mode", "curves", "bridges")


def plans_of(net: ResNet, curves: dict[int, BezierCurve], images: torch.Tensor) -> dict[str, BridgePlan]:
    """Every bridge and control, by name."""
    first = curves[1]
    modes = [first.start, *(curves[j].end for j in OTHERS)]
    wanted: dict[str, tuple[int, dict[str, object]]] = {
        **{f"I-0-{j}-small": (j, {}) for j in OTHERS},
        **{f"other-0-{j}-small": (j, {"target": mode_target(curves[j].end)}) for j in OTHERS},
        "I-0-1-medium": (1, {"slim": 1}),
        "I-1-0-small": (1, {"source": "end"}),
        "II-0-1-small": (1, {"kind": "II"}),
        "II-labels-small": (1, {"kind": "II", "target": "labels"}),
        "labels-0-small": (1, {"target": "labels"}),
        "labels-0-small-b": (1, {"target": "labels"}),
        "labels-0-medium": (1, {"target": "labels", "slim": 1}),
        "other-0-1-medium": (1, {"target": mode_target(first.end), "slim": 1}),
        "mean-0-1-small": (1, {"target": ensemble_target(modes[:2])}),
        "mean-4-small": (1, {"target": ensemble_target(modes)}),
        "mean-4-medium": (1, {"target": ensemble_target(modes), "slim": 1}),
        "self-0-small": (1, {"target": mode_target(first.start)}),
    }
    return {
        name: plan_bridge(net, curves[j], images, name=name, seed=100 + k, **choice)  # type: ignore[arg-type]
        for k, (name, (j, choice)) in enumerate(wanted.items())
    }


def combinations(bridges: list[str]) -> list[tuple[str, ...]]:
    """The rows of the table."""
    modes = tuple(f"mode-{k}" for k in range(4))
    on_one = [name for name in bridges if not name.startswith(("I-1", "II"))]
    rows: list[tuple[str, ...]] = [modes[:count] for count in range(1, 5)]
    rows += [(name,) for name in modes[1:]]
    rows += [("mode-0", f"curve-0-{j}") for j in OTHERS] + [(f"curve-0-{j}",) for j in OTHERS]
    rows += [("mode-0", *(f"curve-0-{j}" for j in OTHERS))]
    rows += [(name,) for name in bridges] + [("mode-0", name) for name in on_one]
    rows += [("mode-1", "I-1-0-small")]
    rows += [("mode-0", "mode-1", name) for name in ("II-0-1-small", "II-labels-small", "labels-0-medium")]
    rows += [
        ("mode-0", *(f"{kind}-0-{j}-small" for j in OTHERS[:count])) for kind in ("I", "other") for count in (2, 3)
    ]
    rows += [
        ("mode-0", "labels-0-small", "labels-0-small-b"),
        ("mode-0", "I-0-1-small", "labels-0-small"),
        ("mode-0", "other-0-1-small", "labels-0-small"),
        ("mode-0", "I-0-1-small", "other-0-1-small", "labels-0-small"),
    ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--modes", type=Path, help="folder with the weights of modes 0 to 2, or 0 to 3 if the fourth is already trained"
    )
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument(
        "--epochs", type=int, default=200, help="epochs of mode and curves, and maximum epochs of bridges"
    )
    parser.add_argument("--rates", type=Path, help="folder of the warm-up runs, for seconds per epoch")
    parser.add_argument("--warm", choices=STAGES)
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
        given.epochs = 8 if given.warm == "bridges" else 4
    net = ResNet(spec)
    valid = Loader(splits["valid"], 20 if given.tiny else 2500)
    plain = {split: Loader(splits[split], 500) for split in ("valid", "test")}

    def fed(seed: int) -> WholeBatches:
        return WholeBatches(Loader(splits["train"], batch, shuffle=True, seed=seed, pad=4, flip=True))

    def spent(config: TrainConfig, epochs: int) -> TrainConfig:
        return replace(config, epochs=epochs)

    modes = load_modes(net, given.modes) if given.modes else []
    modes += [Mode.from_module(ResNet(spec, torch.Generator().manual_seed(k))) for k in range(len(modes), 3)]
    if len(modes) == 3 and given.warm in (None, "mode"):
        (fourth,) = fit_modes(
            [ResNet(spec, torch.Generator().manual_seed(3))],
            [fed(13)],
            config=spent(recipe.mode, given.epochs),
            valid=valid,
            engine=engine,
            report=hold.report("mode"),
        )
        modes.append(rounded(fourth))
    elif len(modes) == 3:
        modes.append(Mode.from_module(ResNet(spec, torch.Generator().manual_seed(3))))
    if given.warm == "mode":
        return
    named = {f"mode-{k}": mode for k, mode in enumerate(modes)}
    if not given.warm:
        hold.save(logits_of_members(net, named, {}, plain, engine))
        save_file(
            {key: tensor.half().contiguous() for key, tensor in modes[3].state.items()},
            out / "weights-mode-3.safetensors",
        )
        labels = {split: splits[split].labels.cpu().clone() for split in ("valid", "test")}
        save_file(labels, out / "labels.safetensors")
        hold.say("modes scored")
    pins = [mode.params for mode in modes[1:]]
    if given.warm in (None, "curves"):
        trained = fit_curves(
            net,
            [(modes[0], modes[j]) for j in OTHERS],
            [fed(20 + j) for j in OTHERS],
            config=spent(recipe.curve, given.epochs),
            pin_start=recipe.pin_start,
            valid=valid,
            engine=engine,
            report=hold.report("curves"),
        )
        pins = [{name: tensor.half().float() for name, tensor in curve.pins[0].items()} for curve in trained]
    if given.warm == "curves":
        return
    curves = {j: BezierCurve(modes[0], modes[j], (pin,), {}) for j, pin in zip(OTHERS, pins, strict=True)}
    named |= {f"curve-0-{j}": curve.at(0.5) for j, curve in curves.items()}
    if not given.warm:
        hold.save(logits_of_members(net, {name: named[name] for name in named if "curve" in name}, {}, plain, engine))
        for j, curve in curves.items():
            pin = {name: tensor.half().contiguous() for name, tensor in curve.pins[0].items()}
            save_file(pin, out / f"weights-pin-0-{j}.safetensors")
        hold.say("curves scored")
    plans = plans_of(net, curves, torch.rand(2, 3, 32, 32))
    epochs = given.epochs
    if given.rates is not None and not given.warm:
        # The fastest epoch, because a warm-up run shares the GPU with others most of the time.
        epoch_s = json.loads((given.rates / "bridges" / "stages.json").read_text())["bridges"]["fastest_s"]
        epochs = max(2, min(epochs, int((hold.left - 60) / epoch_s)))
    hold.say(f"{len(plans)} bridges x {epochs} epochs in the remaining {hold.left:.0f} s")
    bridges = fit_bridges(
        net,
        plans,
        fed(30),
        config=spent(recipe.bridge, epochs),
        valid=valid,
        engine=engine,
        report=hold.report("bridges"),
    )
    if given.warm:
        return
    logits = logits_of_members(net, named, bridges, plain, engine)
    hold.save({name: logits[name] for name in bridges})
    for name, bridge in bridges.items():
        weights = {key: tensor.half().contiguous().cpu() for key, tensor in bridge.state_dict().items()}
        save_file(weights, out / f"weights-{name}.safetensors")
    base = sum(p.numel() for p in net.parameters())
    costs = {name: MemberCost(1.0, base) for name in named}
    for name, bridge in bridges.items():
        reads = ("mode-1",) if name.startswith("I-1") else ("mode-0", "mode-1")[: len(bridge.reads)]
        costs[name] = MemberCost(bridge.share or 0.0, sum(p.numel() for p in bridge.parameters()), reads)
    table = {split: {name: parts[split].half() for name, parts in logits.items()} for split in ("valid", "test")}
    answers = LogitTable(table["valid"], table["test"], labels["valid"], labels["test"], costs)
    print("| members | FLOPs | params | ACC % | NLL | ECE | Brier | T |\n|---|---|---|---|---|---|---|---|")
    for members in combinations(list(bridges)):
        print(row(" + ".join(members), answers, members), flush=True)
    hold.say("done")


if __name__ == "__main__":
    main()
