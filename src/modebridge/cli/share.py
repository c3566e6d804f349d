"""The verbs `push` and `pull`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modebridge.cli.options import Folder, Json, path


def push(
    folder: Folder,
    repo: Annotated[str | None, typer.Argument(metavar="OWNER/NAME", help="Name on the hub.")] = None,
    only_folder: Annotated[
        Path | None,
        typer.Option("--folder", parser=path, metavar="DIR", help="Only write this folder; upload nothing."),
    ] = None,
    members: Annotated[
        str | None,
        typer.Option(
            help="Members to share, e.g. `mode-0,I-0-1-small`. Default: what `advise` recommends for a budget of 1.2.",
            metavar="NAMES",
        ),
    ] = None,
    license: Annotated[str, typer.Option(help="License of the weights, e.g. apache-2.0 or mit.", metavar="ID")] = "",
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    as_json: Json = False,
) -> None:
    """Share modes, students and bridges of a run folder on the Hugging Face Hub, with a model card of their scores.

    Writes safetensors, config.json and README.md; `modebridge.load("OWNER/NAME")` loads them. Uploading needs the extra
    `hub` and `hf auth login`.

    Examples: `modebridge push runs/digits me/digits-bridge --license apache-2.0`,
    `modebridge push runs/digits --folder shared --members distilled-0`.
    """
    import tempfile

    from modebridge.cli.show import naming_damage
    from modebridge.cli.terminal import Screen, listed, say
    from modebridge.errors import ModebridgeError
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
    scored, console = shared.scores, Screen()
    if as_json:
        scores = {name: getattr(scored, name) for name in ("accuracy", "nll", "ece", "brier")}
        record = {"place": place, "members": list(shared.names), "needs_net": shared.needs_net, "bytes": size}
        console.print_data({**record, **scores, "relative_flops": scored.cost.relative_flops})
        return
    console.print(f"{'Folder' if only_folder else 'Uploaded'}: {place}", soft_wrap=True)
    console.print(
        f"Members: {' + '.join(shared.names)}; x{scored.cost.relative_flops:.3f} FLOPs of one network. Test split: "
        f"accuracy {100 * scored.accuracy:.2f} %, NLL {scored.nll:.4f}."
    )


def pull(
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Name on the hub.")],
    folder: Annotated[
        Path | None, typer.Argument(parser=path, metavar="DIR", help="Folder to write. Default: ./NAME.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit. Default: main.")] = None,
) -> None:
    """Download a shared ensemble from the Hugging Face Hub to a folder, and verify it.

    Example: `modebridge pull me/digits-bridge`, then `modebridge.load("digits-bridge")` in Python.
    """
    from modebridge.cli.terminal import Screen
    from modebridge.files import check_repo, copy_folder, download

    check_repo(repo)
    target = Path(repo.split("/")[1]) if folder is None else folder
    parts = copy_folder(download(repo, revision), target)
    Screen().print(f"Folder: {target}, a stored {parts.kind}; load it with modebridge.load({str(target)!r}).")
