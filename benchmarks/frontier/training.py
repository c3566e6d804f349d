"""Train the variants of a scene: one pass per regime, and records of its variants after each pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from frontier.scene import Scene
from frontier.scoring import Spent, keep, read, records
from frontier.variants import BASELINE, Part, Regime, Variant, parts_of, plan_part
from holds.common import logits_of_members
from modebridge import Mode, fit_bridges
from modebridge.bridges import Bridge
from modebridge.scoring import LogitTable, MemberCost, module_cost
from modebridge.training import Engine, Report, TrainConfig
from modebridge.types import Batches

__all__ = ["Bench"]


@dataclass
class Bench:
    """A scene with its data, and the logits and costs of what has been trained so far.

    Args:
        scene: the networks.
        train: returns the training batches, from the start at every call, shifted by so many pixels more.
        plain: validation and test batches in order.
        valid: validation batches used during training.
        labels: labels of both splits.
        config: training of a bridge; a regime may multiply its epochs.
        engine: engine to train with.
        student: the student of all modes, or its logits by split; None if there is none.
        report: returns the epoch callback of a regime.
    """

    scene: Scene
    train: Callable[[int], Batches]
    plain: Mapping[str, Batches]
    valid: Batches
    labels: Mapping[str, Tensor]
    config: TrainConfig
    engine: Engine
    student: Mode | Mapping[str, Tensor] | None = None
    report: Callable[[str], Report | None] = lambda regime: None
    logits: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    costs: dict[str, MemberCost] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=dict)

    def run_networks(self) -> None:
        """Compute the logits of modes, midpoints and the student."""
        scene = self.scene
        networks = {f"mode-{k}": mode for k, mode in enumerate(scene.modes)}
        networks |= {f"midpoint-{j}": curve.at(0.5) for j, curve in scene.curves.items()}
        if isinstance(self.student, Mode):
            networks["student"] = self.student
        self.logits |= logits_of_members(scene.net, networks, {}, self.plain, self.engine)
        if self.student is not None and not isinstance(self.student, Mode):
            self.logits["student"] = dict(self.student)
        whole = module_cost(scene.net, tuple(scene.images.shape[1:]))
        self.costs |= {name: MemberCost(whole.flops, whole.params) for name in self.logits}

    def train_regime(self, regime: Regime, parts: list[Part]) -> dict[str, Bridge]:
        """Train all bridges of a regime in one pass, and compute their logits."""
        scene, base = self.scene, self.costs["mode-0"]
        plans = {str(part): plan_part(part, scene) for part in parts}
        epochs, lr = self.config.epochs * regime.longer, self.config.lr * regime.faster
        config = replace(self.config, epochs=epochs, lr=lr)
        options = {"cutmix": regime.cutmix} if regime.cutmix else {}
        start = time.perf_counter()
        bridges = fit_bridges(
            scene.net,
            plans,
            self.train(regime.shift),
            mixup=regime.mixup,
            config=config,
            valid=self.valid,
            engine=self.engine,
            report=self.report(str(regime)),
            **options,
        )
        seconds = (time.perf_counter() - start) / len(bridges)
        logits = logits_of_members(scene.net, {"mode-0": scene.modes[0]}, bridges, self.plain, self.engine)
        for name, bridge in bridges.items():
            self.logits[name] = {split: _heads_first(table) for split, table in logits[name].items()}
            params = sum(parameter.numel() for parameter in bridge.parameters())
            self.costs[name] = MemberCost((bridge.share or 0.0) * base.flops, params, ("mode-0",))
            self.spent[name] = seconds, config.epochs
        return bridges

    def passes(
        self, variants: Mapping[str, Variant], facts: Mapping[str, object], file: Path
    ) -> Iterator[dict[str, Bridge]]:
        """Train and score all variants: returns the bridges of each pass, then writes its records to the file."""
        self.run_networks()
        if not any(record["line"] and record.items() >= facts.items() for record in read(file)):
            keep(file, records(self.answers(), {}, facts, self.spent))
        for regime, parts in parts_of(variants).items():
            bridges = self.train_regime(regime, parts)
            yield bridges
            # With the baseline, which they are compared with per image.
            these = {name: v for name, v in variants.items() if name == BASELINE or v.parts[0].regime == regime}
            keep(file, records(self.answers(), these, facts, self.spent))

    def answers(self) -> LogitTable:
        """The logits of all members so far."""
        tables = {split: {name: logits[split] for name, logits in self.logits.items()} for split in ("valid", "test")}
        return LogitTable(tables["valid"], tables["test"], self.labels["valid"], self.labels["test"], self.costs)


def _heads_first(table: Tensor) -> Tensor:
    """(N, K), or (h, N, K) for h heads, as `LogitTable` expects."""
    return table if table.ndim == 2 else torch.movedim(table, 1, 0)
