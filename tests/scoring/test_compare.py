"""Comparisons: the scores of `evaluate`, and differences on the same images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import modebridge as mb
from modebridge.scoring import hits, interval_of, resampled_means, surprisals
from tests.scenarios import blobs, modes, tiny_net


def test_differences_are_paired() -> None:
    net, two, data = tiny_net(), modes(2), blobs(30)
    test = [(data.images[:20], data.labels[:20]), (data.images[20:], data.labels[20:])]
    models = {"one": mb.Ensemble(net, two[:1]), "two": mb.Ensemble(net, two), "same": two[0].load(net)}
    found = mb.compare(models, test)
    for name, model in models.items():
        assert found.scores[name].nll == mb.evaluate(model, test).nll
    tables = [mb.Ensemble(net, some)(data.images) for some in (two[:1], two)]
    for score, function in (("nll", surprisals), ("accuracy", hits)):
        apart = function(tables[1], data.labels) - function(tables[0], data.labels)
        value, low, high = found.differences["two"][score]
        assert value == pytest.approx(float(apart.mean()))
        assert (low, high) == pytest.approx(interval_of(resampled_means(apart[:, None])[:, 0]))
    assert found.differences["same"]["nll"] == (0.0, 0.0, 0.0)
    assert "one" not in found.differences
    lines = str(found).splitlines()
    assert lines[0].split() == [
        "cost",
        "params",
        "accuracy",
        "NLL",
        "NLL",
        "minus",
        "one",
        "accuracy",
        "minus",
        "one,",
        "points",
    ]
    assert lines[1].startswith("one   x1.00")
    assert lines[2].startswith("two   x2.00")
    assert [record["name"] for record in found.to_dicts()] == ["one", "two", "same"]
    assert len(found.to_dicts()[1]["nll_difference"]) == 3


def test_pixels_are_compared_by_image() -> None:
    nets = [nn.Conv2d(1, 3, 1) for _ in range(2)]
    x, y = torch.rand(5, 1, 4, 4), torch.randint(3, (5, 4, 4))
    y[0, 1:] = 255
    found = mb.compare({"one": nets[0], "other": nets[1]}, [(x, y)])
    value, low, high = found.differences["other"]["nll"]
    assert value == pytest.approx(found.scores["other"].nll - found.scores["one"].nll)
    assert low <= value <= high


def test_what_cannot_be_compared() -> None:
    net = nn.Linear(4, 3)
    data = torch.utils.data.TensorDataset(torch.rand(64, 4), torch.arange(64) % 3)
    shuffled = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    with pytest.raises(mb.ModebridgeError, match="to have one order of images, but it changes"):
        mb.compare({"a": net, "b": net}, shuffled)
    for wrong in ([net], {}):
        with pytest.raises(mb.ModebridgeError, match="Expected models by name, but got"):
            mb.compare(wrong, data)
