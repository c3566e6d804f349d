"""The hub's library, kept off the network."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub's library, which is told to be offline."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    return tmp_path / "cache"


class FakeHub:
    """The three functions of the hub's library that we call, on folders of this machine; their arguments are checked.

    A repository is the list of its commits, the newest last; a commit is a folder.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self.repos: dict[str, list[Path]] = {}
        self.private: dict[str, bool | None] = {}
        for owner, name in (
            (huggingface_hub.HfApi, "create_repo"),
            (huggingface_hub.HfApi, "upload_folder"),
            (huggingface_hub, "snapshot_download"),
        ):
            monkeypatch.setattr(owner, name, self._checked(getattr(owner, name), getattr(self, name)))

    def _checked(self, real: Any, ours: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            bound = inspect.signature(real).bind(*args, **options)
            if getattr(bound.arguments.get("self"), "token", None) == "wrong":
                raise ConnectionRefusedError("Invalid username or password.")
            return ours(**{name: value for name, value in bound.arguments.items() if name != "self"})

        return call

    def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> str:
        assert exist_ok or repo_id not in self.repos
        self.repos.setdefault(repo_id, [])
        self.private.setdefault(repo_id, private)
        return f"https://hub/{repo_id}"

    def upload_folder(self, repo_id: str, folder_path: Path, allow_patterns: Any, commit_message: str) -> None:
        commit = self._path / repo_id / str(len(self.repos[repo_id]))
        commit.mkdir(parents=True)
        for file in folder_path.iterdir():
            assert file.name in allow_patterns
            (commit / file.name).write_bytes(file.read_bytes())
        self.repos[repo_id].append(commit)

    def snapshot_download(self, repo_id: str, revision: str | None, allow_patterns: Any, library_name: str) -> str:
        if repo_id not in self.repos:
            raise FileNotFoundError("no such repository\nof many lines")
        return str(self.repos[repo_id][-1 if revision is None else int(revision)])


@pytest.fixture
def hub(tmp_path, monkeypatch):
    return FakeHub(tmp_path / "hub", monkeypatch)
