"""Fit bridges, all of them in one pass."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from torch import nn

from modebridge.bridges import READS, Bridge, Kind, label_target, plan_bridge
from modebridge.bridges.build import Aim, check_choices, listed, other_targets
from modebridge.curves import Curve
from modebridge.errors import ModebridgeError
from modebridge.mixing import suits_cutmix
from modebridge.modes import Mode, has_statistics
from modebridge.nets import frozen_copy, listed_taps
from modebridge.objectives import BridgeObjective
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.checks import check_batches, check_mixing, check_train, least_for_bridges, trainable
from modebridge.training.config import DEFAULT, TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.epochs import Report
from modebridge.training.fitted import training_accuracy
from modebridge.training.outcome import How, counted, run_training
from modebridge.types import Batches

__all__ = ["BEST_CUTMIX", "PAPER_MIXUP", "fit_bridge", "fit_bridges"]

PAPER_MIXUP = 0.4
"""The paper's alpha of mixup."""
BEST_CUTMIX = 1.0
"""The alpha of CutMix for heads on other modes."""


def fit_bridges(
    net: nn.Module,
    bridges: Mapping[str, Bridge],
    train_data: Batches,
    *,
    mixup: float | None = None,
    cutmix: float | None = None,
    config: TrainConfig = DEFAULT,
    valid: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
    progress: bool | None = None,
) -> dict[str, Bridge]:
    """Train all bridges in one pass over the data: every frozen network runs once per batch.

    Args:
        net: the base network.
        bridges: untrained bridges by name, from `plan_bridge`.
        train_data: yields (images, labels); only controls and heads on labels learn from the labels.
        mixup: alpha of the per-sample mixup; 0 turns it off.
        cutmix: alpha of CutMix, for images only; 0 turns it off. With mixup as well, each batch gets one of the two. If
            only one of the two is given, the other is off. If neither is, bridges are trained with mixup 0.4, as in the
            paper; but with CutMix 1.0 if all of them are heads on other modes, the inputs images, and the modes right
            on 80 % of the training data or more. There it did better (docs/frontier.md) unless training was short:
            below some hundred steps set mixup=0.4.
        config: epochs and optimiser; "best" keeps the lowest validation KL of each bridge.
        valid: held-out data for `config.keep == "best"`.
        engine: device and precision; None means the CPU in fp32.
        checkpoints: where to save progress and resume from.
        report: called after every epoch.
        progress: show a progress bar; None shows it in terminals and notebooks unless there is a `report`.
    """
    if not bridges:
        raise ModebridgeError("Expected at least one bridge to train, but got none; pass some.")
    if config.average_from and any(map(has_statistics, bridges.values())):
        raise ModebridgeError(
            "Expected average_from to be 0 for bridges with batch norm, but got "
            f"{config.average_from}; the mean's running statistics are not estimated for bridges."
        )
    for bridge in bridges.values():
        trainable(bridge.body)
    engine = engine or Engine.of(config, net)
    modes: Sequence[Mode] = list({mode.id: mode for bridge in bridges.values() for mode in bridge.modes}.values())
    least = partial(least_for_bridges, net, list(bridges.values()), engine)
    train_data = check_batches(net, modes[0], train_data, "train", least=least)
    if mixup is None and cutmix is None:
        mixup, cutmix = config.mixup, config.cutmix
    if mixup is None and cutmix is None:
        best = all(bridge.target and bridge.target.of_modes for bridge in bridges.values()) and suits_cutmix(
            train_data.first()
        )
        best = best and training_accuracy(net, modes, train_data, train_data.classes, engine).suits_cutmix
        mixup, cutmix = (0.0, BEST_CUTMIX) if best else (PAPER_MIXUP, 0.0)
    mixup, cutmix = mixup or 0.0, cutmix or 0.0
    check_mixing(mixup, cutmix, train_data)
    objective = BridgeObjective(frozen_copy(net).to(engine.device), bridges, mixup, cutmix)
    engine.speed_up(objective.bases)
    how = How(config=config, valid=valid, engine=engine, checkpoints=checkpoints, report=report, progress=progress)
    title = counted(len(bridges), "bridge")
    (states,) = run_training([objective], [train_data], [config.seed], title, net, modes[0], **how)
    return objective.result(states)


def fit_bridge(
    net: nn.Module,
    curve: Curve | Mode | Sequence[Mode],
    train_data: Batches,
    *,
    kind: Kind = "I",
    source: Literal["start", "end"] = "start",
    tap: str | Sequence[str] | None = None,
    slim: float = 2,
    budget: float | None = None,
    r: float = 0.5,
    target: Aim | Sequence[Aim] = "curve",
    body: nn.Module | None = None,
    name: str = "bridge",
    mixup: float | None = None,
    cutmix: float | None = None,
    config: TrainConfig = DEFAULT,
    valid: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
    progress: bool | None = None,
) -> Bridge:
    """Train one bridge: `plan_bridge` and `fit_bridges` in one call, with the same arguments.

    With modes instead of a curve, and neither a target nor a body, the modes that the bridge reads are run on about
    1,000 training images as `train_data` draws them. If one is right on less than 95 % of them, the bridge gets a head
    on labels beside those on the other modes, with a warning: on networks that do not fit their training data labels
    teach it what the other networks cannot (docs/frontier.md). Labels that are predicted no better than by chance are
    not used. `target=[mode_target(mode) for mode in modes[1:]]` never adds that head; `plan_bridge` does not either.
    """
    check_choices(net, curve, kind, source, r)
    listed_taps(net, tap)  # a wrong tap has its own error
    engine = engine or Engine.of(config, net)
    start = curve.start if isinstance(curve, Curve) else listed(curve)[0]
    checked = check_train(net, start, train_data, engine, norms_only=True)
    images = checked.first()
    if isinstance(curve, Curve):
        curve = curve.with_statistics(net, r, checked)
    elif target == "curve" and body is None:
        others = other_targets(listed(curve), kind)
        fit = training_accuracy(net, listed(curve)[: READS[kind]], checked, checked.classes, engine)
        if fit.needs_labels:
            warnings.warn(
                f"The bridge gets a head on labels too, because a network that it reads is right on only "
                f"{fit.accuracy:.0%} of its training data. Pass target= to choose what it learns.",
                stacklevel=2,
            )
            target = [*others, label_target()]
        if {mixup, cutmix, config.mixup, config.cutmix} == {None} and fit.suits_cutmix and suits_cutmix(images):
            cutmix = BEST_CUTMIX
    bridge = plan_bridge(
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
    how = How(config=config, valid=valid, engine=engine, checkpoints=checkpoints, report=report, progress=progress)
    return fit_bridges(net, {name: bridge}, train_data, mixup=mixup, cutmix=cutmix, **how)[name]
