"""The loop against torch's own optimiser by hand, the schedule, and the checks before training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.training import TrainConfig, fit_bridge, fit_curve, fit_mode, side_by_side
from tests.scenarios import blobs, loader, modes, quick, tiny_net


def test_schedule_of_the_facts():
    config = TrainConfig(epochs=200)
    assert [config.factor(e) for e in range(5)] == pytest.approx([0.01, 0.2575, 0.505, 0.7525, 1.0])
    assert config.factor(199) == pytest.approx(6.4e-5, rel=0.01)
    assert TrainConfig(epochs=1, warmup=5).factor(0) == 1.0


@pytest.mark.parametrize("norm", ["frn", "bn"])
def test_the_loop_is_plain_sgd(norm):
    config = TrainConfig(epochs=3, lr=0.05, weight_decay=1e-2, warmup=2, keep="last")
    got = fit_mode(tiny_net(0, norm), loader(20, 8), config=config)
    net = tiny_net(0, norm).train()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
    data = loader(20, 8)
    for epoch in range(3):
        optimiser.param_groups[0]["lr"] = 0.05 * config.factor(epoch)
        for images, labels in data:
            optimiser.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimiser.step()
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(got.state[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_callers_module_is_left_alone_and_zero_epochs_is_the_start():
    net = tiny_net(0, "bn").eval()
    before = trees.fingerprint(net.state_dict())
    fit_mode(net, loader(), config=quick(1))
    assert trees.fingerprint(net.state_dict()) == before
    assert not net.training
    assert fit_mode(net, loader(), config=quick(0)).id == Mode.from_module(net).id


def test_training_learns():
    mode = fit_mode(tiny_net(), loader(48), config=quick(30))
    data = blobs(48, seed=9)
    assert float((mode.load(tiny_net())(data.images).argmax(-1) == data.labels).float().mean()) > 0.9


def test_side_by_side_is_one_after_another():
    jobs = [lambda s=s: fit_mode(tiny_net(s, "bn"), loader(seed=s), config=quick(2)).id for s in range(4)]
    assert side_by_side(jobs, 2) == side_by_side(jobs, 1)
    assert side_by_side([], 2) == []


def test_side_by_side_passes_errors_on():
    def fail():
        raise ModebridgeError("said")

    with pytest.raises(ModebridgeError, match="said"):
        side_by_side([fail, lambda: 1])


def test_progress_is_reported():
    seen = []
    fit_mode(tiny_net(), loader(), config=quick(3), report=lambda done, losses: seen.append((done, losses)))
    assert [done for done, _ in seen] == [1, 2, 3]
    assert all(losses["mode"] > 0 for _, losses in seen)


def test_best_needs_validation_data():
    with pytest.raises(ModebridgeError, match="validation data"):
        fit_mode(tiny_net(), loader(), config=replace(quick(), keep="best"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "to have batches, but got none"),
        ((pair for pair in []), "more than once"),
        ([torch.zeros(2, 1, 8, 8)], r"to yield \(images, labels\)"),
        ([(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2).long())], "divide uint8 images by 255"),
        ([(torch.full((2, 1, 8, 8), float("nan")), torch.zeros(2).long())], "NaN or Inf"),
        ([(torch.full((2, 1, 8, 8), float("inf")), torch.zeros(2).long())], "NaN or Inf"),
        ([(torch.zeros(2, 1, 8, 8), torch.zeros(3).long())], "3 for 2"),
        ([(torch.zeros(2, 1, 8, 8), torch.zeros(2))], "whole numbers"),
        ([(torch.zeros(2, 1, 8, 8), torch.tensor([0, 3]))], r"in \[0, 3\), but got 0 to 3"),
        ([(torch.zeros(2, 1, 8, 8), torch.tensor([0, -1]))], r"in \[0, 3\), but got -1 to 0"),
    ],
)
def test_bad_data_is_refused_before_training(data, message):
    net, (a, b) = tiny_net(), modes(2)
    with pytest.raises(ModebridgeError, match=message):
        fit_mode(net, data, config=quick())
    if not isinstance(data, list):
        return
    with pytest.raises(ModebridgeError, match=message):
        fit_curve(net, a, b, data, config=quick())


def test_bad_data_in_a_later_batch_of_a_list():
    good = next(iter(loader()))
    with pytest.raises(ModebridgeError, match="NaN or Inf"):
        fit_mode(tiny_net(), [good, (good[0] * float("nan"), good[1])], config=quick())


def test_a_diverging_loss_stops_the_run():
    with pytest.raises(ModebridgeError, match=r"loss of 'mode' to be finite, but got .* in epoch"):
        fit_mode(tiny_net(), loader(), config=replace(quick(30), lr=1e30))


def test_r_and_modes_are_checked_before_training():
    net, (a, b) = tiny_net(), modes(2)
    with pytest.raises(ModebridgeError, match="r to be in"):
        fit_curve(net, a, b, loader(), r=-1)
    curve = fit_curve(net, a, b, loader(), config=quick(1))
    with pytest.raises(ModebridgeError, match="r to be in"):
        fit_bridge(net, curve, loader(), r=1.01)
    with pytest.raises(ModebridgeError, match="to have batches"):
        fit_bridge(net, curve, [])


@pytest.mark.parametrize(
    ("field", "value"),
    [("epochs", -1), ("lr", float("nan")), ("momentum", -0.1), ("weight_decay", float("inf")), ("warmup", 0)],
)
def test_bad_configs(field, value):
    with pytest.raises(ModebridgeError, match=f"Expected {field} to be a number of at least"):
        replace(TrainConfig(epochs=1), **{field: value})
    with pytest.raises(ModebridgeError, match="'best' or 'last'"):
        TrainConfig(epochs=1, keep="all")  # type: ignore[arg-type]
