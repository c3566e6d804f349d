"""The verbs `push` and `pull`; what loads slowly is imported when a verb runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from modebridge.cli.files import Folder, Members, path
from modebridge.cli.terminal import Screen, listed, say
from modebridge.errors import ModebridgeError


def push(
    folder: Folder,
    repo: Annotated[str | None, typer.Argument(metavar="OWNER/NAME", help="Name on the hub.")] = None,
    only_folder: Annotated[
        Path | None,
        typer.Option("--folder", parser=path, metavar="DIR", help="Only write this folder; upload nothing."),
    ] = None,
    members: Members = None,
    license: Annotated[str, typer.Option(help="License of the weights, e.g. apache-2.0 or mit.", metavar="ID")] = "",
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
) -> None:
    """Share modes, students and bridges of a run folder on the Hugging Face Hub, with a model card of their scores.

    Writes safetensors, config.json and README.md; `modebridge.load("OWNER/NAME")` loads them. It needs the extra
    `hub`, and to upload `hf auth login`.

    ```sh
    modebridge push runs/digits me/digits-fast --license apache-2.0
    modebridge push runs/digits --folder shared --members distilled-0
    ```
    """
    from modebridge.cli.show import naming_damage
    from modebridge.files import check_repo, upload
    from modebridge.runs import existing, share_run

    if repo is None and only_folder is None:
        raise ModebridgeError(
            "Expected OWNER/NAME on the hub, or --folder DIR to only write a folder, but got neither; give one."
        )
    if repo is not None:
        check_repo(repo)
    run, names = existing(folder), listed("--members", members)
    with tempfile.TemporaryDirectory() as scratch, naming_damage(run):
        shared = share_run(run, only_folder or Path(scratch) / "folder", names, license=license, place=repo or "")
        place = str(shared.path)
        size = sum(file.stat().st_size for file in shared.path.iterdir())
        if only_folder is None and repo is not None:
            say(f"Uploading {' + '.join(shared.names)} ...")
            place = upload(shared.path, repo, private=private or None)
    if shared.needs_net:
        say("The network is a custom module: only its weights are stored, so users must pass net= when loading.")
    if not license:
        say("The model card names no license; add one with --license.")
    scored, flops, console = shared.scores, shared.scores.cost.relative_flops, Screen()
    if console.print_data({"place": place, "needs_net": shared.needs_net, "bytes": size, **scored.to_dict()}):
        return
    console.print(f"{'Folder' if only_folder else 'Uploaded'}: {place}", soft_wrap=True)
    console.print(
        f"Members: {' + '.join(shared.names)}; cost x{flops:.3f} of one network. Test split: accuracy "
        f"{100 * scored.accuracy:.2f} %, NLL {scored.nll:.4f}."
    )


def pull(
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Name on the hub.")],
    folder: Annotated[
        Path | None, typer.Argument(parser=path, metavar="DIR", help="Folder to write. Default: ./NAME.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit. Default: main.", metavar="REVISION")
    ] = None,
) -> None:
    """Download a shared ensemble from the Hugging Face Hub to a folder, and verify it.

    ```sh
    modebridge pull me/digits-fast
    ```
    """
    from modebridge.files import check_repo, copy_folder, download

    check_repo(repo)
    target, console = Path(repo.split("/")[1]) if folder is None else folder, Screen()
    parts = copy_folder(download(repo, revision), target)
    if not console.print_data({"folder": str(target), "kind": parts.kind}):
        console.print(f"Folder: {target}, a stored {parts.kind}; load it with modebridge.load({str(target)!r}).")
