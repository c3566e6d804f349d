"""Curves that learn from teachers: a step by hand, together and alone, stopped and gone on, and the best epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import modebridge as mb
from modebridge import seeds, trees
from modebridge.curves import start_curve
from modebridge.distillation import TaughtCurves, Teachers
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, refresh_statistics
from modebridge.training import Checkpoints
from tests.scenarios import EXACT, blobs, loader, modes, quick, tiny_net


def bits(curve) -> str:
    return trees.fingerprint(*curve.pins, *curve.statistics.values())


@pytest.mark.parametrize("mixup", [0.7, 0.0])
@pytest.mark.parametrize("norm", ["frn", "bn"])
def test_a_step_by_hand(norm, mixup):
    """One step on one batch: draws, mixture, teachers, Bezier point and KL all by functions of numpy and torch."""
    net, (a, b, c, d) = tiny_net(5, norm, EXACT), modes(4, norm, EXACT)
    images = blobs(8, dtype=EXACT).images
    config = replace(quick(1), momentum=0.0, seed=3)
    curve = mb.fit_curve(net, a, b, [(images, blobs(8).labels)], teachers=[c, d], mixup=mixup, config=config)

    generator = seeds.generator(3, "draws")
    if mixup:
        seed = int(torch.randint(2**62, (), generator=generator))
        share = torch.from_numpy(np.random.default_rng(seed).beta(mixup, mixup, 8)).float().double().view(-1, 1, 1, 1)
        images = share * images + (1 - share) * images[torch.randperm(8, generator=generator)]
    r = float(torch.rand((), generator=generator, dtype=torch.float64))
    with torch.no_grad():
        target = sum(functional_call(net.eval(), mode.state, (images,)).softmax(-1) for mode in (c, d)) / 2
    pin = {name: ((a.params[name] + b.params[name]) / 2).requires_grad_() for name in a.params}
    point = {k: (1 - r) ** 2 * a.params[k] + 2 * r * (1 - r) * pin[k] + r**2 * b.params[k] for k in pin}
    buffers = {name: tensor.clone() for name, tensor in a.buffers.items()}
    logits = functional_call(net.train(), {**point, **buffers}, (images,))
    loss = F.kl_div(logits.log_softmax(-1), target, reduction="batchmean")
    gradients = torch.autograd.grad(loss, list(pin.values()))
    lr = config.lr * config.factor(0)
    moved = 0.0
    for (name, tensor), gradient in zip(pin.items(), gradients, strict=True):
        torch.testing.assert_close(curve.pins[0][name], tensor - lr * gradient, rtol=1e-9, atol=1e-11)
        moved += float((lr * gradient).abs().sum())
    assert moved > 1e-3


def test_statistics_are_those_of_mixed_images():
    net, (a, b, c) = tiny_net(0, "bn", EXACT), modes(3, "bn", EXACT)
    data = list(loader(dtype=EXACT))
    curve = mb.fit_curve(net, a, b, data, teachers=[c], mixup=0.7, config=quick(1, seed=3))
    generator = seeds.generator(3, "mixed batches")
    objective = TaughtCurves(net, {"curve": start_curve(net, a, b)}, [c], data, mixup=0.7)
    mixed = [(objective.mixed(images, objective.draw(len(labels), generator)), labels) for images, labels in data]
    wanted = refresh_statistics(net, curve.point(0.5), a.buffers, mixed)
    plain = refresh_statistics(net, curve.point(0.5), a.buffers, data)
    for name in (name for name in wanted if "running" in name):
        torch.testing.assert_close(curve.at(0.5).buffers[name], wanted[name], rtol=1e-9, atol=1e-12)
        assert not torch.allclose(wanted[name], plain[name], rtol=1e-4)


def test_together_is_alone_and_teachers_run_once(monkeypatch):
    net, (a, b, c) = tiny_net(0, "bn"), modes(3, "bn")
    pairs = {"a-b": (a, b), "a-c": (a, c)}
    asked = []
    ask = Teachers.ask
    monkeypatch.setattr(Teachers, "ask", lambda self, images: (asked.append(1), ask(self, images))[1])
    arguments = {"pin_start": "random", "config": quick(), "seeds": {"a-b": 1, "a-c": 2}}
    together = mb.fit_taught_curves(net, pairs, [b, c], loader(), **arguments)
    steps = 3 * 2
    assert steps <= len(asked) <= steps + len(pairs), "one more per curve, to look at what came out"
    for name, ends in pairs.items():
        alone = mb.fit_taught_curves(net, {name: ends}, [b, c], loader(), **arguments)[name]
        assert bits(alone) == bits(together[name])
        assert (alone.start, alone.end) == ends
    assert bits(together["a-b"]) != bits(together["a-c"])
    assert set(together["a-b"].statistics) == {0.5}


class StopError(Exception):
    """Stands for kill -9."""


class Mortal(list):
    """Batches that end with the program after so many."""

    lives = -1

    def __iter__(self):
        for batch in super().__iter__():
            if self.lives == 0:
                raise StopError
            self.lives -= 1
            yield batch


@pytest.mark.slow
def test_stopped_it_goes_on_and_ends_at_the_same_bits(tmp_path):
    net, (a, b, c) = tiny_net(0, "bn"), modes(3, "bn")

    def fit(lives: int, checkpoints: Checkpoints | None = None) -> str:
        data = Mortal(loader(16))
        data.lives = lives
        config = replace(quick(3), keep="best")
        return bits(
            mb.fit_curve(
                net, a, b, data, teachers=[b, c], config=config, valid=loader(8, seed=7), checkpoints=checkpoints
            )
        )

    with pytest.raises(StopError):
        fit(12, Checkpoints(tmp_path / "c", every=0.0))
    assert (tmp_path / "c").exists()
    assert fit(-1, Checkpoints(tmp_path / "c", every=0.0)) == fit(-1)


@pytest.mark.slow
def test_the_best_epoch_is_kept_by_the_loss_of_the_middle():
    """The score is the KL at r = 0.5 on plain images; the curve that comes back is that of the lowest one."""
    net, (a, b) = tiny_net(0, "bn", EXACT), modes(2, "bn", EXACT)
    data, held = list(loader(dtype=EXACT)), blobs(12, seed=7, dtype=EXACT)
    valid = [(held.images[:8], held.labels[:8]), (held.images[8:], held.labels[8:])]
    teacher = start_curve(net, a, b).with_statistics(net, 0.5, data).at(0.5)  # where the curve begins
    scores: list[float] = []
    curve = mb.fit_curve(
        net,
        a,
        b,
        data,
        teachers=[teacher],
        config=replace(quick(3), weight_decay=2.0, keep="best"),  # so much that it only gets worse
        valid=valid,
        report=lambda epoch: scores.append(epoch.scores["curve"]),
    )
    with torch.no_grad():
        target = functional_call(net.eval(), teacher.state, (held.images,)).softmax(-1)
        logits = functional_call(net, curve.at(0.5).state, (held.images,))
    loss = float(F.kl_div(logits.log_softmax(-1), target, reduction="batchmean"))
    assert len(scores) == 3
    assert min(scores) < 0.9 * scores[-1]
    assert loss == pytest.approx(min(scores), rel=1e-9)


def test_the_middle_learns_what_the_teachers_say():
    """Between two linear students the middle of a curve can say what one linear teacher says; the ends do not."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    a, b, teacher = (Mode.from_module(nn.Linear(4, 3)) for _ in range(3))
    images = torch.rand(64, 4)
    data = [(images[k : k + 16], torch.zeros(16, dtype=torch.long)) for k in range(0, 64, 16)]
    curve = mb.fit_curve(net, a, b, data, teachers=[teacher], config=quick(30, seed=1))
    target = functional_call(net, teacher.state, (images,)).softmax(-1).detach()

    def divergence(mode: Mode) -> float:
        logits = functional_call(net, mode.state, (images,))
        return float(F.kl_div(logits.log_softmax(-1), target, reduction="batchmean"))

    assert divergence(curve.at(0.5)) < 0.2 * min(divergence(a), divergence(b))


def test_each_process_gets_its_rows_as_they_are_mixed_and_the_same_r():
    net, (a, b, c) = tiny_net(0, dtype=EXACT), modes(3, dtype=EXACT)
    images, labels = blobs(9, dtype=EXACT).images, blobs(9).labels
    for mixup in (1.0, 0.0):
        objective = TaughtCurves(net, {"curve": start_curve(net, a, b)}, [c], [(images, labels)], mixup=mixup)
        draw = objective.draw(9, torch.Generator().manual_seed(1))
        rows = slice(1, 9, 2)
        part, of_part = objective.part((images, labels), draw, rows)
        wanted = objective.mixed(images, draw)[rows]
        torch.testing.assert_close(objective.mixed(part[0], of_part)[: len(wanted)], wanted, rtol=0, atol=0)
        assert of_part["r"] is draw["r"]
        assert objective.whole == bool(mixup)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"teachers": []}, "Expected teachers for curves to learn from, but got none"),
        ({"teachers": [tiny_net(1)]}, "to be modes or bridged ensembles, but got ResNet"),
        ({"pairs": {}}, "at least one pair of modes"),
        ({"mixup": -1.0}, "mixup to be at least 0"),
        ({"teachers": [Mode.from_module(nn.Linear(2, 3))]}, "the same architecture"),
    ],
)
def test_what_cannot_be_done_is_said(changes, sentence):
    a, b, c = modes(3)
    arguments = {"pairs": {"a-b": (a, b)}, "teachers": [c], "train_data": loader(), **changes}
    with pytest.raises(ModebridgeError, match=sentence):
        mb.fit_taught_curves(tiny_net(), **arguments)


def test_teachers_in_any_form():
    net, (a, b, c) = tiny_net(0), modes(3)
    pairs, data = {"a": (a, b)}, loader(8)
    listed = mb.fit_taught_curves(net, pairs, [c], data, config=quick(1))["a"]
    for form in (c, (mode for mode in [c])):
        assert bits(mb.fit_taught_curves(net, pairs, form, data, config=quick(1))["a"]) == bits(listed)
    with pytest.raises(ModebridgeError, match="Expected pairs to be a dict"):
        mb.fit_taught_curves(net, [(a, b)], [c], data, config=quick(1))
