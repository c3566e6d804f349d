"""Which calls of the library show a bar, and that it changes nothing."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

import modebridge as mb
from modebridge import trees
from modebridge.members import Setting
from modebridge.progress import no_bars
from modebridge.recipes import find_recipe
from modebridge.runs.executor import make_job
from modebridge.training import TrainConfig
from tests.progress.terminals import DATA, HIDE, SHOW, perceptron, terminal
from tests.scenarios import quick

CONFIG = quick(2)
NET = perceptron(0)
A, B = mb.Mode.from_module(NET), mb.Mode.from_module(perceptron(1))
LINE = mb.BezierCurve.line(A, B, 1)


def fit_mode(**options):
    return mb.fit_mode(NET, DATA, config=CONFIG, **options).id


def fit_modes(**options):
    return [mode.id for mode in mb.fit_modes([NET, NET], [DATA, DATA], config=CONFIG, **options)]


def fit_curve(**options):
    return pins(mb.fit_curve(NET, A, B, DATA, config=CONFIG, **options))


def fit_curves(**options):
    return [pins(curve) for curve in mb.fit_curves(NET, [(A, B), (B, A)], [DATA, DATA], config=CONFIG, **options)]


def fit_bridge(**options):
    return weights(mb.fit_bridge(NET, LINE, DATA, tap="1", config=CONFIG, **options))


def fit_bridges(**options):
    plans = {name: mb.plan_bridge(NET, LINE, DATA[0][0][:2], tap="1", name=name) for name in ("a", "b")}
    return [weights(bridge) for bridge in mb.fit_bridges(NET, plans, DATA, config=CONFIG, **options).values()]


def fit_students(**options):
    plans = {name: mb.plan_student(NET, [A, B], seed=0) for name in ("a", "b")}
    return [mode.id for mode in mb.fit_students(NET, plans, DATA, config=CONFIG, **options).values()]


def distill(**options):
    return mb.distill(NET, [A, B], DATA, config=CONFIG, **options).id


def pins(curve):
    return [trees.fingerprint(pin) for pin in curve.pins]


def weights(bridge):
    return trees.fingerprint(bridge.state_dict())


@pytest.mark.parametrize(
    ("call", "title", "count"),
    [
        (fit_mode, "mode ", " 2/2 epochs "),
        (fit_modes, "2 modes ", " 2/2 epochs "),
        (fit_curve, "curve ", " 2/2 epochs "),
        (fit_curves, "2 curves ", " 2/2 epochs "),
        (fit_bridge, "bridge ", " 2/2 epochs "),
        (fit_bridges, "2 bridges ", " 2/2 epochs "),
        (fit_students, "2 students ", " 2/2 epochs "),
        (distill, "student ", " 2/2 epochs "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_call_shows_one_bar_and_gives_the_same_bits(call, title, count):
    with terminal() as screen:
        shown = call()
    assert screen.bars == 1
    assert screen.rows[-1].startswith(title)
    assert count in screen.rows[-1]
    with terminal() as screen:
        silent = call(progress=False)
    assert screen.text == ""
    assert shown == silent


@pytest.mark.slow
def test_export_shows_its_steps(tmp_path):
    ensemble = mb.Ensemble(NET, [A], [mb.fit_bridge(NET, LINE, DATA, tap="1", config=CONFIG)])
    with terminal() as screen:
        mb.export(ensemble, tmp_path / "fast.pt2", DATA[0][0][:2])
    assert screen.bars == 1
    drawn = "\n".join(screen.rows)
    places = [drawn.index(f"export: {step} ") for step in ("preparing", "writing", "comparing", "saving")]
    assert places == sorted(places)
    assert " 4/4 steps " in screen.rows[-1]
    with terminal() as screen:
        mb.export(ensemble, tmp_path / "fast.pt2", DATA[0][0][:2], progress=False)
    assert screen.text == ""


def test_a_bar_has_the_rate_and_the_loss():
    reported = []
    with terminal() as screen:
        fit_mode(report=reported.append, progress=True)
    assert f"{reported[-1].rate:,.0f} images/s, loss {reported[-1].losses['mode']:.3f} " in screen.rows[-1]


def test_a_pipe_gets_nothing_by_default_and_the_last_state_if_asked(monkeypatch):
    assert piped(monkeypatch, fit_mode) == ""
    (line,) = piped(monkeypatch, lambda: fit_mode(progress=True)).splitlines()
    assert line.startswith("mode ")
    assert " 2/2 epochs " in line
    assert "\x1b" not in line


def piped(monkeypatch, call):
    source, sink = os.pipe()
    with os.fdopen(sink, "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        call()
    with os.fdopen(source, encoding="utf-8") as text:
        return text.read()


def test_someone_who_listens_to_epochs_gets_no_bar():
    with terminal() as screen:
        fit_mode(report=lambda epoch: None)
    assert screen.text == ""


def test_a_call_within_a_call_is_silent():
    class Nesting:
        def __iter__(self):
            yield from DATA

        def set_epoch(self, epoch):
            if epoch == 1:
                fit_modes()
                fit_modes(progress=True)

    with terminal() as screen:
        mb.fit_mode(NET, Nesting(), config=CONFIG)
    assert screen.bars == 1
    assert "2 modes" not in screen.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_leaves_the_terminal_clean_and_the_next_call_has_a_bar(error):
    class Failing:
        drawn = 0

        def __iter__(self):
            for batch in DATA * 6:
                self.drawn += 1
                if self.drawn == 10:
                    raise error("stop")
                yield batch

    with terminal() as screen:
        with pytest.raises(error):
            mb.fit_mode(NET, Failing(), config=CONFIG)
        sys.stderr.write("after\n")
    assert screen.bars == screen.text.count(SHOW) == 1
    assert screen.rows[-2].startswith("mode ")
    assert screen.rows[-1] == "after"
    with terminal() as screen:
        fit_mode()
    assert screen.bars == 1


def test_only_the_first_process_shows_a_bar(monkeypatch):
    with terminal() as screen:
        monkeypatch.setenv("RANK", "1")
        fit_mode()
        fit_mode(progress=True)
    assert screen.text == ""


def test_runs_show_their_own_progress():
    kind = SimpleNamespace(make=lambda *given: (fit_mode(),))
    artefact = SimpleNamespace(training=lambda recipe: TrainConfig(epochs=0))
    with terminal() as screen:
        make_job(SimpleNamespace(kind=kind, artefacts=[artefact]), Setting(find_recipe("digits")), {})
        with no_bars():
            fit_mode(progress=True)
    assert screen.text == ""


def test_prints_stay_on_stdout(capsys):
    class Chatting:
        def __iter__(self):
            sys.stdout.write("a line\n")
            yield from DATA

    with terminal() as screen:
        mb.fit_mode(NET, Chatting(), config=CONFIG)
    assert capsys.readouterr().out.splitlines()[-1] == "a line"
    assert "a line" not in screen.text


def test_warnings_appear_above_the_bar():
    class Warns:
        def __iter__(self):
            sys.stderr.write("careful\n")
            yield from DATA

    with terminal() as screen:
        mb.fit_mode(NET, Warns(), config=CONFIG)
    during = screen.text[screen.text.index(HIDE) : screen.text.index(SHOW)]
    assert during.index("careful") < during.rindex(" 2/2 epochs ")


def test_a_narrow_terminal_has_one_row_too():
    with terminal(columns=40) as screen:
        fit_mode()
    assert max(len(row) for row in screen.rows) <= 40
    assert "\x1b[1A" not in screen.text
