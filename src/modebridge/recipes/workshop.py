"""Modes, curves and bridges of a recipe: found in the run folder, or trained now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge import seeds
from modebridge.bridges import Bridge
from modebridge.curves import BezierCurve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import skeleton
from modebridge.recipes.aligning import aligned_modes
from modebridge.recipes.config import Recipe
from modebridge.recipes.folder import RunFolder, key_of
from modebridge.recipes.maker import Maker, Tensors
from modebridge.recipes.members import Member
from modebridge.recipes.network import network_of
from modebridge.recipes.run_data import RunData
from modebridge.training import (
    BridgePlan,
    Checkpoints,
    Engine,
    Report,
    fit_bridges,
    fit_curves,
    fit_modes,
    plan_bridge,
)
from modebridge.types import Progress

__all__ = ["Workshop"]

Pair: TypeAlias = tuple[int, int]


class Workshop:
    """Trains what is missing, and only that; asks the folder first.

    Args:
        recipe: the choices.
        seed: of every random choice.
        feeds: the data.
        engine: where and how to train.
        folder: where artefacts are kept; None keeps them in memory.
        progress: told of every epoch.
        given: modes that were trained elsewhere, by number.
        boards: whether to write TensorBoard's logs too.
    """

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        feeds: RunData,
        engine: Engine,
        folder: RunFolder | None = None,
        progress: Progress | None = None,
        given: Mapping[int, Mode] | None = None,
        *,
        boards: bool = False,
    ) -> None:
        self.recipe = recipe
        self.seed = seed
        self.feeds = feeds
        self.engine = engine
        self.maker = Maker(engine, folder, progress, boards=boards)
        self._given = dict(given or {})
        # What was made or found is not read and hashed again, however often it is asked for.
        self._modes: dict[int, Mode] = {}
        self._aligned: dict[int, Mode] = {}
        self._curves: dict[Pair, BezierCurve] = {}
        self.network = network_of(recipe, feeds.facts)
        self.net = self.network.build(seeds.generator(seed, "net"))
        self._fed = feeds.fed_as

    def modes(self, numbers: Sequence[int]) -> dict[int, Mode]:
        """Modes by number, aligned to mode 0 where the recipe asks for it."""
        if self.recipe.align == "none":
            return self._own_modes(numbers)
        own = self._own_modes(sorted({0, *numbers}))
        missing = {k: own[k] for k in numbers if k != 0 and k not in self._aligned}
        images = self.feeds.plain_train(10_000)
        self._aligned |= aligned_modes(self.maker, self.net, self.recipe.align, own[0], missing, images)
        return {k: self._aligned.get(k, own[k]) for k in numbers}

    def _own_modes(self, numbers: Sequence[int]) -> dict[int, Mode]:
        recipe = self.recipe
        asked, numbers = numbers, [k for k in numbers if k not in self._modes]
        self._given |= self._kept_from_elsewhere([k for k in numbers if k not in self._given])

        def fit(names: list[str], checkpoints: Checkpoints | None, report: Report) -> Mapping[str, Tensors]:
            ks = [int(name) for name in names]
            nets = [self.network.build(seeds.generator(self.seed, "mode", k)) for k in ks]
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
            str(k): {
                "data": self._fed,
                "net": self.network.key,
                "seed": self._seed_of("mode", k),
                "training": str(recipe.mode),
            }
            for k in numbers
            if k not in self._given
        }
        made = self.maker.made("modes", parts, fit, recipe.mode.epochs, self._together)
        found = {k: Mode.from_state_dict(self.net, made[str(k)]) for k in numbers if str(k) in made}
        for k in numbers:
            if k in self._given:
                found[k] = self._given[k]
                self.maker.keep("modes", str(k), key_of("given", found[k].id), found[k].state, {"from": "elsewhere"})
        folder = self.maker.folder
        if folder is not None and folder.writes:
            folder.files.give({str(k): found[k].id for k in numbers if k in self._given})
        self._modes |= found
        return {k: self._modes[k] for k in asked}

    def _kept_from_elsewhere(self, numbers: Sequence[int]) -> dict[int, Mode]:
        """Modes that an earlier run in this folder was given: they stay what they are, and cannot be made again."""
        found: dict[int, Mode] = {}
        folder = self.maker.folder
        for k in numbers if folder is not None else ():
            assert folder is not None
            tensors, meta = folder.read("modes", str(k))
            if meta.get("from") == "elsewhere":
                found[k] = Mode.from_state_dict(self.net, tensors)
            elif folder.files.was_given(str(k)):
                reason = "another is in its place" if meta else folder.damage.get(f"modes/{k}", "it is missing")
                raise ModebridgeError(
                    f"Expected '{folder.path / 'modes' / str(k)}' to be the mode that the run was given, but {reason}; "
                    "it was not trained here and cannot be made again, so give it again with --modes."
                )
        return found

    def curves(self, pairs: Sequence[Pair]) -> dict[Pair, BezierCurve]:
        """Curves by the numbers of their ends."""
        recipe = self.recipe
        asked, pairs = pairs, [pair for pair in pairs if pair not in self._curves]
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
                statistics=self.feeds.statistics() if self.feeds.streams else None,
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
                "data": self._fed,
                "parents": [modes[i].id, modes[j].id],
                "seed": self._seed_of("curve", i, j),
                "training": str(recipe.curve),
                "pin_start": recipe.pin_start,
            }
            for name, (i, j) in named.items()
        }
        made = self.maker.made("curves", parts, fit, recipe.curve.epochs, self._together)
        self._curves |= {p: _curve(modes[p[0]], modes[p[1]], made[name]) for name, p in named.items()}
        return {pair: self._curves[pair] for pair in asked}

    def bridges(self, members: Sequence[Member]) -> dict[str, Bridge]:
        """Bridges by name; all that are missing are trained in one pass."""
        recipe = self.recipe
        if not members:
            return {}
        curves = self.curves(sorted({member.pair for member in members}))
        planned = self.maker.each([partial(self._plan, member, curves[member.pair]) for member in members])
        plans = {member.name: plan for member, plan in zip(members, planned, strict=True)}

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
                "data": self._fed,
                "parents": [mode.id for mode in (*plans[member.name].reads, *plans[member.name].target.modes)],
                "seed": self._seed_of("bridges"),
                "training": str(recipe.bridge),
                "slim": recipe.slim(member.size),
                "mixup": recipe.mixup,
                "batch": recipe.data.bridge_batch_size,
            }
            for member in members
        }
        made = self.maker.made("bridges", parts, fit, recipe.bridge.epochs, len(members))
        return {name: _filled(plan.bridge, made[name]) for name, plan in plans.items()}

    def points(self, members: Sequence[Member]) -> dict[str, Mode]:
        """Networks on curves by name, with statistics of their own."""
        curves = self.curves(sorted({member.pair for member in members}))
        found = self.maker.each([partial(self._point, curves[member.pair], member.r) for member in members])
        return {member.name: mode for member, mode in zip(members, found, strict=True)}

    def _point(self, curve: BezierCurve, r: float) -> Mode:
        return self._with_statistics(curve, r).at(r)

    def _with_statistics(self, curve: BezierCurve, r: float) -> BezierCurve:
        device = self.engine.device
        fed = self.feeds.statistics(f"{r:g}")
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
