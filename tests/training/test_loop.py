"""The loop against torch's own optimizer by hand, what it says of an epoch, which epoch it keeps, averaged weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.objectives import ModeObjective
from modebridge.training import Checkpoints, Epoch, Task, TensorBoard, TrainConfig, fit_curves, fit_modes, train
from modebridge.training.config import Engine
from tests.scenarios import EXACT, blobs, fit_mode, loader, modes, quick, tiny_net


def decayed(params, lr=0.05, decay=1e-2):
    """AdamW as is usual: vectors do not decay."""
    groups = [{"params": [p for p in params if (p.dim() > 1) == wide], "weight_decay": decay * wide} for wide in (0, 1)]
    return torch.optim.AdamW(groups, lr=lr)


OPTIMIZERS = {
    "frn": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "bn": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-2, nesterov=True),
    "adamw": decayed,
    "own": lambda params: torch.optim.RMSprop(params, lr=0.05),
    "clipped": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-2),
}
OPTIONS = {
    "nesterov": {"nesterov": "standard"},
    "adamw": {"optimizer": "adamw"},
    "own": {"optimizer": OPTIMIZERS["own"], "lr": None, "weight_decay": 0.0},
    "clipped": {"clip": 0.3},
}


@pytest.mark.parametrize("way", OPTIMIZERS)
def test_the_loop_is_plain_torch(way):
    norm = "bn" if way == "bn" else "frn"
    config = TrainConfig(**{"epochs": 3, "lr": 0.05, "weight_decay": 1e-2, "warmup": 2, **OPTIONS.get(way, {})})
    got = fit_mode(tiny_net(0, norm, EXACT), loader(20, 8, dtype=EXACT), config=config)
    net = tiny_net(0, norm, EXACT).train()
    optimizer = OPTIMIZERS[way](list(net.parameters()))
    data = loader(20, 8, dtype=EXACT)
    for epoch in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * config.factor(epoch)
        for images, labels in data:
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            if config.clip:
                assert float(torch.nn.utils.clip_grad_norm_(net.parameters(), config.clip)) > 0.1
            optimizer.step()
    for name, tensor in net.state_dict().items():
        # torch's clipping adds 1e-6 to the norm; what divides by small numbers magnifies rounding.
        close = {"clipped": 1e-5, "adamw": 1e-7, "own": 1e-6}.get(way, 1e-12)
        torch.testing.assert_close(got.state[name], tensor, rtol=0, atol=close)
        assert tensor.dim() < 4 or got.state[name].is_contiguous(memory_format=torch.channels_last), "as they were"


def test_the_optimizer_that_a_network_gets():
    plain, attentive = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Sequential(nn.LayerNorm(2))
    auto = TrainConfig(epochs=1)
    assert (auto.resolved(plain).optimizer, auto.resolved(plain).lr) == ("sgd", 0.1)
    assert (auto.resolved(attentive).optimizer, auto.resolved(attentive).lr) == ("adamw", 0.001)
    assert TrainConfig(epochs=1, optimizer="sgd", lr=0.2).resolved(attentive).lr == 0.2
    with pytest.warns(UserWarning, match="AdamW, for which a learning rate of 0.1 is large"):
        TrainConfig(epochs=1, lr=0.1).resolved(attentive)
    assert "optimizer=tests.training.test_loop.decayed" in TrainConfig(epochs=1, optimizer=decayed).key
    with pytest.raises(ModebridgeError, match="Expected lr to be left out where optimizer is a function, but got 0"):
        TrainConfig(epochs=1, optimizer=decayed, lr=0)
    for wrong, message in (
        ("lion", "'auto', 'sgd' or 'adamw', but got 'lion'"),
        (len, "Optimizer, but got int"),
        (torch.optim.LBFGS, "without a closure, but got 'LBFGS.step.. missing"),
        (torch.optim.SparseAdam, "but got 'SparseAdam does not support dense gradients"),
    ):
        with pytest.raises(ModebridgeError, match=message):
            fit_mode(tiny_net(), loader(), config=TrainConfig(epochs=1, optimizer=wrong))


def test_the_callers_module_is_left_alone_and_zero_epochs_is_the_start():
    net = tiny_net(0, "bn").eval()
    before = trees.fingerprint(net.state_dict())
    fit_mode(net, loader(), config=quick(1))
    assert trees.fingerprint(net.state_dict()) == before
    assert not net.training
    assert fit_mode(net, loader(), config=quick(0)).id == Mode.from_module(net).id


@pytest.mark.parametrize(
    ("change", "message"),
    [({"keep": "best"}, "validation data"), ({"lr": 1e6}, r"loss of 'mode' to be finite, but got .* in epoch")],
)
def test_training_that_cannot_be_or_go_on(change, message):
    with pytest.raises(ModebridgeError, match=message):
        fit_mode(tiny_net(), loader(), config=replace(quick(30), **change))


def test_best_keeps_the_epoch_with_the_fewest_errors():
    """The error rate by hand after every epoch; what is kept is the weights of the lowest."""
    valid, seen = blobs(30, seed=5), []
    config = TrainConfig(epochs=6, lr=0.05, warmup=1, keep="best")
    objective = ModeObjective(tiny_net(), Mode.from_module(tiny_net()))
    original = objective.validate

    def spy(states, batches):
        logits = objective.result(states).load(tiny_net())(valid.images)
        seen.append((float((logits.argmax(-1) != valid.labels).float().mean()), objective.result(states).id))
        scores = original(states, batches)
        assert scores["mode"] == pytest.approx(seen[-1][0])
        return scores

    objective.validate = spy
    (kept,) = train([Task(objective, loader(), [(valid.images, valid.labels)])], config)
    assert objective.result(kept).id == min(seen, key=lambda pair: pair[0])[1]


def test_curves_together_have_the_statistics_that_each_has_alone():
    net, (a, b, c) = tiny_net(0, "bn"), modes(3, "bn")
    scores: list[dict[str, float]] = []
    told = (lambda epoch: scores.append(epoch.scores),)
    config, valid = TrainConfig(epochs=1, lr=0.05, warmup=1, keep="best", callbacks=told), loader(8, seed=5)
    data = [loader(8, seed=s) for s in range(2)]
    together = fit_curves(net, [(a, b), (b, c)], data, config=config, valid=valid)
    (alone,) = fit_curves(net, [(b, c)], [loader(8, seed=1)], config=replace(config, seed=1), valid=valid)
    assert together[1].at(0.5).id == alone.at(0.5).id
    assert scores[0]["1/curve"] == scores[1]["curve"]
    agreed = fit_curves(net, [(a, b), (b, c)], data, config=config, valid=valid, statistics=data[0])
    assert agreed[0].at(0.5).id == together[0].at(0.5).id
    assert agreed[1].at(0.5).id != together[1].at(0.5).id
    assert together[1].start is b
    with pytest.raises(ModebridgeError, match="one loader for each"):
        fit_curves(net, [(a, b), (b, c), (a, c)], data)


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks step together, without a graph."""
    monkeypatch.setattr(Engine, "graphs", True)
    eager = lambda run, *_: lambda fed, lr: run(fed, torch.tensor(lr, dtype=EXACT))  # noqa: E731
    monkeypatch.setattr("modebridge.training.loop.StepGraph", eager)


def test_tasks_that_step_together_may_differ_in_length(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nets, data = [tiny_net(k, dtype=EXACT) for k in range(3)], [loader(n, dtype=EXACT) for n in (16, 32, 24)]
    seen: list[Epoch] = []
    config = quick(2, callbacks=(seen.append,))
    alone = fit_modes(nets, data, config)
    as_on_a_gpu(monkeypatch)
    modes = fit_modes(nets, data, config)
    for one, other in zip(alone, modes, strict=True):
        torch.testing.assert_close(other.params, one.params, rtol=0, atol=1e-9)
    assert seen[3].losses == pytest.approx(seen[1].losses)
    assert seen[3].images == 72
    for steps in (1, 3):  # a stop before and after the first loader ends
        checkpoints = Checkpoints(tmp_path / str(steps), every=0)
        calls = iter([checkpoints.save] * steps)
        checkpoints.save = lambda *given, calls=calls: next(calls)(*given)  # type: ignore[method-assign]
        with pytest.raises(StopIteration):
            fit_modes(nets, data, replace(config, checkpoints=checkpoints))
        again = fit_modes(nets, data, replace(config, checkpoints=Checkpoints(checkpoints.path)))
        assert [mode.id for mode in again] == [mode.id for mode in modes]


def test_tasks_that_step_together_share_a_loader_with_persistent_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)
    data, seen = TensorDataset(blobs(16).images, blobs(16).labels), list[Epoch]()
    shared = DataLoader(data, 4, num_workers=1, persistent_workers=True)
    fit_modes([tiny_net(0), tiny_net(1)], shared, quick(1, callbacks=(seen.append,)))
    assert seen[0].images == 32


def test_epochs_are_told() -> None:
    seen: list[Epoch] = []
    config = replace(quick(3, callbacks=(seen.append,)), keep="best")
    nets, data = [tiny_net(0), tiny_net(1)], [loader(seed=0), loader(seed=1)]
    fit_modes(nets, data, config, valid=loader(12))
    assert [epoch.number for epoch in seen] == [1, 2, 3]
    assert set(seen[0].losses) == set(seen[0].scores) == {"0/mode", "1/mode"}
    assert seen[0].images == 48
    assert all(epoch.rate > 0 and epoch.lr == config.lr * config.factor(epoch.number - 1) for epoch in seen)


def test_tensorboard_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModebridgeError, match=r"pip install .*\[tensorboard\]"):
        TensorBoard(tmp_path)


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit_mode(tiny_net(), loader(), config=quick(2), report=TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert {"loss/mode", "lr", "images per second"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss/mode")] == [1, 2]


def test_averaged_weights_are_the_same_after_a_stop(tmp_path: Path) -> None:
    """That they are torch's is in tests/members/test_network.py."""

    def stop(epoch: Epoch) -> None:
        if epoch.number == 5:
            raise KeyboardInterrupt

    config = quick(6, average_from=4, weight_decay=1e-3)
    mean = fit_mode(tiny_net(0, "bn"), loader(), config=config)
    kept = replace(config, checkpoints=Checkpoints(tmp_path / "swa", every=0))
    with pytest.raises(KeyboardInterrupt):
        fit_mode(tiny_net(0, "bn"), loader(), config=replace(kept, callbacks=(stop,)))
    assert fit_mode(tiny_net(0, "bn"), loader(), config=kept).id == mean.id
    with pytest.raises(ModebridgeError, match="keep='last' for averaged weights"):
        fit_mode(tiny_net(0, "bn"), loader(), config=replace(config, keep="best"), valid=loader(12))


def test_a_bar_on_stderr_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ids = []
    for progress in (True, False, None):  # None: not in a pipe
        ids.append(fit_mode(tiny_net(), loader(), config=quick(2, progress=progress)).id)
        shown = capsys.readouterr()
        assert ("mode: 100%" in shown.err and "2/2" in shown.err and "loss" in shown.err) == (progress is True)
        assert shown.out == ""
    assert len(set(ids)) == 1
