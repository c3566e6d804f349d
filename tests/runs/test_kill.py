"""kill -9 at random moments, started again each time: the run ends at the artefacts of a run that was left alone."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from modebridge import trees
from modebridge.members import ModeMember
from modebridge.report import as_dicts
from modebridge.runs import Run, run_recipe
from tests.runs.small import finished, small

SCRIPT = """
import sys
from modebridge.runs import RunFolder, local, run_recipe
from tests.runs.small import small
local.EVERY = 0.05
run_recipe(small(), folder=RunFolder(sys.argv[1]))
"""


def artefacts(folder: Path) -> dict[str, bytes]:
    files = sorted(folder.glob("*/*/weights.safetensors"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = finished(tmp_path_factory.mktemp("alone") / "run")
    return folder.path, run_recipe(small(), folder=folder)


def test_a_folder_changes_nothing_but_keeps_everything(alone):
    folder, result = alone
    in_memory = run_recipe(small())
    assert as_dicts(result.rows) == as_dicts(in_memory.rows)
    assert trees.fingerprint(result.table.test) == trees.fingerprint(in_memory.table.test)
    assert Run(small(), seed=1).load(ModeMember(0)).id != result.load(ModeMember(0)).id, "another seed"
    # Modes, curves, bridges; what each of them (and the labels) said; profiles of curves, sample images.
    assert len(artefacts(folder)) == 9 + 10 + 2 + 1
    assert not list((folder / ".work").iterdir())


@pytest.mark.slow  # in-process stops at every batch are in tests/training/test_progress.py
@pytest.mark.parametrize("times", [1, 10])
def test_killed_runs_end_at_the_same_bits(alone, tmp_path, times):
    chance = random.Random(0)
    folder, kills = tmp_path / "killed", 0
    for _ in range(60):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)])
        try:
            process.wait(timeout=chance.uniform(1.5, 4.0) if kills < times else 300)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        assert process.returncode == 0
        if kills >= times:
            break
        # Done before its last kill: take half of the artifacts away, so that there is work to be killed at again.
        victims = sorted(folder.glob("*/*/meta.json"))
        for victim in chance.sample(victims, len(victims) // 2):
            victim.write_text(json.dumps({}))
    assert kills == times
    assert artefacts(folder) == artefacts(alone[0])
