"""The objective of bridges: KL(target || bridge) on mixed images, with all bridges of all pairs in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from modebridge.bridges.bridge import Bridge
from modebridge.bridges.loss import bridge_loss
from modebridge.bridges.matching import Compile, FanOut, FrozenNetworks, MatchingObjective, Outputs, in_turn
from modebridge.bridges.targets import Target
from modebridge.errors import ModebridgeError, near
from modebridge.modes import Mode
from modebridge.nets import check_tap, frozen_copy, mean_probability, probabilities_of, run
from modebridge.trees import wide
from modebridge.types import Batch, Draw, Prepared, Program, State, States

__all__ = ["BridgeObjective"]


class BridgeObjective(MatchingObjective[dict[str, Bridge]]):
    """Train many bridges at once; each frozen network runs once per batch, whatever the number of bridges.

    With m modes, all curves between them and any number of bridges, a batch takes m + m(m-1)/2 frozen forward
    passes. Bridges share batches and frozen outputs but no parameters, so each is trained exactly as it would be alone.

    Args:
        net: the base network.
        bridges: the bridges to train, by name; training starts from their weights.
        targets: the target of each bridge, by the same names.
        modes: all modes that a bridge reads.
        mixup: alpha of the Beta distribution of the shares; 0 turns mixup off.
        cutmix: alpha of the Beta distribution of the box areas; 0 turns CutMix off.
        compiled: compiles the frozen networks' forward pass, if the engine supports it.
        fan_out: runs independent jobs in parallel, if the engine supports it.
        synced: converts batch norm to use the batches of all processes.
        shares: whether two bodies may share one program, so that it is compiled once; by default never.
    """

    def __init__(
        self,
        net: nn.Module,
        bridges: Mapping[str, Bridge],
        targets: Mapping[str, Target],
        modes: Sequence[Mode],
        mixup: float = 0.4,
        *,
        cutmix: float = 0.0,
        compiled: Compile = lambda function: function,
        fan_out: FanOut = in_turn,
        synced: Callable[[nn.Module], nn.Module] = lambda module: module,
        shares: Callable[[nn.Module, nn.Module], bool] = lambda a, b: False,
    ) -> None:
        if not bridges:
            raise ModebridgeError("Expected at least one bridge to train, but got none; pass some.")
        if bridges.keys() != targets.keys():
            raise ModebridgeError(
                f"Expected one target per bridge, but got targets {sorted(targets)} for bridges {sorted(bridges)}; "
                "use the same names."
            )
        super().__init__(mixup, cutmix)
        self._bridges = dict(bridges)
        self._targets = dict(targets)
        known: dict[str, Mode] = {mode.id: mode for mode in modes}
        for name, bridge in bridges.items():
            for tap in bridge.taps:
                check_tap(net, tap)
            if bridge.heads != targets[name].heads:
                raise ModebridgeError(
                    f"Expected bridge '{name}' to have one head per target, but got {bridge.heads} heads for "
                    f"{targets[name].heads}; see heads_target."
                )
            for source in bridge.reads:
                if source not in known:
                    raise ModebridgeError(
                        f"Expected bridge '{name}' to read one of the {len(modes)} modes given, but it reads a mode "
                        f"{source[:8]} that is not among them; {near(source[:8], [m.id[:8] for m in modes])}"
                    )
            # For the same program, only the number of features and the body must match.
            twins = (key for key in self._programs if len(bridges[key].places) == len(bridge.places))
            twin = next((key for key in twins if shares(bridges[key].body, bridge.body)), None)
            self._programs[name] = (
                self._programs[twin] if twin else _program(synced(frozen_copy(bridge, training=True)))
            )
            self._measures[name] = self._measures[twin] if twin else _program(frozen_copy(bridge))
        # Run only the networks that are needed: targets, and modes whose features are read.
        read = {source for bridge in bridges.values() for source in bridge.reads}
        predicted = {mode.id: mode for target in targets.values() for mode in target.modes}
        needed = {**{key: mode for key, mode in known.items() if key in read}, **predicted}
        taps = sorted({tap for bridge in bridges.values() for tap in bridge.taps})
        self._frozen = FrozenNetworks(net, list(needed.values()), taps, compiled=compiled, fan_out=fan_out)

    def start(self) -> States:
        """The bridges' weights; those with `requires_grad=False` are frozen."""
        states: dict[str, State] = {}
        for name, bridge in self._bridges.items():
            mode = Mode.from_module(bridge)
            learns = {key for key, parameter in bridge.named_parameters() if parameter.requires_grad}
            states[name] = State.split(mode.params, mode.buffers, learns)
        return states

    @torch.no_grad()
    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """Mix the images, run every frozen network once on them, and give each bridge its features and target."""
        outputs = self._frozen(self.mixed(batch[0], draw))
        prepared: dict[str, dict[str, Tensor]] = {}
        for name, bridge in self._bridges.items():
            places = enumerate(bridge.places)
            inputs = {f"feature{k}": outputs[bridge.reads[source]][1][tap] for k, (source, tap) in places}
            target = self._targets[name]
            parts = [self._target_of(part, outputs, batch, draw) for part in target.parts or (target,)]
            inputs["target"] = torch.stack(parts, dim=1) if target.parts else parts[0]
            prepared[name] = inputs
        return prepared

    def _target_of(self, target: Target, outputs: Mapping[str, Outputs], batch: Batch, draw: Draw) -> Tensor:
        """The probabilities (B, K) of a target on a batch."""
        if target.modes:
            mean = mean_probability([probabilities_of(outputs[mode.id][0]) for mode in target.modes])
            if not target.label_share:
                return mean
        logits = wide(next(iter(outputs.values()))[0])
        mixed = self.mixed_labels(batch[1], logits.shape[-1], logits.dtype, draw, batch[0])
        return torch.lerp(mean, mixed, target.label_share) if target.modes else mixed

    def result(self, states: States) -> dict[str, Bridge]:
        """The trained bridges by name, in evaluation mode; `requires_grad` flags are kept."""
        trained = {}
        for name, bridge in self._bridges.items():
            filled = frozen_copy(bridge)
            state = states[name]
            filled.load_state_dict({**state.all_params, **state.buffers})
            filled.cpu()
            for copied, parameter in zip(filled.parameters(), bridge.parameters(), strict=True):
                copied.requires_grad_(parameter.requires_grad)
            assert isinstance(filled, Bridge)
            trained[name] = filled
        return trained


def _program(body: nn.Module) -> Program:
    def loss(state: State, prepared: Prepared) -> Tensor:
        features = [tensor for name, tensor in prepared.items() if name.startswith("feature")]
        logits = run(body, state.all_params, state.buffers, *features)
        return bridge_loss(prepared["target"], logits)

    return loss
