"""The training steps of a run: what a recipe names, made or found in the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge import seeds
from modebridge.bridges import Bridge
from modebridge.curves import BezierCurve, Curve
from modebridge.data import ImageSet, Loader, noisy_digits
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import ResNet, skeleton, spec_of
from modebridge.recipes.config import Recipe
from modebridge.recipes.folder import RunFolder, key_of
from modebridge.training import (
    BridgePlan,
    Checkpoints,
    Epoch,
    Report,
    TrainConfig,
    fit_bridges,
    fit_curve,
    fit_mode,
    plan_bridge,
    side_by_side,
)

__all__ = ["Progress", "Splits", "Stages", "load_splits"]

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of a stage, the epochs done in it and the epochs it has; may come from several threads."""


@dataclass(frozen=True)
class Splits:
    """The three parts of a data set: to train on, to choose and calibrate on, to report on."""

    train: ImageSet
    valid: ImageSet
    test: ImageSet


def load_splits(recipe: Recipe) -> Splits:
    """The recipe's images, cut in three."""
    data = recipe.data
    if data.name != "digits":
        raise ModebridgeError(f"Expected the data set to be 'digits', but got '{data.name}'; it is the only one yet.")
    images = noisy_digits(data.noise)
    cut = data.train + data.valid
    return Splits(images.part(0, data.train), images.part(data.train, cut), images.part(cut, len(images)))


class Stages:
    """The three training steps of a run, with the seeds and loaders that they share."""

    def __init__(
        self, recipe: Recipe, seed: int, splits: Splits, progress: Progress, folder: RunFolder | None = None
    ) -> None:
        self._recipe = recipe
        self._seed = seed
        self._splits = splits
        self._progress = progress
        self._folder = folder
        self._spec = spec_of(recipe.net, recipe.norm, splits.train.classes)
        self.net = ResNet(self._spec, seeds.generator(seed, "net"))

    def modes(self) -> list[Mode]:
        """Train the networks, as many at a time as there are cores."""
        report = self._counter("modes", self._recipe.modes * self._recipe.mode.epochs)

        def fit(k: int) -> Mode:
            config = self._config(self._recipe.mode, "mode", k)

            def make(checkpoints: Checkpoints | None) -> Mapping[str, Tensor]:
                fresh = ResNet(self._spec, seeds.generator(self._seed, "mode", k))
                train, valid = self._loader("mode", k), self._valid()
                return fit_mode(fresh, train, config=config, valid=valid, checkpoints=checkpoints, report=report).state

            return Mode.from_state_dict(self.net, self._made("modes", str(k), make, self._spec, self._seed, config))

        return side_by_side([partial(fit, k) for k in range(self._recipe.modes)])

    def curves(self, modes: list[Mode]) -> dict[tuple[int, int], Curve]:
        """Train the curves from mode 0 to each other one."""
        pairs = [(0, j) for j in range(1, len(modes))]
        report = self._counter("curves", len(pairs) * self._recipe.curve.epochs)

        def fit(i: int, j: int) -> Curve:
            config = self._config(self._recipe.curve, "curve", i, j)

            def make(checkpoints: Checkpoints | None) -> Mapping[str, Tensor]:
                train, valid = self._loader("curve", i, j), self._valid()
                curve = fit_curve(
                    self.net,
                    modes[i],
                    modes[j],
                    train,
                    config=config,
                    valid=valid,
                    checkpoints=checkpoints,
                    report=report,
                )
                statistics = curve.statistics.get(0.5, {})
                return {
                    **{f"pin/{name}": tensor for name, tensor in curve.pins[0].items()},
                    **{f"statistics/{name}": tensor for name, tensor in statistics.items()},
                }

            made = self._made("curves", f"{i}-{j}", make, self._spec, config, modes[i].id, modes[j].id)
            parts: dict[str, dict[str, Tensor]] = {"pin": {}, "statistics": {}}
            for name, tensor in made.items():
                part, _, rest = name.partition("/")
                parts[part][rest] = tensor
            statistics = {0.5: parts["statistics"]} if parts["statistics"] else {}
            # In the modes' own memory order, which files do not know of.
            own = modes[i].params
            pin = {name: torch.empty_like(own[name]).copy_(tensor) for name, tensor in parts["pin"].items()}
            return BezierCurve(modes[i], modes[j], (pin,), statistics)

        fitted = side_by_side([partial(fit, i, j) for i, j in pairs])
        return dict(zip(pairs, fitted, strict=True))

    def bridges(self, curves: Mapping[tuple[int, int], Curve]) -> dict[str, Bridge]:
        """Train a type I bridge a curve, one of type II, and one that sees labels only."""
        recipe, images = self._recipe, self._splits.train.images[:2]
        plans: dict[str, BridgePlan] = {}
        plan = partial(plan_bridge, self.net, images=images, slim=recipe.slim)
        for (i, j), curve in curves.items():
            name = f"I-{i}-{j}"
            plans[name] = plan(curve, kind="I", name=name, seed=seeds.seed_for(self._seed, name))
        # One of each is enough for the demo: a type II bridge, and a bridge that saw labels only.
        (i, j), curve = next(iter(curves.items()))
        name = f"II-{i}-{j}"
        plans[name] = plan(curve, kind="II", name=name, seed=seeds.seed_for(self._seed, name))
        plans["labels"] = plan(curve, target="labels", name="labels", seed=seeds.seed_for(self._seed, "labels"))
        # One job, but on single-core operations like the others: its two halves overlap instead.
        return side_by_side([partial(self._fit_missing, plans)])[0]

    def _fit_missing(self, plans: Mapping[str, BridgePlan]) -> dict[str, Bridge]:
        """Train the bridges that the folder does not have, all of them in one pass."""
        recipe, config = self._recipe, self._config(self._recipe.bridge, "bridges")
        keys = {
            name: self._key("bridge", name, recipe.slim, recipe.mixup, config, _parents(plan))
            for name, plan in plans.items()
        }
        folder = self._folder
        found = {name: folder.find("bridges", name, keys[name]) if folder else None for name in plans}
        missing = {name: plan for name, plan in plans.items() if found[name] is None}
        if missing:
            checkpoints = (
                folder.checkpoints("bridges", "all", key_of(*(keys[name] for name in missing))) if folder else None
            )
            begin = time.perf_counter()
            trained = fit_bridges(
                self.net,
                missing,
                self._loader("bridges"),
                mixup=recipe.mixup,
                config=config,
                valid=self._valid(),
                checkpoints=checkpoints,
                report=self._counter("bridges", recipe.bridge.epochs),
            )
            if folder is None or checkpoints is None:
                return trained
            for name, bridge in trained.items():
                folder.keep("bridges", name, keys[name], bridge.state_dict(), time.perf_counter() - begin)
            checkpoints.clear()
            found |= {name: folder.find("bridges", name, keys[name]) for name in missing}
        bridges: dict[str, Bridge] = {}
        for name, plan in plans.items():
            filled = skeleton(plan.bridge)
            filled.load_state_dict(found[name] or {})
            assert isinstance(filled, Bridge)
            bridges[name] = filled
        return bridges

    def _made(
        self, kind: str, name: str, make: Callable[[Checkpoints | None], Mapping[str, Tensor]], *parts: object
    ) -> Mapping[str, Tensor]:
        if self._folder is None:
            return make(None)
        return self._folder.made(kind, name, self._key(kind, name, *parts), make)

    def _key(self, *parts: object) -> str:
        return key_of(self._recipe.data, *parts)

    def _loader(self, *names: str | int) -> Loader:
        seed = seeds.seed_for(self._seed, *names, "batches")
        return Loader(self._splits.train, self._recipe.data.batch_size, shuffle=True, seed=seed)

    def _valid(self) -> Loader:
        return Loader(self._splits.valid, 256)

    def _config(self, config: TrainConfig, *names: str | int) -> TrainConfig:
        return replace(config, seed=seeds.seed_for(self._seed, *names))

    def _counter(self, stage: str, total: int) -> Report:
        # list.append is atomic, so jobs on several threads can count epochs in one list.
        done: list[int] = []

        def count(epoch: Epoch) -> None:
            done.append(epoch.number)
            self._progress(stage, len(done), total)

        return count


def _parents(plan: BridgePlan) -> list[str]:
    return [mode.id for mode in (*plan.reads, *plan.target.modes)]
