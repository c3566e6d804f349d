"""A run that is stopped anywhere and started again ends at the same bits as one that never stopped."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from modebridge import trees
from modebridge.bridges import plan_bridge
from modebridge.curves import start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.training import Checkpoints, Engine, fit_curves, fit_many, fit_modes
from modebridge.training.progress import fingerprint
from tests.scenarios import quick


class StopError(Exception):
    """Stands for kill -9: nothing is tidied up."""


class Fragile:
    """A loader with another order in every epoch that dies after so many batches, over all epochs and passes."""

    def __init__(self, inner, lives=-1):
        self.inner, self.lives, self.epoch = inner, lives, 0

    def set_epoch(self, epoch):
        self.epoch = epoch % len(self.inner)

    def __iter__(self):
        for batch in self.inner[self.epoch :] + self.inner[: self.epoch]:
            if self.lives == 0:
                raise StopError
            self.lives -= 1
            yield batch


class Noisy(nn.Module):
    """Batch norm, dropout, stochastic depth as timm and torchvision write it; noise in evaluation mode too if asked."""

    def __init__(self, inputs: int = 4, always: bool = False) -> None:
        super().__init__()
        self.always = always
        self.stem, self.middle, self.head = nn.Linear(inputs, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm, self.dropout = nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        if self.training or self.always:
            x = x + self.middle(x) * x.new_empty(len(x), 1).bernoulli_(0.5)
        return self.head(self.dropout(x))


def noisy(seed: int, **options: bool) -> Noisy:
    torch.manual_seed(seed)
    return Noisy(**options)


def batches(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(6, 4, generator=generator), torch.arange(6) % 3) for _ in range(4)]


def two_modes(lives=-1, **options):
    loaders = [Fragile(batches(k), lives) for k in range(2)]
    return [mode.id for mode in fit_modes([noisy(k) for k in range(2)], loaders, config=replace(quick(), **options))]


def two_curves(lives=-1, **options):
    a, b, c = (Mode.from_module(noisy(seed)) for seed in range(3))
    loaders = [Fragile(batches(k), lives) for k in range(2)]
    found = fit_curves(noisy(0), [(a, b), (b, c)], loaders, config=quick(**options))
    return [trees.fingerprint(*curve.pins, *curve.statistics.values()) for curve in found]


def two_bridges(lives=-1, names=("one", "two"), **options):
    """The frozen networks draw too, on the thread that prepares the next batch; the best epoch is not the last."""
    net, (a, b) = noisy(0, always=True), (Mode.from_module(noisy(seed)) for seed in range(2))
    curve, plans = start_curve(net, a, b).with_statistics(net, 0.5, batches()), {}
    for k, name in enumerate(("one", "two")):
        torch.manual_seed(20 + k)
        plans[name] = plan_bridge(net, curve, batches()[0][0], tap="stem", body=Noisy(6))
    plans = {name: plans[name] for name in names}
    config = replace(quick(**options), keep="best", lr=1.0)
    found = fit_many(net, plans, Fragile(batches(), lives), config, valid=batches(7))
    return [trees.fingerprint(bridge.state_dict()) for bridge in found.values()]


def by_adamw(lives=-1, **options):
    return two_modes(lives, optimizer="adamw", **options)


class Counting(torch.optim.ASGD):
    def step(self):
        (group,) = self.param_groups
        group["k"] = group.get("k", 0) + 1
        group["lr"] /= group["k"]
        super().step()


def by_another(lives=-1, **options):
    """An optimizer with a history of its own, and numbers that are no tensors."""
    return two_modes(lives, **{"optimizer": lambda params: Counting(params, lr=0.05), "lr": None, **options})


FITS = [two_modes, two_curves, two_bridges, by_adamw, by_another]


@pytest.mark.parametrize("fit", FITS)
def test_stopped_anywhere_it_ends_at_the_same_bits(fit, tmp_path):
    whole = fit(epochs=3)
    for lives in range(1, 14, 2):
        checkpoints = Checkpoints(tmp_path / f"{lives}", every=0.0)
        try:
            ended = fit(lives, epochs=3, checkpoints=checkpoints)
        except StopError:
            torch.rand(lives)  # what the caller draws in between is nobody's business
            ended = fit(epochs=3, checkpoints=checkpoints)
        assert ended == whole, lives


def test_stopped_again_and_again_it_goes_on_instead_of_beginning_anew(tmp_path):
    whole, seen = two_modes(epochs=4), []
    for _ in range(60):
        try:
            checkpoints = Checkpoints(tmp_path / "c", every=0.0)
            assert two_modes(8, epochs=4, checkpoints=checkpoints, callbacks=(seen.append,)) == whole
            break
        except StopError:
            continue
    numbers = [epoch.number for epoch in seen]
    assert numbers == sorted(numbers)
    assert set(numbers) == {1, 2, 3, 4}


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    whole = two_modes()
    path = tmp_path / "c"
    with pytest.raises(StopError):
        two_modes(8, checkpoints=Checkpoints(path, every=0.0))
    path.write_bytes(path.read_bytes()[:-9])  # in other ways in tests/files/test_atomic.py
    assert two_modes(checkpoints=Checkpoints(path, every=1e9)) == whole
    path.write_bytes(b"garbage")
    (tmp_path / "c.before").write_bytes(b"")
    with pytest.raises(ModebridgeError, match="every copy is damaged"):
        two_modes(checkpoints=Checkpoints(path))


def test_another_run_is_refused(tmp_path):
    with pytest.raises(StopError):
        two_modes(8, checkpoints=Checkpoints(tmp_path / "c", every=0.0))
    for other in ({"epochs": 5}, {"seed": 1}):
        with pytest.raises(ModebridgeError, match="from this run, but its recipe"):
            two_modes(checkpoints=Checkpoints(tmp_path / "c"), **other)
    # It is what a function makes that counts, not its name.
    with pytest.raises(StopError):
        by_another(8, checkpoints=Checkpoints(tmp_path / "own", every=0.0))
    for other in (partial(Counting, lr=0.1), partial(torch.optim.ASGD, lr=0.05)):
        with pytest.raises(ModebridgeError, match="from this run, but its recipe"):
            by_another(optimizer=other, checkpoints=Checkpoints(tmp_path / "own"))
    assert by_another(optimizer=partial(Counting, lr=0.05), checkpoints=Checkpoints(tmp_path / "own")) == by_another()
    # Steps taken together (one graph) and in turn (several processes) leave positions that mean different things.
    assert Engine().way == "fp32 in turn"
    assert fingerprint(quick(1), [], "fp32 in turn") != fingerprint(quick(1), [], "fp32 together")


def test_a_full_disk_is_one_sentence_and_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "c"
    with pytest.raises(StopError):
        two_modes(8, checkpoints=Checkpoints(path, every=0.0))
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ModebridgeError, match="No space left on device"):
            two_modes(checkpoints=Checkpoints(path, every=0.0))
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c", "c.before"]
    assert Checkpoints(tmp_path / "none").restore("anything", []) is None
