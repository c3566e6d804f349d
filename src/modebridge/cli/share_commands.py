"""The verbs `push` and `pull`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from modebridge.cli.show_commands import existing, naming_damage
from modebridge.cli.terminal import Screen, say
from modebridge.errors import ModebridgeError
from modebridge.files import check_repo, copy_folder, download, upload
from modebridge.nets import check_mean
from modebridge.runs import SharedFolder, share_run

__all__ = ["pull_repo", "push_run"]


def push_run(
    path: Path,
    repo: str | None,
    only_folder: Path | None,
    *,
    members: Sequence[str],
    mean: str,
    license: str,
    datasets: Sequence[str],
    private: bool,
    as_json: bool,
) -> None:
    """Write members of a run folder as a folder to share, and upload it unless only the folder is requested."""
    if repo is None and only_folder is None:
        raise ModebridgeError(
            "Expected OWNER/NAME on the hub, or --folder DIR to only write a folder, but got neither; give one."
        )
    if repo is not None:
        check_repo(repo)
    kind, run = check_mean(mean), existing(path)
    with ExitStack() as stack:
        folder = only_folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "folder"
        with naming_damage(run):
            shared = share_run(
                run, folder, members or None, mean=kind, license=license, datasets=datasets, place=repo or ""
            )
        record = _record(shared)
        if only_folder is None:
            assert repo is not None
            say(f"Uploading {' + '.join(shared.names)} ...")
            record["place"] = upload(shared.path, repo, private=private or None)
    if shared.needs_net:
        say("The network is a custom module: only its weights are stored, so users must pass net= when loading.")
    if not license:
        say("The model card names no license; add one with --license.")
    if as_json:
        Screen().print_data(record)
        return
    console = Screen()
    console.print(f"{'Folder' if only_folder else 'Uploaded'}: {record['place']}", soft_wrap=True)
    console.print(
        f"Members: {' + '.join(shared.names)}; x{shared.scores.cost.relative_flops:.3f} FLOPs of one network. "
        "Test split: "
        f"accuracy {100 * shared.scores.accuracy:.2f} %, NLL {shared.scores.nll:.4f}."
    )


def _record(shared: SharedFolder) -> dict[str, Any]:
    scores = {name: getattr(shared.scores, name) for name in ("accuracy", "nll", "ece", "brier")}
    scores["relative_flops"] = shared.scores.cost.relative_flops
    return {
        "place": str(shared.path),
        "members": list(shared.names),
        "needs_net": shared.needs_net,
        "bytes": sum(file.stat().st_size for file in shared.path.iterdir()),
        **scores,
    }


def pull_repo(repo: str, folder: Path | None, *, revision: str | None, as_json: bool) -> None:
    """Download a repository of the hub into a folder."""
    check_repo(repo)
    target = Path(repo.split("/")[1]) if folder is None else folder
    parts = copy_folder(download(repo, revision), target)
    if as_json:
        Screen().print_data({"place": str(target), "kind": parts.kind, "tensors": len(parts.tensors)})
        return
    Screen().print(f"Folder: {target}, a stored {parts.kind}; load it with modebridge.load({str(target)!r}).")
