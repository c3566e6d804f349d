"""Hold 1: Tiny ImageNet, ResNet-34 with FRN: two modes, one curve, 12 bridges and controls.

    python benchmarks/holds/tin200.py DECODED.safetensors OUT --seconds 1450
    python benchmarks/holds/tin200.py - OUT --warm modes      # compile a stage on random images, for the cache
    python benchmarks/holds/tin200.py - OUT --tiny            # a dry run on a CPU

DECODED comes from tin200_decode.py. Settings are those of the recipe tin200 except for the epochs, which time limits;
the pin starts at the midpoint, and the last epoch is kept. Logits of every member are saved after every stage.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from common import Hold, logits_of_members, quiet, random_splits, row
from safetensors.torch import load_file, save_file

from modebridge import Mode, TrainConfig, fit_bridges, fit_curves, fit_modes, plan_bridge
from modebridge.bridges import ensemble_target, mode_target
from modebridge.curves import BezierCurve
from modebridge.data import ImageSet, Loader
from modebridge.nets import ResNet, ResNetSpec, frozen_copy, spec_of
from modebridge.scoring import LogitTable, MemberCost, curve_profile
from modebridge.training import BridgePlan, Engine

TRAIN = TrainConfig(epochs=1, weight_decay=5e-4, nesterov="authors")
BRIDGE = TrainConfig(epochs=1, nesterov="authors")
BATCH, BRIDGE_BATCH = 128, 256
WHOLE = 702 * BATCH
"""Number of training images: full batches of both sizes, since a smaller one would be compiled again (skips 144)."""

BRIDGES = (
    "I-0-1-small",
    "I-0-1-medium",
    "I-1-0-small",
    "II-0-1-small",
    "labels-0-1-small",
    "labels-0-1-medium",
    "II-labels-small",
    "other-0-1-small",
    "mean-0-1-small",
    "self-0-small",
    "I-0-1-small-b",
    "labels-0-1-small-b",
)
TARGETS = {
    **{name: ("curve-0-1",) for name in BRIDGES if name.startswith("I") and "labels" not in name},
    "other-0-1-small": ("mode-1",),
    "mean-0-1-small": ("mode-0", "mode-1"),
    "self-0-small": ("mode-0",),
}
"""The members whose mean each bridge imitates; the other bridges learn from labels."""
COMBINATIONS: list[tuple[str, ...]] = [
    ("mode-0",),
    ("mode-1",),
    ("mode-0", "mode-1"),
    ("curve-0-1",),
    ("mode-0", "curve-0-1"),
    ("mode-0", "mode-1", "curve-0-1"),
    *((name,) for name in BRIDGES),
    *(("mode-0", name) for name in BRIDGES if not name.startswith(("I-1", "II"))),
    ("mode-1", "I-1-0-small"),
    ("mode-0", "mode-1", "II-0-1-small"),
    ("mode-0", "mode-1", "II-labels-small"),
    ("mode-0", "mode-1", "labels-0-1-medium"),
    ("mode-0", "I-0-1-small", "I-0-1-small-b"),
    ("mode-0", "labels-0-1-small", "labels-0-1-small-b"),
    ("mode-0", "I-0-1-small", "labels-0-1-small"),
    ("mode-0", "I-0-1-small", "other-0-1-small"),
    ("mode-0", "labels-0-1-small", "other-0-1-small"),
    ("mode-0", "I-0-1-small", "labels-0-1-small", "other-0-1-small"),
    ("mode-0", "labels-0-1-small", "labels-0-1-small-b", "other-0-1-small"),
    ("mode-0", "labels-0-1-medium", "other-0-1-small"),
]
"""The rows of the table."""


def plans_of(net: ResNet, curve: BezierCurve, images: torch.Tensor) -> dict[str, BridgePlan]:
    """Every bridge and control of the hold, by name."""
    start, end = curve.start, curve.end
    wanted: dict[str, dict[str, object]] = {
        "I-0-1-small": {},
        "I-0-1-medium": {"slim": 1},
        "I-1-0-small": {"source": "end"},
        "II-0-1-small": {"kind": "II"},
        "labels-0-1-small": {"target": "labels"},
        "labels-0-1-medium": {"target": "labels", "slim": 1},
        "II-labels-small": {"kind": "II", "target": "labels"},
        "other-0-1-small": {"target": mode_target(end)},
        "mean-0-1-small": {"target": ensemble_target([start, end])},
        "self-0-small": {"target": mode_target(start)},
        "I-0-1-small-b": {},
        "labels-0-1-small-b": {"target": "labels"},
    }
    return {
        name: plan_bridge(net, curve, images, name=name, seed=100 + k, **choice)  # type: ignore[arg-type]
        for k, (name, choice) in enumerate(wanted.items())
    }


def tin200_setting(*, tiny: bool) -> tuple[Engine, ResNetSpec, int, int]:
    """The engine, the network, and the batch sizes of networks and bridges; small ones for a dry run."""
    spec = spec_of("tin200")
    if tiny:
        return Engine(), replace(spec, stages=(1, 1, 1, 3), widths=(8, 8, 8, 16)), 4, 8
    engine = Engine.best()
    if engine.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return engine, spec, BATCH, BRIDGE_BATCH


def tin200_splits(place: str, device: torch.device, drawn: int) -> dict[str, ImageSet]:
    """The splits in a decoded file, without the last training images; for "-", `drawn` random training images."""
    if place == "-":
        splits = random_splits(drawn, (3, 64, 64), 200, held_out=500)
    else:
        data = load_file(place)
        splits = {
            split: ImageSet(data[f"{split}_images"], data[f"{split}_labels"], 200)
            for split in ("train", "valid", "test")
        }
    splits["train"] = splits["train"].part(0, min(WHOLE, len(splits["train"])))
    return {name: split.to(device) for name, split in splits.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=1450)
    parser.add_argument("--modes", type=int, default=26, help="epochs")
    parser.add_argument("--curve", type=int, default=32, help="epochs")
    parser.add_argument("--bridges", type=int, default=40, help="maximum epochs; fewer if time is short")
    parser.add_argument("--bridge-epoch", type=float, default=15.6, help="planned seconds per epoch of bridges")
    parser.add_argument("--warm", choices=["modes", "curve", "bridges"])
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    quiet()
    given.out.mkdir(parents=True, exist_ok=True)
    hold = Hold(given.out, given.seconds)
    engine, spec, batch, bridge_batch = tin200_setting(tiny=given.tiny)
    splits = tin200_splits(given.data, engine.device, 2 * bridge_batch)
    train = splits["train"]
    hold.say(f"read {len(train)} training images; {engine}")

    def fed(seed: int, size: int) -> Loader:
        return Loader(train, size, shuffle=True, seed=seed, pad=4, flip=True)

    plain = {split: Loader(splits[split], 500) for split in ("valid", "test")}
    nets = [ResNet(spec, torch.Generator().manual_seed(k)) for k in (0, 1)]
    if given.tiny or given.warm:
        given.modes = given.curve = given.bridges = 2
    if given.warm in (None, "modes"):
        modes = fit_modes(
            nets,
            [fed(10 + k, batch) for k in (0, 1)],
            config=replace(TRAIN, epochs=given.modes),
            engine=engine,
            report=hold.report("modes"),
        )
    else:
        modes = [Mode.from_module(net) for net in nets]
    if given.warm == "modes":
        return
    if given.warm is None:
        named = {"mode-0": modes[0], "mode-1": modes[1]}
        hold.save(logits_of_members(nets[0], named, {}, plain, engine))
        save_file(
            {split: splits[split].labels.cpu().clone() for split in ("valid", "test")}, given.out / "labels.safetensors"
        )
        hold.say("modes scored")
    if given.warm in (None, "curve"):
        (curve,) = fit_curves(
            nets[0],
            [(modes[0], modes[1])],
            [fed(20, batch)],
            config=replace(TRAIN, epochs=given.curve),
            engine=engine,
            report=hold.report("curve"),
        )
    else:
        curve = BezierCurve(modes[0], modes[1], (modes[0].params,), {})
    if given.warm == "curve":
        return
    assert isinstance(curve, BezierCurve)
    if given.warm is None:
        hold.save(logits_of_members(nets[0], {"curve-0-1": curve.at(0.5)}, {}, plain, engine))
        net = frozen_copy(nets[0]).to(engine.device)
        try:
            for point in curve_profile(net, curve.to(engine.device), plain["valid"], 9):
                hold.say(f"curve at r = {point.r:.3f}: valid accuracy {point.accuracy:.4f}, NLL {point.nll:.4f}")
        except Exception as error:  # a failed profile must not cost the bridges
            hold.say(f"no profile: {error!r}")
    plans = plans_of(nets[0], curve, torch.rand(2, 3, 64, 64))
    epochs = max(2, min(given.bridges, int((hold.left - 100) / given.bridge_epoch)))
    hold.say(f"{len(plans)} bridges x {epochs} epochs in the remaining {hold.left:.0f} s")
    bridges = fit_bridges(
        nets[0],
        plans,
        fed(30, bridge_batch),
        config=replace(BRIDGE, epochs=epochs),
        engine=engine,
        report=hold.report("bridges"),
    )
    if given.warm == "bridges":
        return
    named = {"mode-0": modes[0], "mode-1": modes[1], "curve-0-1": curve.at(0.5)}
    logits = logits_of_members(nets[0], named, bridges, plain, engine)
    hold.save({name: logits[name] for name in bridges})
    base = sum(p.numel() for p in nets[0].parameters())
    costs = {name: MemberCost(1.0, base) for name in named}
    for name, bridge in bridges.items():
        reads = ("mode-1",) if name.startswith("I-1") else ("mode-0", "mode-1")[: len(bridge.reads)]
        costs[name] = MemberCost(bridge.share or 0.0, sum(p.numel() for p in bridge.parameters()), reads)
    labels = {split: splits[split].labels.cpu().clone() for split in ("valid", "test")}
    table = {split: {name: parts[split].half() for name, parts in logits.items()} for split in ("valid", "test")}
    answers = LogitTable(table["valid"], table["test"], labels["valid"], labels["test"], costs)
    print("| members | FLOPs | params | ACC % | NLL | ECE | Brier | T |\n|---|---|---|---|---|---|---|---|")
    for members in COMBINATIONS:
        print(row(" + ".join(members), answers, members), flush=True)
    hold.say("done")


if __name__ == "__main__":
    main()
