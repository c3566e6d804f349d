"""Fit bridges: one, or many in one pass."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from modebridge.batches import check_batch, check_labels, first_batch, go_to_epoch
from modebridge.bridges import READS, Bridge, Kind, label_target, plan_bridge
from modebridge.bridges.bridge import Aim, check_choices, listed, other_targets
from modebridge.bridges.build import check_budget
from modebridge.curves import Curve
from modebridge.ensembles import Ensemble
from modebridge.ensembles.forward import check_logits
from modebridge.errors import ModebridgeError
from modebridge.matching import suits_cutmix
from modebridge.modes import Mode, Trained, has_statistics, to_modes
from modebridge.nets import frozen_copy, listed_taps, run
from modebridge.nets.flops import feature_shapes, zeros
from modebridge.objectives import BridgeObjective
from modebridge.training.checks import (
    check_batches,
    check_config,
    check_train,
    least_images,
    mixing_of,
    run_training,
    runs_on,
    trainable,
    warn_if_worse,
)
from modebridge.training.config import DEFAULT, Engine, TrainConfig
from modebridge.types import IGNORED, Batch, Batches

PAPER_MIXUP = 0.4
"""The paper's alpha of mixup."""
BEST_CUTMIX = 1.0
"""The alpha of CutMix for heads on other modes."""
LABELS_BELOW = 0.95
"""Below this training accuracy a bridge learns from labels too.

Measured (docs/results/default.md): on digits a head on labels gains at any training accuracy, most below 92 %. Above
95 % it is left out because it raised the NLL on CIFAR-10 (paper's blocks, mixup; with CutMix it was not tried there).
"""
CUTMIX_FROM = 0.8
"""From this training accuracy on heads are trained with CutMix: at 70 % it gains nothing, or costs."""
COSTLY = 1.0
"""Share of the network's FLOPs that nobody expects of a small network."""
IMAGES = 1000
"""How many training images to look at, rounded up to whole batches."""


def fit_bridge(
    net: nn.Module,
    modes: Curve | Mode | Sequence[Trained],
    train: Batches,
    config: TrainConfig = DEFAULT,
    *,
    budget: float | None = None,
    kind: Kind = "I",
    tap: str | Sequence[str] | None = None,
    target: Aim | Sequence[Aim] = "curve",
    body: nn.Module | None = None,
    valid: Batches | None = None,
) -> Bridge:
    """Train one bridge: a small network that predicts other networks from a feature of the first.

    With modes and neither a target nor a body, the modes are run on about 1,000 training images as `train` draws them,
    with a warning if one is no better than chance. If one that the bridge reads is right on less than 95 % of them, the
    bridge gets a head on labels beside those on the other modes, with a warning: on networks that do not fit their
    training data labels teach it what the other networks cannot (docs/results/default.md).

    Unless the config sets mixup or CutMix, bridges are trained with mixup 0.4, as in the paper; but with CutMix 1.0 if
    all heads are on other modes, the inputs images or tokens, and the modes right on 80 % of the training data or
    more. There it did better (docs/results/default.md) unless training was short: below some hundred steps set
    mixup=0.4.

    Args:
        net: the base network.
        modes: modes of which the bridge reads the first (type II: the first two) and gets one head for each of the
            others: modes, trained modules, state dicts or paths of checkpoints. Or, as in the paper, a curve, whose
            start it reads and whose midpoint it learns.
        train: yields (images, labels); only heads on labels learn from the labels.
        config: all options of training.
        budget: maximum share of the base's FLOPs (0.05 for 5 %): the widest body that fits is built, with no more
            parameters than the base. None is the paper's small bridge.
        kind: "I" reads one mode, "II" two.
        tap: where features are read, one place or several; None uses the choice of `modebridge.inspect`, which for the
            paper's networks is the paper's.
        target: what to learn instead: "labels" (a control), or any `Target` of `modebridge.bridges`; a list gives the
            bridge one head per target.
        body: your own module from feature(s) to logits, used instead of building one; its parameters with
            `requires_grad=False` are not trained.
        valid: held-out data for `config.keep == "best"`, the lowest KL, and to warn if the bridge does not help.

    Returns:
        The bridge, to use as in `Ensemble(net, modes[:1], [bridge])`.

    >>> nets = [nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)) for _ in range(3)]
    >>> train = [(torch.rand(8, 1, 8, 8), torch.arange(8) % 5) for _ in range(4)]
    >>> modes = [Mode.from_module(net) for net in nets]
    >>> bridge = fit_bridge(nets[0], modes, train, TrainConfig(epochs=1), budget=0.2)
    >>> bridge.heads, bridge.share <= 0.2
    (2, True)
    """
    check_config(config)
    check_budget(budget)
    given = to_modes(net, modes)
    check_choices(net, given, kind)
    listed_taps(net, tap)  # a wrong tap has its own error
    engine = Engine.of(config, net)
    batch = first_batch(train, "train")
    if target == "curve" and isinstance(given, Curve):
        if has_statistics(net) and 0.5 not in given.statistics:
            checked = check_train(net, given.start, train, engine, batch, norms_only=True)
            given = given.with_statistics(net, 0.5, checked)
    elif target == "curve":
        others = other_targets(listed(given), kind)
        accuracies, chance = check_chance(net, listed(given), train, engine)
        accuracy = min(accuracies[: READS[kind]])
        if chance < accuracy < LABELS_BELOW and body is None:
            warnings.warn(
                f"The bridge gets a head on labels too, because a network that it reads is right on only "
                f"{accuracy:.0%} of its training data. Pass target= to choose what it learns.",
                stacklevel=2,
            )
            target = [*others, label_target()]
        default = config.mixup is None and config.cutmix is None
        if default and accuracy >= CUTMIX_FROM and suits_cutmix(batch[0]):
            config = replace(config, cutmix=BEST_CUTMIX)
    with runs_on(net, batch[0], "train"):
        options: dict[str, Any] = {"kind": kind, "tap": tap, "budget": budget, "body": body, "seed": config.seed}
        bridge = plan_bridge(net, given, batch[0], target=target, **options)
    if budget is None and body is None and (bridge.share or 0.0) > COSTLY:
        warnings.warn(
            f"The bridge costs {bridge.share:.0%} of the network, as the paper's does not fit it; pass budget=0.05.",
            stacklevel=2,
        )
    fitted = _fit_all(net, {"bridge": bridge}, train, config, valid, engine, batch)["bridge"]
    if valid is not None:
        base = list(bridge.modes)
        hint = "read elsewhere (tap=, see modebridge.inspect)"
        alone = [] if isinstance(given, Curve) else [Ensemble(net, [mode]) for mode in listed(given)[1:]]
        warn_if_worse(
            Ensemble(net, base), Ensemble(net, base, [fitted]), valid, config, "With the bridge", hint, *alone
        )
    return fitted


def fit_many(
    net: nn.Module,
    bridges: Mapping[str, Bridge],
    train: Batches,
    config: TrainConfig = DEFAULT,
    *,
    valid: Batches | None = None,
) -> dict[str, Bridge]:
    """Train many bridges in one pass over the data: every frozen network runs once per batch.

    Each gets the same result as if trained alone. Unless the config sets mixup or CutMix, they are trained with mixup
    0.4, as in the paper.

    Args:
        net: the base network.
        bridges: untrained bridges from `modebridge.bridges.plan_bridge`, by name.
        train: yields (images, labels); only heads on labels learn from the labels.
        config: all options of training; "best" keeps the lowest validation KL of each bridge.
        valid: held-out data for `config.keep == "best"`.
    """
    if not isinstance(bridges, Mapping) or not bridges:
        got = type(bridges).__name__ if bridges else "none"
        raise ModebridgeError(f'Expected bridges by name to train, but got {got}; pass a dict, {{"small": bridge}}.')
    check_config(config)
    return _fit_all(net, bridges, train, config, valid, Engine.of(config, net), first_batch(train, "train"))


def _fit_all(
    net: nn.Module,
    bridges: Mapping[str, Bridge],
    train: Batches,
    config: TrainConfig,
    valid: Batches | None,
    engine: Engine,
    batch: Batch,
) -> dict[str, Bridge]:
    if config.average_from and any(map(has_statistics, bridges.values())):
        raise ModebridgeError(
            "Expected average_from to be 0 for bridges with batch norm, but got "
            f"{config.average_from}; the mean's running statistics are not estimated for bridges."
        )
    for bridge in bridges.values():
        trainable(bridge.body)
    first = next(iter(bridges.values()))
    if config.optimizer == "auto":
        # On a small ViT on digits, heads have .736 of NLL after 30 epochs of SGD, .807 or more after AdamW.
        config = replace(config, optimizer="sgd")
    # The network itself is frozen. One bridge of each kind: recipes train dozens that differ only in their weights.
    shapes = feature_shapes(net, batch[0], sorted({tap for bridge in bridges.values() for tap in bridge.taps}))
    kinds = {(repr(bridge.body), bridge.taps, bridge.kind): bridge for bridge in bridges.values()}.values()
    inputs = [zeros(bridge.body, *[shapes[tap] for _, tap in bridge.places]) for bridge in kinds]
    pairs = zip(kinds, inputs, strict=True)
    axes = len(first.outputs)
    least = max(
        least_images(bridge.body, *each, engine=engine, axes=axes + min(bridge.heads, 2)) for bridge, each in pairs
    )
    data = check_batches(train, "train", first.outputs, batch[1], least)
    mixup, cutmix = mixing_of(config, PAPER_MIXUP, batch[0])
    objective = BridgeObjective(frozen_copy(net).to(engine.device), bridges, mixup, cutmix)
    engine.speed_up(objective.bases)
    (states,) = run_training([objective], [data], [config.seed], "bridge", net, first.modes[0], valid, config, engine)
    return objective.result(states)


def check_chance(
    net: nn.Module, modes: Sequence[Mode], train: Batches, engine: Engine, what: str = "network"
) -> tuple[list[float], float]:
    """Warn if modes are no better than chance, or far behind others; returns the accuracy of each, and that of chance.

    Labels that are predicted so are perhaps no real ones, which imitation does not need.
    """
    accuracies, counts = training_accuracy(net, modes, train, engine)
    chance, best = by_chance(counts), max(accuracies)
    for k, accuracy in enumerate(accuracies, 1):
        if chance < accuracy < best / 2:
            warnings.warn(
                f"{what.capitalize()} {k} of {len(modes)} is right on only {accuracy:.0%} of the training data, "
                f"another one on {best:.0%}: check its file, and the order of its classes.",
                stacklevel=3,
            )
        if accuracy <= chance < 1:
            warnings.warn(
                f"{what.capitalize()} {k} of {len(modes)} is right on only {accuracy:.0%} of the training data, no "
                f"better than chance (the most frequent label is {max(counts) / max(sum(counts), 1):.0%} of it): check "
                "that it is trained, and that images and labels are as in its training.",
                stacklevel=3,
            )
    return accuracies, chance


def by_chance(counts: Sequence[int]) -> float:
    """The highest accuracy that needs no skill, from the number of images with each label.

    Always the most frequent label, or three standard errors above guessing.

    >>> [round(by_chance(counts), 3) for counts in ([100] * 10, [600, 400], [9, 0])]
    [0.128, 0.6, 1.0]
    """
    images, guess = max(sum(counts), 1), 1 / max(len(counts), 1)
    return max(max(counts, default=0) / images, guess + 3 * math.sqrt(guess * (1 - guess) / images))


@torch.no_grad()
def training_accuracy(
    net: nn.Module, modes: Sequence[Mode], train: Batches, engine: Engine
) -> tuple[list[float], list[int]]:
    """The accuracy of modes on the first batches of epoch 0, and how many images (or places) have each label."""
    base, states = frozen_copy(net).to(engine.device), [mode.to(engine.device) for mode in modes]
    right, counts, images = [0] * len(modes), torch.zeros(1, dtype=torch.long), 0
    go_to_epoch(train, 0)
    for item in train:
        batch = check_batch(item, "train")
        (inputs, labels), _ = engine.moved(batch, {})
        images += len(labels)
        for k, state in enumerate(states):
            with runs_on(net, batch[0], "train", engine.device), engine.precision():
                logits = run(base, state.params, state.buffers, inputs)
            check_labels(batch[1], logits.shape[1:], "train")
            check_logits(logits, net)
            right[k] += int((logits.argmax(dim=-1) == labels).sum())
        counts = counts + torch.bincount(batch[1][batch[1] != IGNORED].cpu(), minlength=logits.shape[-1])
        if images >= IMAGES:
            break
    return [one / max(int(counts.sum()), 1) for one in right], counts.tolist()
