"""Fit modes and curves on labels: objectives, checks before training, and the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from modebridge.baselines import Baseline
from modebridge.batches import check_loader, first_batch, is_batch
from modebridge.curves import Curve, PinStart, check_r, start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, Trained, check_net, has_statistics, refresh_statistics, to_mode
from modebridge.nets import frozen_copy, same_architecture
from modebridge.objectives import CurveObjective, ModeObjective
from modebridge.training.checks import (
    check_config,
    check_train,
    mixing_of,
    run_training,
    trainable,
)
from modebridge.training.config import DEFAULT, Engine, TrainConfig
from modebridge.types import Batches


def fit_modes(
    nets: Sequence[nn.Module],
    train: Batches | Sequence[Batches],
    config: TrainConfig = DEFAULT,
    *,
    seeds: Sequence[int] | None = None,
    valid: Batches | None = None,
) -> list[Mode]:
    """Train networks on labels, starting from their current weights; the modules themselves are not changed.

    They are trained together, with the same result as one by one; those that differ only in their weights are compiled
    once.

    Args:
        nets: any modules that map images to logits; parameters with `requires_grad=False` are not trained. A
            `baselines.Baseline` is trained by its own method.
        train: one loader that yields (images, labels) for all, or a list with one for each network.
        config: all options of training; with `cutmix` half of the batches are mixed, with `mixup` all.
        seeds: one seed per network; by default `config.seed` and up.
        valid: held-out data for `config.keep == "best"`.

    Returns:
        A mode per network; `net = mode.load(net)` is a copy of the network with its weights.

    >>> import torch
    >>> train = [(torch.rand(8, 4), torch.arange(8) % 3)]
    >>> first, second = fit_modes([nn.Linear(4, 3), nn.Linear(4, 3)], train)
    """
    check_config(config)
    given: object = nets
    if not isinstance(given, Sequence):
        got = "one module; put it" if isinstance(given, nn.Module) else f"a {type(given).__name__}; put its networks"
        raise ModebridgeError(f"Expected a list of networks, but got {got} in a list.")
    for net in nets:
        check_net(net)
    check_loader(train, "train")
    one_for_all = not isinstance(train, Sequence) or any(is_batch(item) for item in train[:1])
    loaders: Sequence[Batches] = [train] * len(nets) if one_for_all else train  # type: ignore[list-item,assignment]
    seeds = _seeds(seeds, config, nets, loaders, "networks")
    engine = Engine.of(config, nets[0])
    starts = [Mode.from_module(net) for net in nets]
    data = [check_train(net, start, batches, engine) for net, start, batches in zip(nets, starts, loaders, strict=True)]
    objectives: list[ModeObjective] = []
    for k, (net, start) in enumerate(zip(nets, starts, strict=True)):
        twin = next((j for j in range(k) if same_architecture(nets[j], net)), None)
        kind = net.objective if isinstance(net, Baseline) else ModeObjective
        mixing = 0.0, 0.0
        if config.mixup or config.cutmix:
            if isinstance(net, Baseline):
                raise _no_mixing(config, "networks with several members inside")
            mixing = mixing_of(config, 0.0, first_batch(data[k], "train")[0])
        objectives.append(
            kind(frozen_copy(net).to(engine.device), start, trainable(net), (*mixing, data[k].outputs[-1]))
            if twin is None
            else objectives[twin].on(start, trainable(net))
        )
    stale = stale_statistics(nets, config)
    trained = run_training(objectives, data, seeds, "mode", nets[0], starts[0], valid, config, engine)
    modes = [objective.result(states) for objective, states in zip(objectives, trained, strict=True)]
    if stale:
        triples = zip(nets, modes, data, strict=True)
        modes = [refreshed(net, mode, engine.feed(batches), engine) for net, mode, batches in triples]
    return [mode.to("cpu") for mode in modes]


def fit_curve(
    net: nn.Module,
    start: Trained,
    end: Trained,
    train: Batches,
    config: TrainConfig = DEFAULT,
    *,
    pins: int = 1,
    pin_start: PinStart = "midpoint",
    r: float = 0.5,
    valid: Batches | None = None,
) -> Curve:
    """Train a low-loss curve between two modes; the modes are frozen, only the pins are trained.

    Check its middle before bridging it: if it is much worse than the ends, it is not worth a bridge.

    Args:
        net: the network of both modes; a parameter with `requires_grad=False` is not trained, see
            `CurveObjective.start`.
        start: the mode at r = 0.
        end: the mode at r = 1.
        train: yields (images, labels).
        config: all options of training.
        pins: number of control points to learn.
        pin_start: "midpoint", or "random" as in the authors' code.
        r: the position where batch norm statistics are kept and validation runs.
        valid: held-out data for `config.keep == "best"`.

    Returns:
        The curve; `curve.at(r)` is a mode.

    >>> import torch
    >>> net, train = nn.Linear(4, 3), [(torch.rand(8, 4), torch.arange(8) % 3)]
    >>> curve = fit_curve(net, *(Mode.from_module(nn.Linear(4, 3)) for _ in range(2)), train)
    """
    pair = to_mode(net, start), to_mode(net, end)
    return fit_curves(net, [pair], [train], config, pins=pins, pin_start=pin_start, r=r, valid=valid)[0]


def fit_curves(
    net: nn.Module,
    pairs: Sequence[tuple[Mode, Mode]],
    train: Sequence[Batches],
    config: TrainConfig = DEFAULT,
    *,
    pins: int = 1,
    pin_start: PinStart = "midpoint",
    r: float = 0.5,
    seeds: Sequence[int] | None = None,
    valid: Batches | None = None,
    statistics: Batches | None = None,
) -> list[Curve]:
    """Train several curves together, with the same result as one by one.

    The arguments are those of `fit_curve`; `seeds` holds one seed per curve, by default `config.seed` and up.
    `statistics` are batches to re-estimate the batch norm of every curve on; by default each uses its own loader.
    """
    check_r(r)
    check_config(config)
    if config.mixup or config.cutmix:
        raise _no_mixing(config, "curves")
    seeds = _seeds(seeds, config, pairs, train, "pairs")
    engine = Engine.of(config, net)
    learns = trainable(net)
    curves = [
        start_curve(net, start, end, pins=pins, pin_start=pin_start, seed=seed)
        for (start, end), seed in zip(pairs, seeds, strict=True)
    ]
    data = [check_train(net, start, batches, engine) for (start, _), batches in zip(pairs, train, strict=True)]
    placed = frozen_copy(net).to(engine.device)
    first = CurveObjective(placed, curves[0].to(engine.device), data[0], r, trainable=learns)
    # Each has its own statistics, as if trained alone; they share only the compiled program.
    objectives = [
        first.on(curve.to(engine.device), engine.feed(batches if statistics is None else statistics))
        for curve, batches in zip(curves, data, strict=True)
    ]
    trained = run_training(objectives, data, seeds, "curve", net, pairs[0][0], valid, config, engine)
    return [
        # Keep the modes that were passed in, not copies that went to the device and back.
        replace(objective.result(states).to("cpu"), start=curve.start, end=curve.end)
        for objective, curve, states in zip(objectives, curves, trained, strict=True)
    ]


def _seeds(
    given: Sequence[int] | None, config: TrainConfig, items: Sequence[object], loaders: Sequence[Batches], what: str
) -> list[int]:
    """One seed for each item; raises an error unless there is also one loader for each, and at least one."""
    if not items or len(items) != len(loaders):
        raise ModebridgeError(
            f"Expected at least one of the {what} and one loader for each, but got {len(loaders)} loaders for "
            f"{len(items)} {what}; pass as many of one as of the other."
        )
    seeds = list(given) if given is not None else [config.seed + k for k in range(len(items))]
    if len(seeds) != len(items):
        raise ModebridgeError(f"Expected {len(items)} seeds, but got {len(seeds)}; pass one for each.")
    return seeds


def _no_mixing(config: TrainConfig, what: str) -> ModebridgeError:
    return ModebridgeError(
        f"Expected mixup and cutmix to be left out for {what}, but got mixup={config.mixup} and "
        f"cutmix={config.cutmix}; they are for networks, bridges and students."
    )


def stale_statistics(nets: Sequence[nn.Module], config: TrainConfig) -> bool:
    """Whether statistics collected in training must be estimated again, because they do not belong to the mean."""
    stale = config.average_from > 0 and any(has_statistics(net) for net in nets)
    if stale and config.keep == "best":
        raise ModebridgeError(
            "Expected keep='last' for averaged weights with batch norm, but got 'best'; the mean's running statistics "
            "are only estimated at the end."
        )
    return stale


def refreshed(net: nn.Module, mode: Mode, batches: Batches, engine: Engine) -> Mode:
    placed = frozen_copy(net).to(engine.device)
    return replace(mode, buffers=refresh_statistics(placed, mode.params, mode.buffers, batches))
