"""The loss of bridges: KL(target || bridge) on mixed-up images, all bridges of all pairs in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.batches import each
from modebridge.bridges.bridge import Bridge
from modebridge.bridges.loss import bridge_loss, mix
from modebridge.bridges.targets import Target
from modebridge.errors import ModebridgeError, near
from modebridge.modes import Mode
from modebridge.nets import Tapped, check_tap, mean_probability, probabilities_of, run, skeleton
from modebridge.trees import wide
from modebridge.types import Batch, Batches, Draw, Inputs, Objective, Params, Prepared, Program, State, States

__all__ = ["BridgeObjective"]

Outputs: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""What a frozen network gives: logits, and features by tap."""

Frozen: TypeAlias = Callable[[Params, Inputs], Outputs]
"""A frozen network's forward pass at given weights."""


class BridgeObjective(Objective[dict[str, Bridge]]):
    """Train many bridges at once; each frozen network runs once a batch, whatever the number of bridges.

    With m modes, all curves between them and any number of bridges, a batch takes m + m(m-1)/2 frozen forward
    passes. Bridges share batches and frozen outputs but no parameters, so each ends where it would have ended alone.

    Args:
        net: the base network.
        bridges: the bridges to train, by name; their own weights are the start.
        targets: what each is to say, by the same names.
        modes: every mode that a bridge reads.
        mixup: alpha of the Beta distribution of the shares; 0 turns mixup off.
        compiled: makes the frozen networks' forward pass faster, where an engine can.
        fan_out: runs independent jobs side by side, where an engine can.
        synced: makes a network's batch norm see the batches of all processes.
        shares: whether one program may serve two bodies, so that it is compiled once; none does by default.
    """

    def __init__(
        self,
        net: nn.Module,
        bridges: Mapping[str, Bridge],
        targets: Mapping[str, Target],
        modes: Sequence[Mode],
        mixup: float = 0.4,
        *,
        compiled: Callable[[Frozen], Frozen] = lambda function: function,
        fan_out: Callable[[Sequence[Callable[[], Outputs]]], list[Outputs]] | None = None,
        synced: Callable[[nn.Module], nn.Module] = lambda module: module,
        shares: Callable[[nn.Module, nn.Module], bool] = lambda a, b: False,
    ) -> None:
        if not bridges:
            raise ModebridgeError("Expected at least one bridge to train, but got none; give some.")
        if bridges.keys() != targets.keys():
            raise ModebridgeError(
                f"Expected one target per bridge, but got targets {sorted(targets)} for bridges {sorted(bridges)}; "
                "use the same names."
            )
        if not mixup >= 0:
            raise ModebridgeError(f"Expected mixup to be at least 0, but got {mixup}; 0 turns it off.")
        self._bridges = dict(bridges)
        self._targets = dict(targets)
        self._mixup = mixup
        self._fan_out = fan_out or _in_turn
        self._programs: dict[str, Program] = {}
        self._measures: dict[str, Program] = {}
        for name, bridge in bridges.items():
            twin = next((key for key in self._programs if _serves(bridges[key], bridge, shares)), None)
            self._programs[name] = self._programs[twin] if twin else _program(synced(skeleton(bridge, training=True)))
            self._measures[name] = self._measures[twin] if twin else _program(skeleton(bridge))
        known: dict[str, Mode] = {mode.id: mode for mode in modes}
        for name, bridge in bridges.items():
            check_tap(net, bridge.tap)
            for source in bridge.reads:
                if source not in known:
                    raise ModebridgeError(
                        f"Expected bridge '{name}' to read one of the {len(modes)} modes given, but it reads a mode "
                        f"{source[:8]} that is not among them; {near(source[:8], [m.id[:8] for m in modes])}."
                    )
        # Only what somebody needs is run: targets, and modes whose features are read.
        read = {source for bridge in bridges.values() for source in bridge.reads}
        aimed_at = {mode.id: mode for target in targets.values() for mode in target.modes}
        needed = {**{key: mode for key, mode in known.items() if key in read}, **aimed_at}
        tapped = Tapped(net, sorted({bridge.tap for bridge in bridges.values()}))
        where = next((tensor.device for tensor in net.state_dict().values()), torch.device("cpu"))
        self._frozen = {key: tapped.state_of(mode.to(where).state) for key, mode in needed.items()}
        self._forward = compiled(tapped.run)

    def start(self) -> States:
        """The bridges' own weights; those with `requires_grad=False` are frozen."""
        states: dict[str, State] = {}
        for name, bridge in self._bridges.items():
            mode = Mode.from_module(bridge)
            learns = {key for key, parameter in bridge.named_parameters() if parameter.requires_grad}
            states[name] = State.split(mode.params, mode.buffers, learns)
        return states

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        """A share per sample ~ Beta(alpha, alpha), not folded to >= 0.5, and one permutation for the batch."""
        if self._mixup == 0:
            return {}
        # numpy's Beta takes a generator of its own; torch's public one only knows the global generator.
        seed = int(torch.randint(2**62, (), generator=generator))
        share = np.random.default_rng(seed).beta(self._mixup, self._mixup, size)
        return {
            "share": torch.from_numpy(share).float(),
            "partner": torch.randperm(size, generator=generator),
        }

    @property
    def whole(self) -> bool:
        """Partners of mixup may be anywhere in a batch."""
        return self._mixup > 0

    def part(self, batch: Batch, draw: Draw, rows: slice) -> tuple[Batch, Draw]:
        """The rows, and behind them their partners, wherever in the whole batch those are."""
        if not draw:
            return super().part(batch, draw, rows)
        partner = draw["partner"][rows]
        count = len(partner)

        def with_partners(tensor: Tensor) -> Tensor:
            return torch.cat([tensor[rows], tensor[partner.to(tensor.device)]])

        pairs = each(with_partners, batch[0]), with_partners(batch[1])
        return pairs, {"share": draw["share"][rows], "partner": torch.arange(count, 2 * count)}

    ahead = True  # the frozen networks are about half of a step, and need not wait for the other half

    @torch.no_grad()
    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """Mix the images, run every frozen network once on them, and hand each bridge its features and its target."""
        images, labels = batch
        if draw:
            share, partner = draw["share"].to(labels.device), draw["partner"].to(labels.device)
            images = each(lambda tensor: mix(tensor, share.to(tensor.dtype), partner), images)
        jobs = [partial(self._forward, state, images) for state in self._frozen.values()]
        outputs = dict(zip(self._frozen, self._fan_out(jobs), strict=True))
        prepared: dict[str, dict[str, Tensor]] = {}
        for name, bridge in self._bridges.items():
            inputs = {f"feature{k}": outputs[source][1][bridge.tap] for k, source in enumerate(bridge.reads)}
            modes = self._targets[name].modes
            if modes:
                target = mean_probability([probabilities_of(outputs[mode.id][0]) for mode in modes])
            else:
                logits = wide(next(iter(outputs.values()))[0])
                target = F.one_hot(labels, logits.shape[-1]).to(logits.dtype)
                target = mix(target, share.to(target.dtype), partner) if draw else target
            prepared[name] = {**inputs, "target": target}
        return prepared

    def program(self, member: str) -> Program:
        """The mean KL of a bridge on the mixed batch."""
        return self._programs[member]

    @torch.no_grad()
    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """The mean KL of each bridge on plain images."""
        totals = dict.fromkeys(self._bridges, 0.0)
        seen = 0
        for batch in batches:
            prepared = self.prepare(batch, {})
            for name in self._bridges:
                divergence = self._measures[name](states[name], prepared[name])
                totals[name] += float(divergence) * len(batch[1])
            seen += len(batch[1])
        return {name: total / seen if seen else math.nan for name, total in totals.items()}

    def result(self, states: States) -> dict[str, Bridge]:
        """The trained bridges by name, in evaluation mode; what was frozen in them still says so."""
        trained = {}
        for name, bridge in self._bridges.items():
            filled = skeleton(bridge)
            state = states[name]
            filled.load_state_dict({**state.all_params, **state.buffers})
            filled.cpu()
            for copied, parameter in zip(filled.parameters(), bridge.parameters(), strict=True):
                copied.requires_grad_(parameter.requires_grad)
            assert isinstance(filled, Bridge)
            trained[name] = filled
        return trained


def _in_turn(jobs: Sequence[Callable[[], Outputs]]) -> list[Outputs]:
    return [job() for job in jobs]


def _serves(a: Bridge, b: Bridge, shares: Callable[[nn.Module, nn.Module], bool]) -> bool:
    """Whether the program of one bridge serves another; what else bridges remember is not part of it."""
    return len(a.reads) == len(b.reads) and shares(a.body, b.body)


def _program(body: nn.Module) -> Program:
    def loss(state: State, prepared: Prepared) -> Tensor:
        features = [prepared[f"feature{k}"] for k in range(len(prepared) - 1)]
        logits = run(body, state.all_params, state.buffers, *features)
        return bridge_loss(prepared["target"], logits)

    return loss
