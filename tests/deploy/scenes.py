"""Ensembles with random weights whose probabilities are neither flat nor saturated, and what they say, by hand."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from scipy.special import softmax
from scipy.stats import entropy
from torch import nn

from modebridge.bridges import Bridge, Heads, VectorBody, body_like
from modebridge.deploy import Answer, Calibration
from modebridge.ensembles import Ensemble
from modebridge.modes import Mode
from modebridge.nets import last_blocks_tap
from tests.scenarios import tiny_net


def stirred(net: nn.Module, seed: int) -> nn.Module:
    """Batch norms with statistics of their own, and a head whose logits are of order one."""
    generator = torch.Generator().manual_seed(seed)
    ranges = {"running_mean": (-0.5, 0.5), "running_var": (0.5, 1.5), "weight": (0.5, 1.5), "bias": (-0.5, 0.5)}
    for layer in net.modules():
        for name, ends in ranges.items() if isinstance(layer, nn.BatchNorm2d) else ():
            getattr(layer, name).data.uniform_(*ends, generator=generator)
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


def headed() -> Ensemble:
    """Two modes; type II with three heads at two taps, and type I with one: little to export."""
    generator = torch.Generator().manual_seed(0)
    early, late = (lambda: nn.Conv2d(1, 3, 3, 2, 1)), (lambda: nn.Conv2d(3, 4, 3, 2, 1))
    nets = [nn.Sequential(early(), nn.ReLU(), late(), nn.Flatten(), nn.Linear(16, 4)).eval() for _ in range(2)]
    bodies = [Heads(VectorBody(14, 5, 12, generator, layout="map"), 3), VectorBody(4, 5, 4, generator, layout="map")]
    for weight in (weight for part in (*nets, *bodies) for weight in part.parameters()):
        weight.data.normal_(0, 0.6, generator=generator)
    modes = [Mode.from_module(net) for net in nets]
    bridges = [
        Bridge(bodies[0], modes, ["0", "2"], name="three", heads=3),
        Bridge(bodies[1], modes[1:], "2", name="one"),
    ]
    found = Ensemble(nets[0], modes, bridges)
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


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def png(pixels: np.ndarray, mode: str | None = None) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "PNG")
    return file.getvalue()


@torch.no_grad()
def by_hand(found: Ensemble, batch: object, fitted: Calibration, threshold: float = 2.0) -> Answer:
    """What a file must say, in float64 and without a line of the library but for the members' probabilities."""
    members = found.members(batch).double().numpy()
    first = softmax(np.log(members[0]) / fitted.first, axis=-1)
    full = softmax(np.log(members.mean(0)) / fitted.full, axis=-1)
    unsure = first.max(-1) < threshold
    used = np.where(unsure, len(members), 1)
    ran = np.arange(len(members)) < used[:, None]
    members = np.where(ran[..., None], members.transpose(1, 0, 2), 0.0)
    inside = np.where(ran, entropy(np.where(ran[..., None], members, 1.0), axis=-1), 0.0).sum(1) / used
    answer = np.where(unsure[:, None], full, first)
    mean = members.sum(1) / used[:, None]
    sets = answered = None
    if fitted.sets is not None:
        others = [[-row[row <= p].sum() for p in row] for row in answer]  # the total of classes not more probable
        sets, answered = np.array(others) <= fitted.sets.limits, answer.max(-1) >= fitted.answers.threshold
    return Answer(answer, used, members, entropy(answer, axis=-1), entropy(mean, axis=-1) - inside, sets, answered)


def middle(found: Ensemble, batch: object, temperature: float) -> float:
    """A threshold that splits a batch, far from every image's confidence."""
    with torch.no_grad():
        logs = found.members(batch)[0].log() / temperature
    top = logs.softmax(-1).amax(-1).sort().values
    gap = int(top.diff().argmax())
    return float(top[gap] + top[gap + 1]) / 2


def check_says_what_the_library_says(file: object, found: Ensemble, batch: object, fitted: Calibration) -> None:
    """Every output, with every threshold that matters."""
    few = len(file(batch).used) > 1
    thresholds = [2.0, 0.0, *([middle(found, batch, fitted.first)] if few else [])] if file.cascade else []
    for threshold in (None, *thresholds):
        told = file(batch, threshold=threshold)
        wanted = by_hand(found, batch, fitted, 2.0 if threshold is None else threshold)
        for name, one, other in zip(told._fields, told, wanted, strict=True):
            assert (one is None) == (other is None), name
            if one is not None:
                np.testing.assert_allclose(one, other, atol=1e-5, err_msg=f"{name} {threshold}")
        assert (told.probabilities.dtype, told.used.dtype) == (np.float32, np.int64)
