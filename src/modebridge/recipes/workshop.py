"""Modes, curves and bridges of a recipe: found in the run folder, or trained now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from modebridge import seeds
from modebridge.bridges import Bridge
from modebridge.curves import BezierCurve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import ResNet, skeleton, spec_of
from modebridge.recipes.config import Recipe
from modebridge.recipes.feeds import Feeds
from modebridge.recipes.folder import RunFolder, key_of
from modebridge.recipes.members import Member
from modebridge.training import (
    BridgePlan,
    Checkpoints,
    Engine,
    Epoch,
    Report,
    TrainConfig,
    append_metrics,
    fit_bridges,
    fit_curves,
    fit_modes,
    plan_bridge,
    side_by_side,
)

__all__ = ["Progress", "Workshop"]

Progress: TypeAlias = Callable[[str, int, int, float], None]
"""Called with a stage, the epochs done in it, the epochs it has, and images a second; may come from several threads."""

Pair: TypeAlias = tuple[int, int]
Tensors: TypeAlias = Mapping[str, Tensor]
Fit: TypeAlias = Callable[[list[str], Checkpoints | None, Report], Mapping[str, Tensors]]
"""Trains the named artefacts together; the report speaks of them by number or by name."""


class Workshop:
    """Trains what is missing, and only that; asks the folder first.

    Args:
        recipe: the choices.
        seed: of every random choice.
        feeds: the images.
        engine: where and how to train.
        folder: where artefacts are kept; None keeps them in memory.
        progress: told of every epoch.
        given: modes that were trained elsewhere, by number.
    """

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        feeds: Feeds,
        engine: Engine,
        folder: RunFolder | None = None,
        progress: Progress | None = None,
        given: Mapping[int, Mode] | None = None,
    ) -> None:
        self.recipe = recipe
        self.seed = seed
        self.feeds = feeds
        self.engine = engine
        self.folder = folder
        self._progress = progress or (lambda stage, done, total, rate: None)
        self._given = dict(given or {})
        self._spec = spec_of(recipe.net, recipe.norm, feeds.splits.train.classes)
        self.net = ResNet(self._spec, seeds.generator(seed, "net"))
        self._memory: dict[tuple[str, str], Tensors] = {}
        self.trained: list[str] = []
        """What this workshop has trained itself, as "modes 0"."""

    def modes(self, numbers: Sequence[int]) -> dict[int, Mode]:
        """Modes by number."""
        recipe = self.recipe

        def fit(names: list[str], checkpoints: Checkpoints | None, report: Report) -> Mapping[str, Tensors]:
            ks = [int(name) for name in names]
            nets = [ResNet(self._spec, seeds.generator(self.seed, "mode", k)) for k in ks]
            trained = fit_modes(
                nets,
                [self.feeds.train("mode", k) for k in ks],
                config=recipe.mode,
                seeds=[self._seed_of("mode", k) for k in ks],
                valid=self.feeds.valid(),
                engine=self.engine,
                checkpoints=checkpoints,
                report=report,
            )
            return {name: mode.state for name, mode in zip(names, trained, strict=True)}

        parts = {
            str(k): {"net": str(self._spec), "seed": self._seed_of("mode", k), "training": str(recipe.mode)}
            for k in numbers
            if k not in self._given
        }
        made = self._made("modes", parts, fit, recipe.mode, self._together)
        found = {k: Mode.from_state_dict(self.net, made[str(k)]) for k in numbers if str(k) in made}
        for k in numbers:
            if k in self._given:
                found[k] = self._given[k]
                self.keep("modes", str(k), key_of("given", found[k].id), found[k].state, {"from": "elsewhere"})
        return found

    def curves(self, pairs: Sequence[Pair]) -> dict[Pair, BezierCurve]:
        """Curves by the numbers of their ends."""
        recipe = self.recipe
        modes = self.modes(sorted({k for pair in pairs for k in pair}))
        named = {f"{i}-{j}": (i, j) for i, j in pairs}

        def fit(names: list[str], checkpoints: Checkpoints | None, report: Report) -> Mapping[str, Tensors]:
            ends = [named[name] for name in names]
            trained = fit_curves(
                self.net,
                [(modes[i], modes[j]) for i, j in ends],
                [self.feeds.train("curve", i, j) for i, j in ends],
                pin_start=recipe.pin_start,
                config=recipe.curve,
                seeds=[self._seed_of("curve", i, j) for i, j in ends],
                valid=self.feeds.valid(),
                engine=self.engine,
                checkpoints=checkpoints,
                report=report,
            )
            return {
                name: {
                    **{f"pin/{key}": tensor for key, tensor in curve.pins[0].items()},
                    **{f"statistics/{key}": tensor for key, tensor in curve.statistics.get(0.5, {}).items()},
                }
                for name, curve in zip(names, trained, strict=True)
            }

        parts = {
            name: {
                "parents": [modes[i].id, modes[j].id],
                "seed": self._seed_of("curve", i, j),
                "training": str(recipe.curve),
                "pin_start": recipe.pin_start,
            }
            for name, (i, j) in named.items()
        }
        made = self._made("curves", parts, fit, recipe.curve, self._together)
        return {pair: _curve(modes[pair[0]], modes[pair[1]], made[name]) for name, pair in named.items()}

    def bridges(self, members: Sequence[Member]) -> dict[str, Bridge]:
        """Bridges by name; all that are missing are trained in one pass."""
        recipe = self.recipe
        if not members:
            return {}
        curves = self.curves(sorted({member.pair for member in members}))
        plans = {member.name: self._plan(member, curves[member.pair]) for member in members}

        def fit(names: list[str], checkpoints: Checkpoints | None, report: Report) -> Mapping[str, Tensors]:
            trained = fit_bridges(
                self.net,
                {name: plans[name] for name in names},
                self.feeds.train("bridges", bridges=True),
                mixup=recipe.mixup,
                config=replace(recipe.bridge, seed=self._seed_of("bridges")),
                valid=self.feeds.valid(),
                engine=self.engine,
                checkpoints=checkpoints,
                report=report,
            )
            return {name: bridge.state_dict() for name, bridge in trained.items()}

        parts = {
            member.name: {
                "parents": [mode.id for mode in (*plans[member.name].reads, *plans[member.name].target.modes)],
                "seed": self._seed_of("bridges"),
                "training": str(recipe.bridge),
                "slim": recipe.slim(member.size),
                "mixup": recipe.mixup,
                "batch": recipe.data.bridge_batch_size,
            }
            for member in members
        }
        made = self._made("bridges", parts, fit, recipe.bridge, len(members))
        return {name: _filled(plan.bridge, made[name]) for name, plan in plans.items()}

    def points(self, members: Sequence[Member]) -> dict[str, Mode]:
        """Networks on curves by name, with statistics of their own."""
        curves = self.curves(sorted({member.pair for member in members}))
        return {member.name: self._with_statistics(curves[member.pair], member.r).at(member.r) for member in members}

    def _with_statistics(self, curve: BezierCurve, r: float) -> BezierCurve:
        device = self.engine.device
        fed = self.feeds.train("statistics", f"{r:g}")
        return curve.to(device).with_statistics(skeleton(self.net).to(device), r, fed).to("cpu")

    def _plan(self, member: Member, curve: BezierCurve) -> BridgePlan:
        return plan_bridge(
            self.net,
            self._with_statistics(curve, member.r) if member.kind != "labels" else curve,
            self.feeds.few(),
            kind="II" if member.kind == "II" else "I",
            source="start" if member.i <= member.j else "end",
            slim=self.recipe.slim(member.size),
            r=member.r,
            target="labels" if member.kind == "labels" else "curve",
            name=member.name,
            seed=seeds.seed_for(self.seed, f"{member.kind}-{member.i}-{member.j}"),
        )

    @property
    def _together(self) -> int:
        return self.recipe.together if self.engine.device.type == "cuda" else 1

    def _seed_of(self, *names: str | int) -> int:
        return seeds.seed_for(self.seed, *names)

    def _made(
        self, kind: str, parts: Mapping[str, Mapping[str, Any]], fit: Fit, config: TrainConfig, together: int
    ) -> dict[str, Tensors]:
        """Artefacts by name: those that the folder has, and the others trained in groups of `together`."""
        data = self.recipe.data
        fed = (data.name, self.feeds.learned_from, data.batch_size, data.pad, data.flip)
        keys = {name: key_of(kind, name, *fed, sorted(part.items())) for name, part in parts.items()}
        found = {name: self.find(kind, name, key) for name, key in keys.items()}
        missing = [name for name in parts if found[name] is None]
        groups = [missing[k : k + together] for k in range(0, len(missing), together)]
        count = _Count(self._progress, kind, len(missing) * config.epochs)

        def make(group: list[str]) -> None:
            checkpoints = self._checkpoints(kind, group, keys)
            begin = time.perf_counter()
            trained = fit(group, checkpoints, partial(self._report, kind, group, count))
            seconds = (time.perf_counter() - begin) / len(group)
            for name in group:
                self.keep(kind, name, keys[name], trained[name], {"seconds": seconds, "from": dict(parts[name])})
            if checkpoints is not None and (self.folder is None or self.folder.writes):
                checkpoints.clear()

        jobs = [partial(make, group) for group in groups]
        if self.engine.device.type == "cpu" and self.engine.processes.size == 1:
            side_by_side(jobs)
        else:
            # Processes that train together must train the same thing at the same time.
            for job in jobs:
                job()
        self.engine.processes.wait()
        self.trained += [f"{kind} {name}" for name in missing]
        # Read back, so that a run and the one after it see the same bits.
        found |= {name: self.find(kind, name, keys[name]) for name in missing}
        complete = {name: tensors for name, tensors in found.items() if tensors is not None}
        lost = [name for name in parts if name not in complete]
        if lost:
            raise ModebridgeError(
                f"Expected {kind} {lost[0]} to be readable after writing it, but it is not; check the disk (and that "
                "all processes see the same folder)."
            )
        return complete

    def find(self, kind: str, name: str, key: str) -> Tensors | None:
        """An artefact that was made from these very things; None where there is none."""
        place = (f"{kind}/{name}", key)
        if place not in self._memory and self.folder is not None:
            found = self.folder.find(kind, name, key)
            if found is not None:
                self._memory[place] = found
        return self._memory.get(place)

    def keep(self, kind: str, name: str, key: str, tensors: Tensors, notes: Mapping[str, Any]) -> None:
        """Keep an artefact, unless it is there already."""
        if self.folder is None:
            self._memory[f"{kind}/{name}", key] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        elif self.find(kind, name, key) is None:
            self.folder.keep(kind, name, key, tensors, notes)

    def _checkpoints(self, kind: str, group: list[str], keys: Mapping[str, str]) -> Checkpoints | None:
        if self.folder is None:
            return None
        name = group[0] if len(group) == 1 else f"{len(group)}-from-{group[0]}"
        checkpoints = self.folder.checkpoints(kind, name, key_of(*(keys[name] for name in group)))
        if self.folder.writes and not checkpoints.path.exists():
            for artefact in group:  # the curves of an artefact that is trained anew begin anew
                self._metrics(kind, artefact).unlink(missing_ok=True)
        return checkpoints

    def _report(self, kind: str, group: list[str], count: _Count, epoch: Epoch) -> None:
        count(tuple(group), epoch)
        if self.folder is None or not self.folder.writes:
            return
        for k, name in enumerate(group):
            label = name if name in epoch.losses else next(iter(epoch.losses))
            if len(group) > 1 and kind != "bridges":
                label = next(key for key in epoch.losses if key.startswith(f"{k}/"))
            scores = {"valid": epoch.scores[label]} if label in epoch.scores else {}
            own = replace(epoch, losses={"train": epoch.losses[label]}, scores=scores)
            append_metrics(self._metrics(kind, name), own)

    def _metrics(self, kind: str, name: str) -> Any:
        assert self.folder is not None
        return self.folder.path / "metrics" / kind / f"{name}.jsonl"


class _Count:
    """Epochs of one stage, over all networks that are trained in it, on whatever thread."""

    def __init__(self, progress: Progress, stage: str, total: int) -> None:
        self._progress, self._stage, self._total = progress, stage, total
        self._done: dict[tuple[str, ...], int] = {}
        self._lock = threading.Lock()

    def __call__(self, group: tuple[str, ...], epoch: Epoch) -> None:
        with self._lock:
            # By number, since a run that goes on after a stop does not begin with the first epoch.
            self._done[group] = len(group) * epoch.number
            self._progress(self._stage, sum(self._done.values()), self._total, epoch.rate)


def _curve(start: Mode, end: Mode, made: Tensors) -> BezierCurve:
    parts: dict[str, dict[str, Tensor]] = {"pin": {}, "statistics": {}}
    for name, tensor in made.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = tensor
    # In the modes' own memory order, which files do not know of.
    pin = {name: torch.empty_like(start.params[name]).copy_(tensor) for name, tensor in parts["pin"].items()}
    return BezierCurve(start, end, (pin,), {0.5: parts["statistics"]} if parts["statistics"] else {})


def _filled(bridge: Bridge, state: Tensors) -> Bridge:
    filled = skeleton(bridge)
    filled.load_state_dict(dict(state))
    assert isinstance(filled, Bridge)
    return filled
