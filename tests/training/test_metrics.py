"""What the loop says of an epoch, where it is written, and averaged weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modebridge import ModebridgeError
from modebridge.modes import Mode, refresh_statistics
from modebridge.training import Checkpoints, Epoch, TensorBoard, TrainConfig, append_metrics, fit_modes, parse_metrics
from tests.plans import fit_mode
from tests.scenarios import EXACT, loader, quick, tiny_net


def test_epochs_are_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "modes.jsonl"
    config = replace(quick(3), keep="best")
    seen: list[Epoch] = []

    def report(epoch: Epoch) -> None:
        seen.append(epoch)
        append_metrics(path, epoch)

    nets, data = [tiny_net(0), tiny_net(1)], [loader(seed=0), loader(seed=1)]
    fit_modes(nets, data, config=replace(config, callbacks=(report,)), valid=loader(12))
    assert parse_metrics(path.read_bytes())[0] == seen
    assert [epoch.number for epoch in seen] == [1, 2, 3]
    assert set(seen[0].losses) == set(seen[0].scores) == {"0/mode", "1/mode"}
    assert seen[0].images == 48
    assert all(epoch.rate > 0 and epoch.lr == config.lr * config.factor(epoch.number - 1) for epoch in seen)


def test_lines_cut_off_and_epochs_done_twice(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    assert parse_metrics(b"") == ([], [])
    first, again, second = (Epoch(n, 2, 0.1, {"mode": loss}) for n, loss in ((1, 3.0), (1, 2.0), (2, 1.0)))
    for epoch in (first, again, second):
        append_metrics(path, epoch)
    path.write_text(path.read_text() + '{"number": 3, "tot')
    assert parse_metrics(path.read_bytes())[0] == [again, second]


def test_every_bit_of_a_line_is_summed(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    epochs = [Epoch(n, 2, 0.1, {"mode": 0.25 * n}, {"mode": 1.5}, 60, 0.5) for n in (1, 2)]
    for epoch in epochs:
        append_metrics(path, epoch)
    data = path.read_bytes()
    first = data.index(b"\n")
    for bit in range(8 * first):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        found, damaged = parse_metrics(bytes(changed))
        # 1e-1 and 1E-1 are the same number; a new end of a line makes two damaged ones of one.
        assert found == epochs or (found == epochs[1:] and damaged in ([1], [1, 2]))
    assert parse_metrics(data[: first + 9]) == (epochs[:1], [2])
    # A line that a kill has cut off makes room for the epoch that is done again.
    path.write_bytes(data[: first + 9])
    append_metrics(path, epochs[1])
    assert path.read_bytes() == data


def test_lines_that_are_no_epochs_are_left_out() -> None:
    lines = ['{"number": "1", "total": 2, "lr": 0.1, "losses": {}}', "[1]", '"sum"', "3", "{}", "[" * 100_000, ""]
    lines += ['{"number": 1, "total": 2, "lr": 0.1, "losses": {"mode": "low"}}']
    lines += ['{"number": 1, "total": 2, "lr": 0.1, "losses": {"mode": 2.0}}']  # as version 0.1 wrote them
    found, damaged = parse_metrics("\n".join(lines).encode())
    assert found == [Epoch(1, 2, 0.1, {"mode": 2.0})]
    assert damaged == list(range(1, 9))


def test_tensorboard_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModebridgeError, match=r"modebridge\[tensorboard\]"):
        TensorBoard(tmp_path)


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit_mode(tiny_net(), loader(), config=quick(2), report=TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert {"loss/mode", "lr", "images per second"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss/mode")] == [1, 2]


def test_weights_are_averaged_over_the_last_epochs(tmp_path: Path) -> None:
    config = replace(quick(6), average_from=4, weight_decay=1e-3)
    # The rate stays where averaging begins: the same run without averaging, cut after 4, 5 and 6 epochs, at that rate.
    assert len({config.factor(e) for e in (3, 4, 5)}) == 1
    ends: list[Mode] = []

    class Flat(TrainConfig):
        def factor(self, epoch: int) -> float:
            return config.factor(epoch)

    for epochs in (4, 5, 6):
        plain = Flat(epochs=epochs, lr=0.05, warmup=1, weight_decay=1e-3)
        ends.append(fit_mode(tiny_net(dtype=EXACT), loader(dtype=EXACT), config=plain))
    mean = fit_mode(tiny_net(dtype=EXACT), loader(dtype=EXACT), config=config)
    for name, tensor in mean.params.items():
        torch.testing.assert_close(tensor, torch.stack([end.params[name] for end in ends]).mean(0), rtol=0, atol=1e-12)
    stops = Checkpoints(tmp_path / "swa", every=0)
    stopped = 0

    def stop(epoch: Epoch) -> None:
        nonlocal stopped
        stopped += 1
        if stopped == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_mode(
            tiny_net(dtype=EXACT), loader(dtype=EXACT), config=replace(config, checkpoints=stops, callbacks=(stop,))
        )
    resumed = fit_mode(tiny_net(dtype=EXACT), loader(dtype=EXACT), config=replace(config, checkpoints=stops))
    assert resumed.id == mean.id


def test_the_mean_gets_statistics_of_its_own() -> None:
    config, data = replace(quick(4), average_from=2), loader(dtype=EXACT)
    mean = fit_mode(tiny_net(0, "bn", EXACT), data, config=config)
    data.set_epoch(4)
    fresh = refresh_statistics(tiny_net(0, "bn", EXACT), mean.params, mean.buffers, data)
    for name, tensor in fresh.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(mean.buffers[name], tensor, rtol=0, atol=1e-12)
    with pytest.raises(ModebridgeError, match="keep='last' for averaged weights"):
        fit_mode(tiny_net(0, "bn", EXACT), data, config=replace(config, keep="best"), valid=loader(12, dtype=EXACT))
    with pytest.raises(ModebridgeError, match="at most the 4 epochs"):
        replace(config, average_from=5)


def test_a_bar_on_stderr_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ids = []
    for progress in (True, False, None):  # None: not in a pipe
        ids.append(fit_mode(tiny_net(), loader(), config=quick(2, progress=progress)).id)
        shown = capsys.readouterr()
        assert ("mode: 100%" in shown.err and "2/2" in shown.err and "loss" in shown.err) == (progress is True)
        assert shown.out == ""
    assert len(set(ids)) == 1
