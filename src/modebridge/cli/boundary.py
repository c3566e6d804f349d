"""The program's start and end: every error becomes one sentence on stderr and an exit code by kind."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from modebridge.cli import terminal
from modebridge.cli.app import app
from modebridge.errors import ModebridgeError, first_line

PARTLY = 1
"""Part of the work failed; messages name which."""
MISTAKE = 2
"""Something the user can fix: an argument, a file, a full disk."""
BUG = 70
"""An unexpected error; EX_SOFTWARE of sysexits.h."""
STOPPED = 130
"""Ctrl-C: 128 plus SIGINT, as in shells."""
CLOSED = 141
"""Stdout was closed by the reader, as after `| head -1`: 128 plus SIGPIPE."""

HERE = Path(__file__).parents[1]


def main() -> None:
    """Run the program: `modebridge`, or `python -m modebridge`."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # accept any text in any locale
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    run_program(sys.argv[1:])


def run_program(words: Sequence[str]) -> None:
    """Run the verb of a command line, given without the program name, and exit with one of the codes above."""
    code = 0
    warnings.showwarning = _say_once(set())
    try:
        # Calling `app` would let typer turn Ctrl-C and a closed pipe into exit codes before we see them.
        command = typer.main.get_command(app)
        if os.environ.get("_MODEBRIDGE_COMPLETE"):  # the shell's completion script asks what may come next
            command.main([], prog_name="modebridge")  # answers, and raises SystemExit
        with command.make_context("modebridge", list(words)) as context:
            command.invoke(context)
    except BaseException as error:
        if terminal.OPTIONS.debug and not isinstance(error, typer.Exit | SystemExit):
            traceback.print_exception(error)
        code = _code_of(error, words)
    terminal.leave(code)


def _say_once(said: set[str]) -> Callable[..., None]:
    """A `showwarning` that prints each sentence once, without the line of code that it comes from."""

    def show(message: Warning | str, *place: object, **more: object) -> None:
        if str(message) not in said:
            said.add(str(message))
            terminal.warn(f"Note: {message}")

    return show


def _code_of(error: BaseException, words: Sequence[str]) -> int:
    """Print the message of an error and return its exit code."""
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return _report(f"stopped{''.join(map(str, error.args[:1]))}.", STOPPED)
    unwritten = error.__cause__ if isinstance(error, terminal.OutputError) else _stdout_error(error)
    if isinstance(unwritten, BrokenPipeError):
        return CLOSED
    if isinstance(unwritten, OSError):
        why = f"but got '{unwritten.strerror}'; redirect them elsewhere"
        return _report(f"Expected to write the results to standard output, {why}.", PARTLY)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else PARTLY if error.code else 0
    if isinstance(error, typer.Abort):
        return PARTLY
    if isinstance(error, ModebridgeError):
        return _report(str(error), MISTAKE)
    message, wrong = getattr(error, "format_message", None), getattr(error, "exit_code", None)
    if callable(message) and wrong is not None:  # wrong options and arguments, found by typer
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "modebridge"
        sentence = message().rstrip(".")
        if not sentence:  # no verb: the help was printed
            return int(wrong)
        return _report(f"{sentence}{'' if sentence.endswith('?') else '.'} See `{path} --help`.", int(wrong))
    if isinstance(error, OSError):
        return _report(_about_file(error), MISTAKE)
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "can't allocate mem" in str(error):
        return _report(f"Expected enough memory, but got '{first_line(error, 300)}'; use smaller batches.", MISTAKE)
    return _report(_about_bug(error, words), BUG)


def _report(sentence: str, code: int) -> int:
    terminal.say(f"modebridge: {sentence}", style="red", fold=False)
    return code


def _stdout_error(error: BaseException) -> BaseException | None:
    """The error of stdout if typer itself was writing to it, as for --help, when no verb was at work."""
    if isinstance(error, SystemExit):  # rich raises it for a closed pipe
        error = error.__context__ or error
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(HERE))]
    parsing = all(frame.filename == __file__ or frame.name == "parse_args" for frame in ours)
    if isinstance(error, OSError) and error.filename is None and parsing:
        return error
    return None


def _about_file(error: OSError) -> str:
    files = " and ".join(f"'{os.fsdecode(file)}'" for file in (error.filename, error.filename2) if file is not None)
    what = f"to read or write {files}" if files else "all files to be readable and writable"
    hint = "check the path, its permissions and the space there" if files else "run again with --debug to see which"
    return f"Expected {what}, but got '{error.strerror or first_line(error, 300)}'; {hint}."


def _about_bug(error: BaseException, words: Sequence[str]) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if HERE in Path(frame.filename).parents]
    where = f" ({Path(frames[-1].filename).relative_to(HERE)}, line {frames[-1].lineno})" if frames else ""
    verb = next((word for word in words if not word.startswith("-")), "")
    got = f"{type(error).__name__}: '{first_line(error, 300)}'{where}"
    hint = "this is a bug: run again with --debug and report the traceback"
    return f"Expected `modebridge {verb}` to succeed, but got {got}; {hint}."
