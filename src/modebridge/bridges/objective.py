"""The loss of bridges: KL(target || bridge) on mixed-up images, all bridges of all pairs in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.bridges.bridge import Bridge
from modebridge.bridges.targets import Target
from modebridge.errors import ModebridgeError, near
from modebridge.modes import Mode
from modebridge.nets import check_tap, run, run_with_taps, skeleton
from modebridge.types import Batch, Batches, Draw, Prepared, State, States

__all__ = ["BridgeObjective", "kl_divergence", "mix"]


def kl_divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(target || softmax(logits)) of each row, in nats; a target of zero adds nothing.

    >>> kl_divergence(torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2))
    tensor([0.])
    """
    negative_entropy: Tensor = torch.special.xlogy(target, target)
    return (negative_entropy - target * F.log_softmax(logits, dim=-1)).sum(dim=-1)


def mix(values: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    """Mixup: share * values + (1 - share) * values[partner], one share per sample."""
    shares = share.view(-1, *[1] * (values.dim() - 1))
    return shares * values + (1 - shares) * values[partner]


class BridgeObjective:
    """Train many bridges at once; each frozen network runs once a batch, whatever the number of bridges.

    With m modes, all curves between them and any number of bridges, a batch takes m + m(m-1)/2 frozen forward
    passes. Bridges share batches and frozen outputs but no parameters, so each ends where it would have ended alone.

    Args:
        net: the base network.
        bridges: the bridges to train, by name; their own weights are the start.
        targets: what each is to say, by the same names.
        modes: every mode that a bridge reads.
        mixup: alpha of the Beta distribution of the shares; 0 turns mixup off.
    """

    def __init__(
        self,
        net: nn.Module,
        bridges: Mapping[str, Bridge],
        targets: Mapping[str, Target],
        modes: Sequence[Mode],
        mixup: float = 0.4,
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
        self._train = {name: skeleton(bridge, training=True) for name, bridge in bridges.items()}
        self._eval = {name: skeleton(bridge) for name, bridge in bridges.items()}
        known: dict[str, Mode] = {mode.id: mode for mode in modes}
        self._taps: dict[str, list[str]] = {}
        for name, bridge in bridges.items():
            check_tap(net, bridge.tap)
            for source in bridge.reads:
                if source not in known:
                    raise ModebridgeError(
                        f"Expected bridge '{name}' to read one of the {len(modes)} modes given, but it reads a mode "
                        f"{source[:8]} that is not among them; {near(source[:8], [m.id[:8] for m in modes])}."
                    )
                taps = self._taps.setdefault(source, [])
                if bridge.tap not in taps:
                    taps.append(bridge.tap)
        # Only what somebody needs is run: targets, and modes whose features are read.
        said = {mode.id: mode for target in targets.values() for mode in target.modes}
        needed = {**{key: mode for key, mode in known.items() if key in self._taps}, **said}
        self._frozen = {key: mode.load(net) for key, mode in needed.items()}

    @property
    def frozen_forwards(self) -> int:
        """How many frozen networks run in one step."""
        return len(self._frozen)

    def start(self) -> States:
        """The bridges' own weights."""
        modes = {name: Mode.from_module(bridge) for name, bridge in self._bridges.items()}
        return {name: State(mode.params, mode.buffers) for name, mode in modes.items()}

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

    ahead = True  # the frozen networks are about half of a step, and need not wait for the other half

    @torch.no_grad()
    def prepare(self, batch: Batch, draw: Draw) -> Prepared:
        """Mix the images, run every frozen network once on them, and name what the bridges need of it."""
        images, labels = batch
        if draw:
            share, partner = draw["share"].to(images.device, images.dtype), draw["partner"].to(images.device)
            images = mix(images, share, partner)
        prepared: dict[str, Tensor] = {}
        logits: dict[str, Tensor] = {}
        for key, net in self._frozen.items():
            logits[key], features = run_with_taps(net, images, self._taps.get(key, []))
            prepared.update({_feature(key, tap): feature for tap, feature in features.items()})
        for name, target in self._targets.items():
            if target.modes:
                said = torch.stack([logits[mode.id].softmax(dim=-1) for mode in target.modes]).mean(dim=0)
            else:
                said = F.one_hot(labels, next(iter(logits.values())).shape[-1]).to(images.dtype)
                said = mix(said, share, partner) if draw else said
            prepared[_target(name)] = said
        return prepared

    def losses(self, states: States, prepared: Prepared) -> Mapping[str, Tensor]:
        """The mean KL of each bridge on the mixed batch."""
        return {name: kl.mean() for name, kl in self._divergences(self._train, states, prepared).items()}

    @torch.no_grad()
    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """The mean KL of each bridge on plain images."""
        totals = dict.fromkeys(self._bridges, 0.0)
        seen = 0
        for images, labels in batches:
            prepared = self.prepare((images, labels), {})
            for name, kl in self._divergences(self._eval, states, prepared).items():
                totals[name] += float(kl.sum())
            seen += len(images)
        return {name: total / max(seen, 1) for name, total in totals.items()}

    def result(self, states: States) -> dict[str, Bridge]:
        """The trained bridges by name, in evaluation mode."""
        trained = {}
        for name, bridge in self._bridges.items():
            filled = skeleton(bridge)
            filled.load_state_dict({**states[name].params, **states[name].buffers})
            assert isinstance(filled, Bridge)
            trained[name] = filled
        return trained

    def _divergences(self, bodies: Mapping[str, nn.Module], states: States, prepared: Prepared) -> dict[str, Tensor]:
        divergences: dict[str, Tensor] = {}
        for name, bridge in self._bridges.items():
            features = [prepared[_feature(source, bridge.tap)] for source in bridge.reads]
            out = run(bodies[name], states[name].params, states[name].buffers, *features)
            divergences[name] = kl_divergence(prepared[_target(name)], out)
        return divergences


def _feature(mode: str, tap: str) -> str:
    return f"feature/{mode}/{tap}"


def _target(bridge: str) -> str:
    return f"target/{bridge}"
