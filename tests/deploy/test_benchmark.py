"""What is timed: every contender answers, its FLOPs are what they must be, and a race has all of its lines."""

from __future__ import annotations

import pytest
import torch

from modebridge import Mode, ModebridgeError
from modebridge.bridges import build_bridge
from modebridge.deploy import benchmark as module
from modebridge.deploy.benchmark import contenders, race_file, time_all, usable_ways
from modebridge.deploy.deployed import Deployed
from modebridge.deploy.export import export
from modebridge.nets import ResNet, spec_of
from modebridge.runs.bench_entries import random_contenders

SPEC = spec_of("digits", "bn")


def _entered(modes):
    return random_contenders(lambda generator: ResNet(SPEC, generator), torch.rand(1, *SPEC.image), modes)


@pytest.fixture(scope="module")
def entered():
    return _entered(3)


def test_names_and_members(entered):
    made = {one.name: one.make() for one in entered}
    sizes = {name: (len(whole.bases), len(whole.bridges)) for name, whole in made.items()}
    assert sizes == {
        "DE-1": (1, 0),
        "DE-1 + 1 bridge I": (1, 1),
        "DE-1 + 2 bridges I": (1, 2),
        "DE-1 + midpoint": (2, 0),
        "DE-2": (2, 0),
        "DE-2 vmapped": (2, 0),
        "DE-3": (3, 0),
        "DE-3 vmapped": (3, 0),
        "DE-2 + 1 bridge II": (2, 1),
    }
    assert next(iter(sizes)) == "DE-1"


def test_one_mode_alone():
    found = _entered(1)
    assert [one.name for one in found] == ["DE-1", "DE-1 + midpoint"]


def test_no_points_and_no_bridges():
    first = _entered(1)[0].make()
    found = contenders(first.bases[0], [Mode.from_module(first.bases[0])], [], [], [])
    assert [one.name for one in found] == ["DE-1"]


@pytest.mark.slow
def test_a_race_has_every_line(entered):
    heard = []
    entered = [one for one in entered if "3" not in one.name]
    found = time_all(entered, SPEC.image, "eager", [1, 3], seconds=0.01, log=heard.append)
    assert [(one.name, one.batch) for one in found] == [(one.name, batch) for batch in (1, 3) for one in entered]
    by_name = {one.name: one for one in found if one.batch == 3}
    assert by_name["DE-1"].ratio.median == by_name["DE-1"].flops == 1.0
    assert by_name["DE-1 + midpoint"].flops == by_name["DE-2"].flops == by_name["DE-2 vmapped"].flops == 2.0
    one, two = by_name["DE-1 + 1 bridge I"].flops, by_name["DE-1 + 2 bridges I"].flops
    assert two - 1 == pytest.approx(2 * (one - 1))
    assert 1.0 < one < 1.25
    assert one - 1 == pytest.approx(build_bridge(ResNet(SPEC), torch.rand(1, *SPEC.image), "I").share)
    for line in found:
        assert line.timing.calls >= 7
        assert line.images_per_second == pytest.approx(line.batch / line.timing.seconds.median)
        assert line.over == pytest.approx(100 * (line.ratio.median - line.flops))
    assert "eager: DE-2 vmapped" in heard


@pytest.fixture(scope="module")
def exported(entered, tmp_path_factory):
    """What was raced in ONNX Runtime, and the folder with the files; exporting takes seconds."""
    folder = tmp_path_factory.mktemp("raced")
    chosen = [one for one in entered if one.name in ("DE-1", "DE-1 + 1 bridge I", "DE-2 vmapped")]
    return time_all(chosen, SPEC.image, "onnx", [2], seconds=0.01, folder=folder), folder


@pytest.mark.slow
def test_onnx_leaves_the_vmapped_out(exported):
    assert [one.name for one in exported[0]] == ["DE-1", "DE-1 + 1 bridge I"]


def test_onnx_needs_a_folder(entered):
    with pytest.raises(ModebridgeError, match="folder for exported files"):
        time_all(entered[:1], SPEC.image, "onnx", [1], seconds=0.01)


@pytest.mark.slow
def test_a_file_is_timed_by_its_bridges(entered, tmp_path):
    whole = {one.name: one for one in entered}["DE-1 + 2 bridges I"].make()
    export(whole, tmp_path / "fast.onnx", torch.rand(1, *SPEC.image))
    found = race_file(Deployed.load(tmp_path / "fast.onnx"), [1, 2], seconds=0.01)
    assert [one.name for one in found[:3]] == ["DE-1", "DE-1 + 1 bridge", "DE-1 + 2 bridges"]
    assert [one.batch for one in found] == [1, 1, 1, 2, 2, 2]
    assert found[0].flops == found[0].ratio.median == 1.0
    assert 1.0 < found[1].flops < found[2].flops < 1.5


@pytest.mark.slow
def test_a_file_that_is_not_elastic_has_one_line(exported):
    found = race_file(Deployed.load(exported[1] / "DE-1+1bridgeI.onnx"), [1], seconds=0.01)
    assert [(one.name, one.ratio.median) for one in found] == [("DE-1 + 1 bridge", 1.0)]


def test_ways_of_a_cpu():
    ways, lacking = usable_ways("cpu", ["onnx", "eager"])
    assert (ways, lacking) == (["eager", "onnx"], [])
    with pytest.raises(
        ModebridgeError, match="Expected ways for device 'cpu', but got 'graphs'; choose one of eager, compiled, onnx"
    ):
        usable_ways("cpu", ["graphs"])


def test_a_way_that_lacks_something(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    ways, lacking = usable_ways("cpu")
    assert "compiled" not in ways
    assert any("C++ compiler" in sentence for sentence in lacking)
    with pytest.raises(ModebridgeError, match="C\\+\\+ compiler"):
        usable_ways("cpu", ["compiled"])
    assert "compiled" in usable_ways("cuda")[0]
