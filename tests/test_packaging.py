"""The files that a release and the project's page are made of; `make package` checks the wheel itself."""

import re
import tomllib
from pathlib import Path

import yaml

import modebridge

ROOT = Path(__file__).parents[1]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == modebridge.__version__
    assert citation["title"] == "modebridge"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]
    assert citation["license"] == project["license"]
    assert citation["keywords"] == project["keywords"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in project["authors"]]


def test_every_make_target_of_the_release_checklist_exists():
    named = set(re.findall(r"`make ([\w-]+)`", (ROOT / "RELEASING.md").read_text()))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"test", "test-slow", "examples", "package"} <= named <= targets
