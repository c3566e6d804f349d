"""Ensembles with random weights whose probabilities are neither flat nor saturated."""

from __future__ import annotations

import torch
from torch import nn

from modebridge.bridges import Bridge, body_like, last_blocks_tap
from modebridge.bridges.bodies import VectorBody
from modebridge.deploy.elastic_answer import Answer, staged
from modebridge.deploy.one_module import OneModule
from modebridge.ensembles import Ensemble
from modebridge.modes import Mode
from modebridge.nets import without_side_effects
from tests.scenarios import tiny_net


def stirred(net: nn.Module, seed: int) -> nn.Module:
    """Batch norms with statistics of their own, and a head whose logits are of order one."""
    generator = torch.Generator().manual_seed(seed)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            for name, low, high in (
                ("running_mean", -0.5, 0.5),
                ("running_var", 0.5, 1.5),
                ("weight", 0.5, 1.5),
                ("bias", -0.5, 0.5),
            ):
                tensor = getattr(layer, name)
                if tensor is not None:
                    tensor.data.uniform_(low, high, generator=generator)
        if isinstance(layer, nn.Linear):
            layer.weight.data.mul_(0.5)
    return net.eval()


def ensemble(norm: str = "bn", bases: int = 2, ones: int = 2, twos: int = 1) -> Ensemble:
    """Some modes, type I bridges on the first, and type II bridges on the first two."""
    net = tiny_net(0, norm)
    modes = [Mode.from_module(stirred(tiny_net(seed, norm), seed)) for seed in range(bases)]
    tap = last_blocks_tap(net.spec)
    made = [("I", modes[:1], k) for k in range(ones)] + [("II", modes[:2], 10 + k) for k in range(twos)]
    bridges = [
        Bridge(stirred(body_like(net.spec, kind, 2, seed=seed), seed), reads, tap, name=f"{kind}-{seed}")
        for kind, reads, seed in made
    ]
    found = Ensemble(net, modes, bridges)
    found.temperature.fill_(1.3)
    return found


def tied() -> Ensemble:
    """An untrained network: the first mode's answers differ by rounding alone, the bridge's do not."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).eval()
    net[3].weight.data.mul_(1e-7)
    mode = Mode.from_module(net)
    body = VectorBody(8, 4, 10, torch.Generator().manual_seed(0))
    for layer in body.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data.mul_(6)
    return Ensemble(net, [mode], [Bridge(body, [mode], "2")])


def staged_answer(
    one: OneModule, batch: torch.Tensor, bridges: int | None = None, threshold: float | None = None
) -> Answer:
    """The elastic answer, from the parts of a module as a .pt2 file runs its programs."""
    count = len(one.reads) if bridges is None else bridges
    return staged(
        batch,
        lambda k, some: one.bases[k](some),
        lambda features: [
            without_side_effects(runner, runner, *[features[place] for place in reads])
            for runner, reads in list(zip(one.runners, one.reads, strict=True))[:count]
        ],
        taps=one.taps,
        members=len(one.bases) + sum(one.heads),
        temperatures=one.temperatures,
        count=count,
        threshold=threshold,
    )


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def middle(found: Ensemble, batch: torch.Tensor, temperature: float) -> float:
    """A threshold that splits a batch, far from every image's confidence."""
    with torch.no_grad():
        logs = found.members(batch)[0].log() / temperature
    top = logs.softmax(-1).amax(-1).sort().values
    gap = int(top.diff().argmax())
    return float(top[gap] + top[gap + 1]) / 2
