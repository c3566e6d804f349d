"""A run on a real Ray of this machine: the same bits as here, also when a worker is killed in the middle of a stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from modebridge.members import CurveWeights
from modebridge.runs import RunFolder
from modebridge.runs.on_ray import OnRay
from tests.runs.ray_faults import ForwardTrace, Killer, epochs, hashes, lasting

pytest.importorskip("ray", reason='Ray is not installed: pip install "modebridge[cluster]"')
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


def test_two_workers_and_a_kill_end_at_the_bits_of_a_run_in_this_process(tmp_path: Path) -> None:
    recipe = lasting(epochs=24)
    wanted = [CurveWeights(0, 1)]  # and its modes; whole runs are in test_ray_faults.py
    here = ForwardTrace(recipe, folder=RunFolder(tmp_path / "here"))
    here.make(wanted)
    folder = RunFolder(tmp_path / "there")
    with OnRay(recipe=recipe, cpus=2, shared=folder.path / ".work", every=0.05) as executor:
        killer = Killer(folder.path / ".work", "modes")
        there = ForwardTrace(recipe, folder=folder, executor=executor)
        there.make(wanted)
    assert hashes(tmp_path / "there") == hashes(tmp_path / "here")
    assert epochs(tmp_path / "there") == epochs(tmp_path / "here")
    assert there.trained == here.trained
    (victim,) = killer.killed
    assert [fresh for title, fresh in there.begun if title == victim] == [True, False], "it goes on from its checkpoint"
    assert not [place for place in (folder.path / ".work").iterdir() if place.name != "lock"]
