"""The cluster files of examples/: fields and types that KubeRay's API has, options that `modebridge run` has."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from modebridge.cli.app import app

CLUSTER = Path(__file__).parent.parent / "examples" / "cluster"
# KubeRay's ray.io/v1 API (rayjob_types.go, raycluster_types.go): the fields a job like ours may use, with their types.
JOB = {"entrypoint": str, "shutdownAfterJobFinishes": bool, "backoffLimit": int, "ttlSecondsAfterFinished": int}
CLUSTER_SPEC = {"rayVersion": str, "headGroupSpec": dict, "workerGroupSpecs": list, "enableInTreeAutoscaling": bool}
HEAD = {"rayStartParams": dict, "template": dict, "serviceType": str}
WORKERS = HEAD | {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int, "numOfHosts": int}


def check(fields: dict[str, Any], allowed: dict[str, type], required: set[str]) -> None:
    assert required <= set(fields) <= set(allowed)
    for name, value in fields.items():
        assert type(value) is allowed[name], name


def options_of_run(line: str) -> dict[str, Any]:
    words = shlex.split(line)
    assert words[:2] == ["modebridge", "run"]
    return typer.main.get_command(app).commands["run"].make_context("run", words[2:], resilient_parsing=False).params  # type: ignore[attr-defined]


def test_the_rayjob_has_fields_of_kuberay() -> None:
    job = yaml.safe_load((CLUSTER / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    check(spec, JOB | {"rayClusterSpec": dict}, {"entrypoint", "rayClusterSpec"})
    cluster = spec["rayClusterSpec"]
    check(cluster, CLUSTER_SPEC, {"headGroupSpec"})
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    check(groups[0], HEAD, {"rayStartParams", "template"})
    for group in groups[1:]:
        check(group, WORKERS, {"groupName", "rayStartParams", "template"})
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in groups:
        # map[string]string: numbers must be quoted.
        assert all(type(value) is str for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert all(mount["name"] in volumes for box in pod["containers"] for mount in box["volumeMounts"])
    run = options_of_run(spec["entrypoint"])
    assert (run["on"], str(run["out"])) == ("auto", "/runs/cifar10")


def test_the_slurm_script_is_bash_and_starts_a_run() -> None:
    script = CLUSTER / "slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    (line,) = re.findall(r"^ *(modebridge run .*)$", script.read_text(), re.MULTILINE)
    run = options_of_run(line.replace('"${@:2}"', ""))
    assert run["on"] == "$address:$port"


@pytest.mark.parametrize("field", ["backofLimit", "rayclusterSpec"])
def test_a_misspelled_field_is_noticed(field: str) -> None:
    with pytest.raises(AssertionError):
        check({"entrypoint": "x", field: 1}, JOB, {"entrypoint"})
