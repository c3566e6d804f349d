"""Several members in one network, the base of BatchEnsemble, MIMO and packed ensembles; and replacing its layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge import seeds
from modebridge.batches import map_inputs, size_of, unflatten
from modebridge.ensembles import average, probabilities_of
from modebridge.errors import ModebridgeError, quoting
from modebridge.nets import call, frozen_copy, logits_of, run
from modebridge.nets.flops import examples, invoke
from modebridge.nets.quirks import FAILED, on_copy
from modebridge.objectives import ModeObjective
from modebridge.trees import wide
from modebridge.types import Inputs, Prepared, State

MOST = 64
"""Maximum number of members of one network."""

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""The layers that hold nearly all of a network's weights."""


class BaselineObjective(ModeObjective):
    """Train all members of one network on labels with the mean cross entropy over members and images."""

    def _loss(self, state: State, prepared: Prepared) -> Tensor:
        logits = run(self._train, state.all_params, state.buffers, unflatten(prepared))
        labels = prepared["labels"]
        return F.cross_entropy(logits, labels.repeat(len(logits) // len(labels)))

    def _answer(self, state: State, images: Inputs) -> Tensor:
        logits = super()._answer(state, images)
        return average(torch.unflatten(probabilities_of(logits), 0, (-1, size_of(images))))


class Baseline(nn.Module):
    """A network whose M members share weights or layers; it returns logits (M * B, K), ordered by member.

    This is torch-uncertainty's convention. `fit_modes` trains one with its `objective`.

    Args:
        net: maps the inputs from `arranged` to logits (M * B, K).
        size: number of members M.
    """

    objective: ClassVar[type[BaselineObjective]] = BaselineObjective
    what: ClassVar[str]
    """What errors call it."""

    def __init__(self, net: nn.Module, size: int) -> None:
        super().__init__()
        self.net = net
        self.size = size

    @classmethod
    def order(cls, net: nn.Module, members: int, example: Inputs) -> list[str]:
        """The names of the layers to replace, see `called`, if the number of members is possible."""
        if not (isinstance(members, int) and 2 <= members <= MOST):
            raise ModebridgeError(
                f"Expected {cls.what} to have 2 to {MOST} members, but got {members}; one member is the network itself."
            )
        return called(net, example)

    def arranged(self, inputs: Tensor) -> Tensor:
        """Convert an input (B, ...) for the network: by default one copy per member, (M * B, ...)."""
        return inputs.repeat(self.size, *[1] * (inputs.dim() - 1))

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The logits (M * B, K)."""
        arranged = [self.arranged(tensor) for tensor in inputs]
        by_name = {name: self.arranged(tensor) for name, tensor in named.items()}
        return logits_of(self.net(*arranged, **by_name), training=self.training)

    def members(self, inputs: Inputs) -> Tensor:
        """The logits (M, B, K)."""
        return torch.unflatten(call(self, inputs), 0, (self.size, -1))

    def tried(self, example: Inputs) -> Tensor | None:
        """The logits (M, B, K) of two images in evaluation mode, with a gradient; None on the meta device."""
        if next(self.parameters()).device.type == "meta":
            return None
        two = map_inputs(lambda tensor: torch.cat([tensor[:1], tensor[-1:]]), example)
        before = {part: part.training for part in self.modules()}
        self.eval()
        expected, fix = f"the network to run as {self.what} on an example", "use another network or method"
        try:
            with quoting(expected, fix, FAILED), torch.enable_grad(), seeds.borrowed(0):
                logits = invoke(self, [two])
        finally:
            for part, mode in before.items():
                part.training = mode
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 2 * self.size:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ModebridgeError(
                f"Expected {self.what} to return logits of ({self.size} members x batch, classes), but got {got}; it "
                "does not support this network."
            )
        return torch.unflatten(logits, 0, (self.size, 2))

    @torch.enable_grad()
    def check_apart(self, example: Inputs, members: Iterable[int], leaves: Sequence[Tensor], mixes: str) -> None:
        """Raise an error if the logits of some members depend on the parts (M * C, ...) of others in some tensors.

        `leaves` may be filled while the example runs; `mixes` says what the network does then, and what to use instead.
        """
        logits = self.tried(example)
        if logits is None:
            return
        for m in members:
            gradients = torch.autograd.grad(
                logits[m].square().sum(), leaves, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            others = [k for k in range(self.size) if k != m]
            if any(bool(torch.unflatten(one, 0, (self.size, -1))[others].any()) for one in gradients):
                raise ModebridgeError(
                    f"Expected the members of {self.what} to be independent of each other, but this network mixes "
                    f"{mixes}."
                )


class MeanOfMembers(nn.Module):
    r"""A module with `members(inputs)` as a classifier: logits (B, K) whose softmax is their mean probability.

    .. math:: z = \log \frac{1}{M} \sum_{m=1}^{M} \operatorname{softmax}(z_m)

    Args:
        net: the module; it is copied.

    >>> from modebridge.baselines import BatchEnsemble
    >>> MeanOfMembers(BatchEnsemble(nn.Linear(3, 2), 4, example=torch.rand(1, 3)))(torch.rand(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = frozen_copy(net)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The log of the mean probability (B, K)."""
        tables = wide(self.net.members(named or inputs[0])).log_softmax(dim=-1)  # type: ignore[operator]
        return tables.logsumexp(dim=0) - math.log(len(tables))


def called(net: nn.Module, example: Inputs) -> list[str]:
    """The names of the `LAYERS` that a forward pass calls, ordered by their last calls.

    Layers of `nn.MultiheadAttention` are never called: it uses their weights directly.

    >>> called(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)), torch.rand(1, 2))
    ['0', '2']
    """

    def trace(bare: nn.Module, inputs: Sequence[Inputs]) -> list[str]:
        calls: list[str] = []

        def record(name: str, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            calls.append(name)

        for name, layer in bare.named_modules():
            if isinstance(layer, LAYERS):
                layer.register_forward_pre_hook(partial(record, name))
        invoke(bare, inputs)
        return list(dict.fromkeys(reversed(calls)))[::-1]

    return on_copy(net, examples(net, example), trace)


def replaced(net: nn.Module, layers: Mapping[str, nn.Module]) -> nn.Module:
    """A copy of a network with some modules replaced; a module that is used in several places is replaced in all.

    >>> replaced(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), {"1": nn.SiLU()})[1]
    SiLU()
    """
    _check_untied(net, layers)
    memo: dict[int, object] = {id(net.get_submodule(name)): layer for name, layer in layers.items()}
    # deepcopy uses the objects in its memo wherever the old module occurs.
    return copy.deepcopy(net, memo)


def _check_untied(net: nn.Module, names: Iterable[str]) -> None:
    """Raise an error if a layer to replace shares a weight with another one: they would become separate."""
    owners: dict[int, str] = {}
    for name, module in net.named_modules():
        for parameter in module._parameters.values():
            other = owners.setdefault(id(parameter), name)
            if parameter is not None and other != name and {name, other}.intersection(names):
                raise ModebridgeError(
                    f"Expected layers with separate weights, but '{other}' and '{name}' of {type(net).__name__} "
                    "share one; this method does not support the network."
                )


def channels_of(layer: nn.Module) -> tuple[int, int]:
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return layer.in_channels, layer.out_channels
