"""Plan and fit bridges: what each reads and says, then all of them in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from modebridge.bridges import (
    Bridge,
    BridgeObjective,
    Kind,
    Target,
    choose_body,
    curve_target,
    label_target,
)
from modebridge.curves import Curve, check_r
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes, has_statistics
from modebridge.nets import check_tap, skeleton
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.checks import check_batches, check_mixup, held_out, least_for_bridges, least_images, trainable
from modebridge.training.engine import Engine
from modebridge.training.epochs import Report
from modebridge.training.loop import Task
from modebridge.training.outcome import train_and_look
from modebridge.training.train_config import DEFAULT, TrainConfig
from modebridge.types import Batches, Inputs

__all__ = ["BridgePlan", "fit_bridge", "fit_bridges", "plan_bridge"]


@dataclass(frozen=True)
class BridgePlan:
    """One bridge to train: what it is, whose features it reads and what it is to say."""

    bridge: Bridge
    reads: tuple[Mode, ...]
    target: Target

    def __repr__(self) -> str:
        return f"BridgePlan({self.bridge.extra_repr()}, target={self.target.what})"


def plan_bridge(
    net: nn.Module,
    curve: Curve,
    images: Inputs,
    *,
    kind: Kind = "I",
    source: Literal["start", "end"] = "start",
    tap: str | None = None,
    slim: float = 2,
    budget: float | None = None,
    r: float = 0.5,
    target: Target | Literal["curve", "labels"] = "curve",
    body: nn.Module | None = None,
    name: str = "bridge",
    seed: int = 0,
) -> BridgePlan:
    """Decide on a bridge of a curve before training it.

    Args:
        net: the base network.
        curve: between the two modes; its point at r is the paper's target.
        images: a few images (or inputs by name), to see the feature's shape.
        kind: "I" reads one end, "II" both.
        source: which end a type I bridge reads.
        tap: where the feature is read; None takes what `modebridge.inspect` chooses, the paper's place in its networks.
        slim: divides the widths; 2 is the paper's small bridge, 1 its medium one.
        budget: at most this share of the base's FLOPs, 0.05 for 5 %, instead of `slim`: the widest body that fits; its
            share of the parameters may be far larger (`bridge.parameter_share`).
        r: the position on the curve to predict.
        target: "curve", "labels" (a control), or any `Target`.
        body: a module of your own from feature(s) to logits, instead of the built one; what has `requires_grad=False`
            in it stays as it is.
        name: how tables and errors call it.
        seed: of the bridge's weights.

    Returns:
        The plan; `plan.bridge.share` and `.parameter_share` are its FLOPs and parameters in units of the base, counted.
    """
    _check_choices(net, curve, kind, source, r)
    reads = (curve.start, curve.end) if kind == "II" else (curve.start if source == "start" else curve.end,)
    chosen = choose_body(
        net, images, kind, tap=tap, slim=slim, budget=budget, body=body, state=curve.start.state, name=name, seed=seed
    )
    if target == "curve":
        target = curve_target(curve, r)
    elif target == "labels":
        target = label_target()
    elif not isinstance(target, Target):
        raise ModebridgeError(
            f"Expected target to be 'curve', 'labels' or a Target, but got '{target}'; "
            "see modebridge.bridges for the others."
        )
    return BridgePlan(Bridge(chosen.body, reads, chosen.tap, target.r, name, chosen.share), reads, target)


def _check_choices(net: nn.Module, curve: Curve, kind: str, source: str, r: float) -> None:
    check_r(r)
    if not isinstance(curve, Curve):
        raise ModebridgeError(
            f"Expected a bridge to be given a curve, but got {type(curve).__name__}; make one with fit_curve."
        )
    check_modes(net, [curve.start, curve.end], 2, "a bridge's curve")
    if kind not in ("I", "II"):
        raise ModebridgeError(f"Expected the kind of bridge to be 'I' or 'II', but got '{kind}'; choose one.")
    if source not in ("start", "end"):
        raise ModebridgeError(f"Expected source to be 'start' or 'end', but got '{source}'; choose one.")


def fit_bridges(
    net: nn.Module,
    plans: Mapping[str, BridgePlan],
    train_data: Batches,
    *,
    mixup: float = 0.4,
    config: TrainConfig = DEFAULT,
    valid: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
) -> dict[str, Bridge]:
    """Train all bridges in one pass over the data: every frozen network runs once a batch.

    Args:
        net: the base network.
        plans: the bridges by name, from `plan_bridge`.
        train_data: yields (images, labels); labels are used by controls only.
        mixup: alpha of the per-sample mixup; 0 turns it off.
        config: epochs and optimiser; "best" keeps the lowest validation KL of each bridge.
        valid: held-out data for `config.keep == "best"`.
        engine: device and precision; None is the CPU in fp32.
        checkpoints: where to save on the way and to go on from.
        report: told of progress.
    """
    if not plans:
        raise ModebridgeError("Expected at least one bridge to train, but got none; give some plans.")
    if config.average_from and any(has_statistics(plan.bridge) for plan in plans.values()):
        raise ModebridgeError(
            "Expected average_from to be 0 for bridges with batch norm, but got "
            f"{config.average_from}; the mean's running statistics are not estimated for bridges."
        )
    for plan in plans.values():
        trainable(plan.bridge.body)
    engine = engine or Engine()
    modes: Sequence[Mode] = list({m.id: m for plan in plans.values() for m in plan.reads}.values())
    objective = BridgeObjective(
        skeleton(net).to(engine.device),
        {name: plan.bridge for name, plan in plans.items()},
        {name: plan.target for name, plan in plans.items()},
        modes,
        mixup,
        compiled=engine.compiled,
        fan_out=engine.fan_out,
        synced=engine.synced,
        shares=engine.shares,
    )
    least = partial(least_for_bridges, net, [plan.bridge for plan in plans.values()], engine)
    train_data = check_batches(net, modes[0], train_data, "train", least=least)
    check_mixup(mixup, train_data)
    task = Task(objective, train_data, held_out(net, modes[0], valid, config, engine), config.seed)
    (states,) = train_and_look(
        [task], config, train_data.classes, engine=engine, checkpoints=checkpoints, report=report
    )
    return objective.result(states)


def fit_bridge(
    net: nn.Module,
    curve: Curve,
    train_data: Batches,
    *,
    kind: Kind = "I",
    source: Literal["start", "end"] = "start",
    tap: str | None = None,
    slim: float = 2,
    budget: float | None = None,
    r: float = 0.5,
    target: Target | Literal["curve", "labels"] = "curve",
    body: nn.Module | None = None,
    name: str = "bridge",
    mixup: float = 0.4,
    config: TrainConfig = DEFAULT,
    valid: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
) -> Bridge:
    """Train one bridge of a curve: `plan_bridge` and `fit_bridges` in one call, with their arguments."""
    _check_choices(net, curve, kind, source, r)
    if tap is not None:
        check_tap(net, tap)
    least = partial(least_images, net, engine=engine or Engine(), norms_only=True)
    checked = check_batches(net, curve.start, train_data, "train", least=least)
    images = checked.first()
    curve = curve.with_statistics(net, r, checked)
    plan = plan_bridge(
        net,
        curve,
        images,
        kind=kind,
        source=source,
        tap=tap,
        slim=slim,
        budget=budget,
        r=r,
        target=target,
        body=body,
        name=name,
        seed=config.seed,
    )
    return fit_bridges(
        net,
        {name: plan},
        train_data,
        mixup=mixup,
        config=config,
        valid=valid,
        engine=engine,
        checkpoints=checkpoints,
        report=report,
    )[name]
