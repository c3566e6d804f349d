"""Cascades: the first network for what it is sure of, all members for the rest, in Python and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import modebridge as mb
from modebridge.ensembles import average, cascaded, scale
from modebridge.scoring import cost
from tests.deploy.scenes import headed, images

VALID = [(images(32, 1), torch.arange(32) % 4)]


def test_it_is_the_mixture_of_both() -> None:
    both, batch = headed(), images(40, 3)
    cascade = mb.Cascade(both).calibrate(VALID, average_cost=1.5)
    first = scale(both.members(batch)[0], cascade.first_temperature)
    full = scale(average(both.members(batch)), both.temperature)
    wanted, unsure = cascaded(first, full, cascade.threshold)
    assert 0 < int(unsure.sum()) < 40
    torch.testing.assert_close(cascade(batch), wanted, rtol=1e-5, atol=1e-6)
    cascade.threshold = 0.0
    torch.testing.assert_close(cascade(batch), first)
    cascade.threshold = 2.0
    torch.testing.assert_close(cascade(batch), full, rtol=1e-5, atol=1e-6)
    assert cascade(batch[:0]).shape == (0, 4)


def test_it_is_saved_with_both_temperatures_and_its_rules(tmp_path) -> None:
    cascade, batch = mb.Cascade(headed()).calibrate(VALID, average_cost=1.5), images(40, 3)
    cascade.conformal(VALID, coverage=0.5)
    cascade.first_temperature.fill_(1.3)
    cascade.save(tmp_path / "cascade")
    again = mb.load(tmp_path / "cascade", net=headed().bases[0])
    assert (type(again), again.threshold, again.sets) == (mb.Cascade, cascade.threshold, cascade.sets)
    assert torch.equal(again(batch), cascade(batch))
    assert again.first_temperature != again.ensemble.temperature


def test_the_others_run_only_where_they_are_needed() -> None:
    both = headed()
    cascade = mb.Cascade(both).calibrate(VALID, average_cost=1.25)
    seen: list[int] = []
    both.bases[1].register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    _, unsure = cascade.answer(VALID[0][0])
    assert seen == [int(unsure.sum())]
    assert seen[0] <= 32 // 4, "never more than the average cost allows"
    scores = mb.evaluate(cascade, VALID)
    share = float(unsure.double().mean())
    whole = cost(both, VALID[0][0]).relative_flops
    assert (scores.deferred_share, scores.threshold) == (share, cascade.threshold)
    assert scores.cost.relative_flops == pytest.approx(1 + share * (whole - 1))


def test_it_is_exported(tmp_path: Path) -> None:
    cascade, batch = mb.Cascade(headed()).calibrate(VALID, average_cost=1.5), images(16, 5)
    file = mb.export(cascade, tmp_path / "cascade.onnx", batch)
    assert file.cascade
    assert file.meta["threshold"] == pytest.approx(cascade.threshold)
    unsure = cascade.answer(batch)[1].tolist()
    assert set(unsure) == {False, True}
    assert file(batch).used.tolist() == [6 if one else 1 for one in unsure]
    torch.testing.assert_close(torch.from_numpy(file(batch).probabilities), cascade(batch), rtol=0, atol=1e-5)
    told = [(VALID[0][0], cascade.predict(VALID[0][0]))]
    cascade.conformal(told, 0.6).abstain(told, risk=0.3)
    decided, rules = mb.export(cascade, tmp_path / "cascade.onnx", batch)(batch), (cascade.sets, cascade.answers)
    assert decided.sets.tolist() == cascade.predict_sets(batch).tolist() == rules[0](cascade(batch)).tolist()
    assert (cascade.predict(batch) >= 0).tolist() == decided.answered.tolist() == rules[1](cascade(batch)).tolist()
    assert mb.evaluate(cascade, told).coverage >= 0.6
    cascade.threshold = 0.9
    assert cascade.sets is cascade.answers is None, "fitted for another threshold"
    assert str(cascade).endswith(", threshold=0.9)")
    with pytest.raises(mb.ModebridgeError, match="the threshold of the cascade, but got another one"):
        mb.export(cascade, tmp_path / "cascade.onnx", batch, threshold=0.3)


def test_what_cannot_be_one() -> None:
    net = nn.Linear(4, 3)
    two = mb.Ensemble(net, [net, nn.Linear(4, 3)])
    data = [(torch.rand(8, 4), torch.arange(8) % 3)]
    for make, words in (
        (lambda: mb.Cascade(net), "as an Ensemble, but got Linear"),
        (lambda: mb.Cascade(mb.Ensemble(net, [net])), "two networks or more, but got one; pass several modes"),
        (lambda: mb.Cascade(two, threshold=-1), "threshold to be at least 0, but got -1"),
        (lambda: mb.Cascade(two)(data[0][0]), "to have a threshold, but got none; call calibrate"),
        (lambda: mb.Cascade(two).calibrate(data), "an average cost for a cascade without a threshold, but got none"),
        (lambda: mb.Cascade(two).calibrate(data, 2.2), r"between 1 and the 2 networks of the cascade, but got 2\.2"),
        (lambda: mb.Cascade(mb.Ensemble(net, [net], mean="logarithmic")), "mean of probabilities for a cascade"),
    ):
        with pytest.raises(mb.ModebridgeError, match=words):
            make()
    assert not two.calibrated, "refused before anything is changed"
    both = headed()
    for batch, words in (
        (images(2).expand(2, 2, 8, 8), "the ensemble to run on the images you passed, but got"),
        (images(2).double(), "images you passed to be torch.float32, as the ensemble's weights are, but got torch.flo"),
        (images(2)[0], "the images you passed, but got .*pass a single image as images.None."),
    ):
        for model in (both, mb.Cascade(both, 0.5)):
            with pytest.raises(mb.ModebridgeError, match=words):
                model(batch)
