"""Stored folders on the Hugging Face Hub; its library is imported only when a name on the hub is used."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from modebridge.errors import ModebridgeError, first_line
from modebridge.files.stored_folder import CARD, CONFIG, WEIGHTS, Place, local

__all__ = ["check_repo", "download", "find_folder", "upload"]

FILES = (CONFIG, WEIGHTS, CARD)

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def find_folder(place: Place, revision: str | None = None) -> Path:
    """The folder at a path, or a repository of the hub, downloaded to the hub's cache.

    Args:
        place: a path, or "OWNER/NAME" on the hub; a path that exists takes precedence.
        revision: a branch, tag or commit on the hub; None for the main branch.
    """
    folder = local(place)
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
    """Download a repository of the hub to the hub's cache.

    Args:
        repo: "OWNER/NAME".
        revision: a branch, tag or commit; None for the main branch.
    """
    hub = _library(f"'{repo}', which is not a local folder")
    try:
        return Path(
            hub.snapshot_download(repo, revision=revision, allow_patterns=list(FILES), library_name="modebridge")
        )
    except Exception as error:  # no network, no such name, no permission: the hub's messages are long
        at = f" at revision '{revision}'" if revision else ""
        raise ModebridgeError(
            f"Expected '{repo}'{at} to be a local folder or a repository on the Hugging Face Hub, but got "
            f"{type(error).__name__}: '{first_line(error)}'; check the name, the network and your login."
        ) from error


def upload(folder: Path, repo: str, *, private: bool | None = None, token: str | None = None) -> str:
    """Upload a stored folder as one commit; creates the repository if it does not exist.

    Args:
        folder: written by `write_folder`.
        repo: "OWNER/NAME".
        private: visibility of a new repository; None for the owner's default.
        token: access token of the hub; None for the one of `hf auth login` or HF_TOKEN.

    Returns:
        The address of the repository.
    """
    check_repo(repo)
    hub = _library("pushing")
    try:
        api = hub.HfApi(token=token, library_name="modebridge")
        address = api.create_repo(repo, private=private, exist_ok=True)
        added = [hub.CommitOperationAdd(name, folder / name) for name in FILES if (folder / name).is_file()]
        # One commit: no reader gets new weights with an old config.json.
        api.create_commit(repo, added, commit_message="Upload with modebridge")
    except Exception as error:
        raise ModebridgeError(
            f"Expected to upload '{repo}', but got {type(error).__name__}: '{first_line(error)}'; log in with "
            "hf auth login, and check the name and the network."
        ) from error
    return str(address)


def check_repo(repo: str) -> None:
    """Raise an error if `repo` is not a valid name on the hub."""
    if not _REPO.fullmatch(repo):
        raise ModebridgeError(
            f"Expected a name on the hub to be OWNER/NAME, but got '{repo[:100]}'; use letters, digits, '-', '_', '.'."
        )


def _library(what: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ModebridgeError(
            f"Expected huggingface_hub for {what}, but it is not installed; pip install 'modebridge[hub]'."
        ) from None
    return huggingface_hub
