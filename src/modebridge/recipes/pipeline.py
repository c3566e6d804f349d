"""A run from data to results: modes, curves, bridges, scores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from modebridge.bridges import Bridge
from modebridge.curves import Curve
from modebridge.data import Loader
from modebridge.ensembles import BridgedEnsemble
from modebridge.evaluate import check_curve, dee, evaluate
from modebridge.modes import Mode
from modebridge.nets import ResNet
from modebridge.recipes.config import Recipe
from modebridge.recipes.folder import RunFolder
from modebridge.recipes.stages import Progress, Splits, Stages, load_splits
from modebridge.report import Row

__all__ = ["RunResult", "run_recipe"]


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


def run_recipe(
    recipe: Recipe, *, seed: int = 0, folder: RunFolder | None = None, progress: Progress | None = None
) -> RunResult:
    """Train everything that a recipe names, then score every combination on the test split.

    Args:
        recipe: the choices.
        seed: of every random choice; the same seed gives the same result bit for bit on the same machine.
        folder: where what is trained is kept; what is there is not trained again, and a run that was killed goes on.
        progress: told of every epoch.
    """
    splits = load_splits(recipe)
    stages = Stages(recipe, seed, splits, progress or (lambda stage, done, total: None), folder)
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
