"""Cascades: the first network for what it is sure of, all members for the rest, in Python and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import modebridge as mb
from modebridge.ensembles import average, cascaded, scale
from modebridge.scoring import cost
from tests.scenarios import blobs, loader, modes, tiny_net


def members() -> mb.Ensemble:
    net, two = tiny_net(), modes(2)
    bridge = mb.fit_bridge(net, two, loader(), budget=0.3, config=mb.TrainConfig(epochs=1, progress=False))
    return mb.Ensemble(net, two, [bridge])


@pytest.mark.filterwarnings("ignore")
def test_it_is_the_mixture_of_both() -> None:
    both, images = members(), blobs(40, seed=3).images
    cascade = mb.Cascade(both).calibrate(loader(32), average_cost=1.5)
    first = scale(both.members(images)[0], cascade.first_temperature)
    full = scale(average(both.members(images)), both.temperature)
    wanted, unsure = cascaded(first, full, cascade.threshold)
    assert 0 < int(unsure.sum()) < 40
    torch.testing.assert_close(cascade(images), wanted, rtol=1e-5, atol=1e-6)
    cascade.threshold = 0.0
    torch.testing.assert_close(cascade(images), first)
    cascade.threshold = 2.0
    torch.testing.assert_close(cascade(images), full, rtol=1e-5, atol=1e-6)
    assert cascade(images[:0]).shape == (0, 3)


@pytest.mark.filterwarnings("ignore")
def test_the_others_run_only_where_they_are_needed() -> None:
    both = members()
    cascade = mb.Cascade(both).calibrate(loader(32), average_cost=1.25)
    seen: list[int] = []
    both.bases[1].register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    images = blobs(32, seed=0).images
    _, unsure = cascade.answer(images)
    assert seen == [int(unsure.sum())]
    scores = mb.evaluate(cascade, [(images, blobs(32).labels)])
    share = float(unsure.double().mean())
    whole = cost(both, images).relative_flops
    assert (scores.deferred_share, scores.threshold) == (share, cascade.threshold)
    assert scores.cost.relative_flops == pytest.approx(1 + share * (whole - 1))


@pytest.mark.filterwarnings("ignore")
def test_it_is_exported(tmp_path: Path) -> None:
    cascade, images = mb.Cascade(members()).calibrate(loader(32), average_cost=1.5), blobs(16, seed=5).images
    file = mb.export(cascade, tmp_path / "cascade.onnx", images)
    assert file.cascade
    assert file.meta["threshold"] == pytest.approx(cascade.threshold)
    torch.testing.assert_close(torch.from_numpy(file(images).probabilities), cascade(images), rtol=0, atol=1e-5)
    with pytest.raises(mb.ModebridgeError, match="the threshold of the cascade, but got another one"):
        mb.export(cascade, tmp_path / "cascade.onnx", images, threshold=0.3)


def test_what_cannot_be_one() -> None:
    net = nn.Linear(4, 3)
    one = mb.Ensemble(net, [net])
    for make, words in (
        (lambda: mb.Cascade(net), "as an Ensemble, but got Linear"),
        (lambda: mb.Cascade(one, threshold=-1), "threshold to be at least 0, but got -1"),
        (lambda: mb.Cascade(mb.Ensemble(net, [net], mean="logarithmic")), "mean of probabilities for a cascade"),
    ):
        with pytest.raises(mb.ModebridgeError, match=words):
            make()
    data = [(torch.rand(8, 4), torch.arange(8) % 3)]
    with pytest.raises(mb.ModebridgeError, match=r"between 1 and the 1 networks of the cascade, but got 1\.2"):
        mb.Cascade(one).calibrate(data, average_cost=1.2)
