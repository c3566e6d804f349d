"""Stored folders on the Hugging Face Hub, and model cards; its library is imported only when it is needed."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modebridge.errors import ModebridgeError, first_line, needed
from modebridge.files.atomic import latest

Place = str | os.PathLike[str]

CONFIG, WEIGHTS, CARD = FILES = ("config.json", "model.safetensors", "README.md")

TAGS = ["modebridge", "bridge-networks", "deep-ensembles", "uncertainty", "calibration"]

PAPER = '"Traversing Between Modes in Function Space for Fast Ensembling" (ICML 2023)'

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class Card:
    """Content of a model card that the object itself does not have. Everything is optional.

    Args:
        about: a paragraph of description.
        license: license of the weights, as an identifier of the hub ("apache-2.0", "mit").
        task: the task on the hub, such as "image-classification".
        datasets: names of the data sets on the hub.
        data: display name of the data set that `metrics` were computed on, by its test split.
        metrics: scores by their names on the hub, such as "accuracy".
        sections: Markdown text by heading.
        place: future name on the hub; the name of the folder by default.
    """

    about: str = ""
    license: str = ""
    task: str = ""
    datasets: tuple[str, ...] = ()
    data: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)
    place: str = ""

    def text(self, place: str, kind: str, described: str, *, needs_net: bool = False) -> str:
        """The text of README.md for an object that is loaded from `place`, perhaps with a network that users pass."""
        hub, title = _library("a model card"), place.rsplit("/", 1)[-1]
        tested_on = {
            "task_type": self.task or "other",
            "dataset_type": self.datasets[0] if self.datasets else "other",
            "dataset_name": self.data or "unnamed",
            "dataset_split": "test",
        }
        results = [
            hub.EvalResult(**tested_on, metric_type=name, metric_value=value)
            for name, value in self.metrics.items()
            if math.isfinite(value)
        ]
        header = hub.ModelCardData(
            library_name="modebridge",
            license=self.license or None,
            pipeline_tag=self.task or None,
            tags=TAGS,
            datasets=list(self.datasets) or None,
            model_name=title if results else None,
            eval_results=results or None,
        )
        code = f"{kind} = mb.load({json.dumps(place)}{', net=net' if needs_net else ''})"
        own = "`net` is a module of the architecture that was saved: only its weights are stored here.\n\n" * needs_net
        rights = f"The weights are under `{self.license}`." if self.license else "No license was given for the weights."
        parts = [f"# {title}", self.about, described, f"The method: {PAPER}."]
        parts += [f"## {heading}\n\n{text.strip()}" for heading, text in self.sections.items()]
        parts += [
            f"```python\n# pip install 'modebridge[hub]'\nimport modebridge as mb\n\n{code}\n```\n\n{own}{rights}"
        ]
        return f"---\n{header.to_yaml()}\n---\n\n" + "\n\n".join(filter(None, parts)) + "\n"


def local(path: Place) -> Path:
    """A path given by a user, with "~" expanded; an empty one is refused, since it would be the current folder."""
    try:
        text = os.fspath(path)
        if not text or "\0" in text:
            raise ValueError
        return Path(text).expanduser()
    except (TypeError, ValueError, RuntimeError):
        raise ModebridgeError(f"Expected the path of a folder, but got {str(path)[:80]!r}; name a folder.") from None


def find_folder(place: Place, revision: str | None = None) -> Path:
    """The folder at a path, which takes precedence, or a repository of the hub, downloaded to the hub's cache."""
    folder = latest(local(place))
    if os.path.exists(folder):  # noqa: PTH110 - unlike Path.exists, False without permission or for a long name
        if revision is not None:
            raise ModebridgeError(
                f"Expected revision only for names on the hub, but '{folder}' is a local path; leave it out."
            )
        return folder
    if not isinstance(place, str) or not _REPO.fullmatch(place):
        raise ModebridgeError(
            f"Expected '{folder}' to be a folder written by save, or OWNER/NAME on the Hugging Face Hub, but it "
            "does not exist; check the path."
        )
    return download(place, revision)


def download(repo: str, revision: str | None = None) -> Path:
    """Download a repository of the hub, whose name was checked, to the hub's cache."""
    hub = _library(f"'{repo}', which is not a local folder")
    try:
        return Path(hub.snapshot_download(repo, revision=revision, allow_patterns=FILES, library_name="modebridge"))
    except Exception as error:  # no network, no such name, no permission: the hub's messages are long
        at = f" at revision '{revision}'" if revision else ""
        raise ModebridgeError(
            f"Expected '{repo}'{at} to be a local folder or a repository on the Hugging Face Hub, but got "
            f"{type(error).__name__}: '{first_line(error)}'; check the name, the network and your login."
        ) from error


def upload(folder: Path, repo: str, *, private: bool | None = None, token: str | None = None) -> str:
    """Upload a folder written by `save` as one commit; returns the address of OWNER/NAME, created if needed.

    A new repository has the owner's default visibility unless `private` is given; the token is that of `hf auth login`
    or HF_TOKEN unless it is given.
    """
    hub = _library("pushing")
    try:
        api = hub.HfApi(token=token, library_name="modebridge")
        address = api.create_repo(repo, private=private, exist_ok=True)
        # One commit: no reader gets new weights with an old config.json.
        note = "Upload with modebridge"
        api.upload_folder(repo_id=repo, folder_path=folder, allow_patterns=FILES, commit_message=note)
    except Exception as error:
        raise ModebridgeError(
            f"Expected to upload '{repo}', but got {type(error).__name__}: '{first_line(error)}'; log in with "
            "hf auth login, and check the name and the network."
        ) from error
    return str(address)


def check_repo(repo: str) -> None:
    if not _REPO.fullmatch(repo):
        raise ModebridgeError(
            f"Expected a name on the hub to be OWNER/NAME, but got '{repo[:100]}'; use letters, digits, '-', '_', '.'."
        )


def _library(what: str) -> Any:
    with needed(f"huggingface_hub for {what}", "hub"):
        import huggingface_hub
    return huggingface_hub
