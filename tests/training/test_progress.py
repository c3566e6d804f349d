"""A run that is stopped anywhere and started again ends at the same bits as one that never stopped."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from modebridge import trees
from modebridge.batches import go_to_epoch
from modebridge.bridges import plan_bridge
from modebridge.curves import start_curve
from modebridge.errors import ModebridgeError
from modebridge.training import Checkpoints, Engine, fit_curves, fit_modes
from modebridge.training.progress import fingerprint
from tests.plans import fit_bridges
from tests.scenarios import blobs, loader, modes, quick, tiny_net

STEPS = 3  # batches an epoch of `loader()`


class StopError(Exception):
    """Stands for kill -9: nothing is tidied up."""


class Fragile:
    """A loader that dies after so many batches, over all epochs and passes."""

    def __init__(self, inner, lives):
        self.inner, self.lives = inner, lives

    def set_epoch(self, epoch):
        go_to_epoch(self.inner, epoch)

    def __iter__(self):
        for batch in self.inner:
            if self.lives == 0:
                raise StopError
            self.lives -= 1
            yield batch


def fit_all_modes(lives, checkpoints, **options):
    """Two batch norm networks together, the best epoch kept."""
    loaders = [Fragile(loader(seed=s), lives) for s in range(2)]
    config = replace(quick(4), keep="best", weight_decay=1e-3, checkpoints=checkpoints, **options)
    fitted = fit_modes([tiny_net(s, "bn") for s in range(2)], loaders, config=config, valid=loader(seed=7))
    return [mode.id for mode in fitted]


def fit_all_curves(lives, checkpoints):
    net, (a, b, c) = tiny_net(0, "bn"), modes(3, "bn")
    loaders = [Fragile(loader(seed=s), lives) for s in range(2)]
    fitted = fit_curves(net, [(a, b), (b, c)], loaders, config=quick(3, checkpoints=checkpoints))
    return [trees.fingerprint(*curve.pins, *curve.statistics.values()) for curve in fitted]


def fit_all_bridges(lives, checkpoints):
    """Bridges are prepared a batch ahead on another thread: the generators must not run ahead of a checkpoint."""
    net, (a, b) = tiny_net(0, "bn"), modes(2, "bn")
    curve = start_curve(net, a, b).with_statistics(net, 0.5, loader())
    plans = {kind: plan_bridge(net, curve, blobs(4).images, kind=kind) for kind in ("I", "II")}
    config = replace(quick(4), keep="best", checkpoints=checkpoints)
    fitted = fit_bridges(net, plans, Fragile(loader(), lives), config=config, valid=loader(seed=7))
    return [trees.fingerprint(bridge.state_dict()) for bridge in fitted.values()]


@pytest.mark.parametrize(
    "fit", [*(pytest.param(fit, marks=pytest.mark.slow) for fit in (fit_all_modes, fit_all_bridges)), fit_all_curves]
)
def test_stopped_anywhere_it_ends_at_the_same_bits(fit, tmp_path):
    whole = fit(-1, None)
    for lives in range(1, 4 * STEPS + 3, 4):
        checkpoints = Checkpoints(tmp_path / f"{lives}", every=0.0)
        try:
            ended = fit(lives, checkpoints)
        except StopError:
            ended = fit(-1, Checkpoints(tmp_path / f"{lives}", every=0.0))
        assert ended == whole, lives


def test_stopped_again_and_again_it_goes_on_instead_of_beginning_anew(tmp_path):
    whole, seen = fit_all_modes(-1, None), []
    for _ in range(60):
        try:
            assert fit_all_modes(6, Checkpoints(tmp_path / "c", every=0.0), callbacks=(seen.append,)) == whole
            break
        except StopError:
            continue
    assert [epoch.number for epoch in seen] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "damage", ["truncate", *(pytest.param(damage, marks=pytest.mark.slow) for damage in ("flip", "empty"))]
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    whole = fit_all_modes(-1, None)
    path = tmp_path / "c"
    with pytest.raises(StopError):
        fit_all_modes(8, Checkpoints(path, every=0.0))
    raw = bytearray(path.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 1
    path.write_bytes({"truncate": raw[: len(raw) // 2], "flip": raw, "empty": b""}[damage])
    assert fit_all_modes(-1, Checkpoints(path, every=1e9)) == whole
    path.write_bytes(b"garbage")
    (tmp_path / "c.before").write_bytes(b"")
    with pytest.raises(ModebridgeError, match="every copy is damaged"):
        fit_all_modes(-1, Checkpoints(path))


def test_another_run_is_refused(tmp_path):
    with pytest.raises(StopError):
        fit_all_modes(8, Checkpoints(tmp_path / "c", every=0.0))
    for other in ({"epochs": 5}, {"seed": 1}):
        with pytest.raises(ModebridgeError, match="from this run, but its recipe"):
            fit_all_modes(-1, Checkpoints(tmp_path / "c"), **other)
    # Steps taken together (one graph) and in turn (several processes) leave positions that mean different things.
    assert Engine().way == "fp32 in turn"
    assert fingerprint(quick(1), [], "fp32 in turn") != fingerprint(quick(1), [], "fp32 together")


def test_a_full_disk_is_one_sentence_and_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "c"
    with pytest.raises(StopError):
        fit_all_modes(8, Checkpoints(path, every=0.0))
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ModebridgeError, match="No space left on device"):
            fit_all_modes(-1, Checkpoints(path, every=0.0))
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c", "c.before"]
    checkpoints = Checkpoints(path)
    checkpoints.clear()
    assert not list(tmp_path.iterdir())
    assert checkpoints.restore("anything", []) is None
