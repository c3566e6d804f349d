"""A run from data to results: modes, curves, bridges, scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from modebridge import seeds
from modebridge.bridges import Bridge
from modebridge.curves import Curve
from modebridge.data import ImageSet, Loader, noisy_digits
from modebridge.ensembles import BridgedEnsemble
from modebridge.errors import ModebridgeError
from modebridge.evaluate import check_curve, dee, evaluate
from modebridge.modes import Mode
from modebridge.nets import ResNet, spec_of
from modebridge.recipes.config import Recipe
from modebridge.report import Row
from modebridge.training import BridgePlan, TrainConfig, fit_bridges, fit_curve, fit_mode, plan_bridge, side_by_side

__all__ = ["Progress", "RunResult", "Splits", "load_splits", "run_recipe"]

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of a stage, the epochs done in it and the epochs it has; may come from several threads."""


@dataclass(frozen=True)
class Splits:
    """The three parts of a data set: to train on, to choose and calibrate on, to report on."""

    train: ImageSet
    valid: ImageSet
    test: ImageSet


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind."""

    recipe: Recipe
    seed: int
    net: ResNet
    splits: Splits
    modes: list[Mode]
    curves: dict[tuple[int, int], Curve]
    bridges: dict[str, Bridge]
    rows: list[Row]
    warnings: list[str]
    seconds: dict[str, float]


def load_splits(recipe: Recipe) -> Splits:
    """The recipe's images, cut in three."""
    data = recipe.data
    if data.name != "digits":
        raise ModebridgeError(f"Expected the data set to be 'digits', but got '{data.name}'; it is the only one yet.")
    images = noisy_digits(data.noise)
    cut = data.train + data.valid
    return Splits(images.part(0, data.train), images.part(data.train, cut), images.part(cut, len(images)))


def run_recipe(recipe: Recipe, *, seed: int = 0, progress: Progress | None = None) -> RunResult:
    """Train everything that a recipe names, then score every combination on the test split.

    Args:
        recipe: the choices.
        seed: of every random choice; the same seed gives the same result bit for bit on the same machine.
        progress: told of every epoch.
    """
    splits = load_splits(recipe)
    stages = _Stages(recipe, seed, splits, progress or (lambda stage, done, total: None))
    clock = [time.perf_counter()]
    modes = stages.modes()
    clock.append(time.perf_counter())
    curves = stages.curves(modes)
    clock.append(time.perf_counter())
    bridges = stages.bridges(curves)
    clock.append(time.perf_counter())
    valid = Loader(splits.valid, 256)
    checks = {pair: check_curve(stages.net, curve, valid) for pair, curve in curves.items()}
    warnings = [f"Curve {i}-{j}: {check.sentence}" for (i, j), check in checks.items() if not check.low_loss]
    rows = _score(stages.net, splits, modes, curves, bridges)
    clock.append(time.perf_counter())
    names = ("modes", "curves", "bridges", "scores")
    seconds = {name: b - a for name, a, b in zip(names, clock, clock[1:], strict=False)}
    return RunResult(recipe, seed, stages.net, splits, modes, curves, bridges, rows, warnings, seconds)


class _Stages:
    """The three training steps of a run, with the seeds and loaders that they share."""

    def __init__(self, recipe: Recipe, seed: int, splits: Splits, progress: Progress) -> None:
        self._recipe = recipe
        self._seed = seed
        self._splits = splits
        self._progress = progress
        self._spec = spec_of(recipe.net, recipe.norm, splits.train.classes)
        self.net = ResNet(self._spec, seeds.generator(seed, "net"))

    def modes(self) -> list[Mode]:
        report = self._counter("modes", self._recipe.modes * self._recipe.mode.epochs)

        def fit(k: int) -> Mode:
            fresh = ResNet(self._spec, seeds.generator(self._seed, "mode", k))
            config = self._config(self._recipe.mode, "mode", k)
            return fit_mode(fresh, self._loader("mode", k), config=config, valid=self._valid(), report=report)

        return side_by_side([partial(fit, k) for k in range(self._recipe.modes)])

    def curves(self, modes: list[Mode]) -> dict[tuple[int, int], Curve]:
        pairs = [(0, j) for j in range(1, len(modes))]
        report = self._counter("curves", len(pairs) * self._recipe.curve.epochs)

        def fit(i: int, j: int) -> Curve:
            config = self._config(self._recipe.curve, "curve", i, j)
            train = self._loader("curve", i, j)
            return fit_curve(self.net, modes[i], modes[j], train, config=config, valid=self._valid(), report=report)

        fitted = side_by_side([partial(fit, i, j) for i, j in pairs])
        return dict(zip(pairs, fitted, strict=True))

    def bridges(self, curves: Mapping[tuple[int, int], Curve]) -> dict[str, Bridge]:
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
        fit = partial(
            fit_bridges,
            self.net,
            plans,
            self._loader("bridges"),
            mixup=recipe.mixup,
            config=self._config(recipe.bridge, "bridges"),
            valid=self._valid(),
            report=self._counter("bridges", recipe.bridge.epochs),
        )
        # One job, but on single-core operations like the others: its two halves overlap instead.
        return side_by_side([fit])[0]

    def _loader(self, *names: str | int) -> Loader:
        seed = seeds.seed_for(self._seed, *names, "batches")
        return Loader(self._splits.train, self._recipe.data.batch_size, shuffle=True, seed=seed)

    def _valid(self) -> Loader:
        return Loader(self._splits.valid, 256)

    def _config(self, config: TrainConfig, *names: str | int) -> TrainConfig:
        return replace(config, seed=seeds.seed_for(self._seed, *names))

    def _counter(self, stage: str, total: int) -> Callable[[int, Mapping[str, float]], None]:
        # list.append is atomic, so jobs on several threads can count epochs in one list.
        done: list[int] = []

        def count(epoch: int, losses: Mapping[str, float]) -> None:
            done.append(epoch)
            self._progress(stage, len(done), total)

        return count


def _score(
    net: ResNet,
    splits: Splits,
    modes: list[Mode],
    curves: Mapping[tuple[int, int], Curve],
    bridges: Mapping[str, Bridge],
) -> list[Row]:
    type_one = [bridge for name, bridge in bridges.items() if name.startswith("I-")]
    type_two = next(bridge for name, bridge in bridges.items() if name.startswith("II-"))
    middle = next(iter(curves.values())).at(0.5)
    plans: list[tuple[str, list[Mode], list[Bridge], str]] = [("DE-1", modes[:1], [], "one network")]
    plans += [
        (f"DE-1 + {k} bridge{'s' if k > 1 else ''} I", modes[:1], type_one[:k], "") for k in range(1, len(type_one) + 1)
    ]
    control = "the same bridge trained on labels, without a curve"
    plans.append(("DE-1 + 1 label control", modes[:1], [bridges["labels"]], control))
    plans.append(("DE-2", modes[:2], [], ""))
    plans.append(("DE-2 + 1 bridge II", modes[:2], [type_two], ""))
    plans += [(f"DE-{m}", modes[:m], [], "") for m in range(3, len(modes) + 1)]
    plans.append(("DE-1 + midpoint", [modes[0], middle], [], "the network that the first bridge imitates"))
    plans.append(("DE-2 + midpoint", [*modes[:2], middle], [], "the network that the bridges imitate"))
    valid, test = Loader(splits.valid, 256), Loader(splits.test, 256)
    scored = [
        (name, note, evaluate(BridgedEnsemble(net, members, extra).calibrate(valid), test, intervals=True))
        for name, members, extra, note in plans
    ]
    nlls = {name: score.cnll for name, _, score in scored if score.cnll is not None}
    reference = [nlls[f"DE-{m}"] for m in range(1, len(modes) + 1)]
    rows = []
    for name, note, score in scored:
        # calibrate() was called on each, so these are there; the checker cannot know.
        assert score.cnll is not None
        assert score.cece is not None
        assert score.cbrier is not None
        assert score.temperature is not None
        assert score.cnll_interval is not None
        rows.append(
            Row(
                name=name,
                relative_flops=score.cost.relative_flops,
                relative_params=score.cost.relative_params,
                accuracy=score.accuracy,
                nll=score.cnll,
                ece=score.cece,
                brier=score.cbrier,
                dee=dee(score.cnll, reference),
                raw_nll=score.nll,
                raw_ece=score.ece,
                raw_brier=score.brier,
                temperature=score.temperature,
                nll_interval=(score.cnll_interval[0], score.cnll_interval[1]),
                note=note,
            )
        )
    return rows
