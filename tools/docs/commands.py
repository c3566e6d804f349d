"""The page of the command line, from the help texts of the program."""

from __future__ import annotations

import inspect
from typing import Any

import typer

__all__ = ["command_page"]

HEAD = """# Command line

What `modebridge --help` and `modebridge VERB --help` print. `--json` (results as data) and `--debug` (tracebacks) work
with every verb, before or after it. Examples are in [recipes, runs, studies](../runs.md) and
[deployment](../deploy.md).
"""


def command_page() -> str:
    """One section per verb: usage, what it does, its arguments and options."""
    from modebridge.cli.app import app

    # Not typed: newer releases of Typer bring a Click of their own.
    program: Any = typer.main.get_command(app)
    context = typer.Context(program)
    parts = [HEAD]
    for name, verb in program.commands.items():
        if verb.hidden:
            continue
        usage = " ".join(["modebridge", name, *verb.collect_usage_pieces(context)])
        parts += [f"## {name}", f"```sh\n{usage}\n```", inspect.cleandoc(verb.help or "").replace("\b", "")]
        rows = [_row(parameter) for parameter in verb.params if not getattr(parameter, "hidden", False)]
        if rows:
            parts.append("\n".join(["| argument | meaning |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
        default = parameter.default
        shown = "" if default in (None, False) or callable(default) else f" Default: `{default}`."
    else:
        names, value, shown = f"`{parameter.metavar or parameter.name.upper()}`", "", ""
    words = (getattr(parameter, "help", None) or "").replace("|", "\\|").replace("\n", " ")
    return f"| {names}{value.replace('|', chr(92) + '|')} | {words}{shown} |"
