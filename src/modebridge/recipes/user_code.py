"""Functions in a user's Python file: referenced as text, imported once, called with the arguments that they take."""

from __future__ import annotations

import hashlib
import inspect
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

import numpy as np

from modebridge import seeds
from modebridge.errors import ModebridgeError, first_line, near

FOLDER = "folder:"
"""Prefix of the name of data in a folder of images sorted by class."""
USER = "modebridge_user_"
"""Prefix of the modules of users' files."""

_REFERENCE = re.compile(r"(?P<path>.+\.py):(?P<name>[^\W\d]\w*)", re.DOTALL)
_LOADED: dict[tuple[Path, int], ModuleType] = {}
"""By path and modification time: an edited file is loaded again."""
_LOCK = threading.RLock()


def split_reference(text: str) -> tuple[Path, str] | None:
    """The file and the name in "FILE.py:NAME"; None for any other text.

    >>> split_reference("my_recipe.py:make_net")
    (PosixPath('my_recipe.py'), 'make_net')
    """
    match = _REFERENCE.fullmatch(text)
    return (Path(match["path"]), match["name"]) if match else None


def located(text: str, beside: Path | None = None) -> str:
    """The text of a setting with an absolute path, if it names a folder or a .py file.

    Relative paths start from the folder `beside`, or from the current one.
    """
    if text.startswith(FOLDER):
        return FOLDER + _absolute(text.removeprefix(FOLDER), beside)
    reference = split_reference(text)
    if reference:
        return f"{_absolute(reference[0], beside)}:{reference[1]}"
    return _absolute(text, beside) if text.endswith(".py") else text


def _absolute(path: Path | str, beside: Path | None) -> str:
    try:
        return str(((beside or Path.cwd()) / Path(path).expanduser()).resolve())
    except (OSError, ValueError, RuntimeError):  # not a path; reading it will raise the error
        return str(path)


def reference_to(function: Callable[..., object], what: str) -> str:
    """The text that identifies a function of a user's file in another process: "/PATH/FILE.py:NAME".

    Here and below, `what` is the setting that the function is used for, for errors.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = str(getattr(module, "__file__", None))
    importable = (inspect.isfunction(function) or inspect.isclass(function)) and name.isidentifier()
    if not importable or not file.endswith(".py") or getattr(module, "__package__", None):
        raise ModebridgeError(
            f"Expected {what} to be a function that another process can import, but got {name}; write it with def at "
            "the top level of your recipe's .py file."
        )
    return f"{_absolute(file, None)}:{name}"


def load_file(path: Path) -> ModuleType:
    """A user's Python file as a module, executed once per process; it may import the files next to it."""
    try:
        path = path.resolve(strict=True)
        key = (path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        raise ModebridgeError(
            f"Expected '{path}' to be a Python file, but there is no such file; check the path."
        ) from None
    running = sys.modules.get("__main__")
    if running is not None and Path(getattr(running, "__file__", None) or "").resolve() == path:
        return running  # already running as the main program: executing it again would start another run
    with _LOCK:
        if key not in _LOADED:
            # The name is the same in every process, so that objects defined there can be pickled.
            name = f"{USER}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
            loader = SourceFileLoader(name, str(path))
            spec = spec_from_file_location(name, path, loader=loader)  # whatever the file's ending
            assert spec is not None
            module = module_from_spec(spec)
            sys.modules[name] = module  # dataclasses and pickle look there
            try:
                run_file(path, f"'{path}' to run", partial(loader.exec_module, module))
            except ModebridgeError:
                del sys.modules[name]
                raise
            _LOADED[key] = module
        return _LOADED[key]


def find_function(reference: str, what: str) -> Callable[..., object]:
    """The function for "/PATH/FILE.py:NAME"."""
    path, _, name = reference.rpartition(":")
    module = load_file(Path(path))
    function = getattr(module, name, None)
    if not callable(function):
        names = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
        raise ModebridgeError(
            f"Expected {what} to be a function in '{path}', but it has no '{name}'; {near(name, names)}"
        )
    return function  # type: ignore[no-any-return]


def call_function(reference: str, what: str, **offered: object) -> Any:
    """Call a user's function; arguments are passed only if its signature has them."""
    function = find_function(reference, what)
    try:
        taken = {name: offered[name] for name in inspect.signature(function).parameters if name in offered}
    except (TypeError, ValueError):  # for example a class written in C, without a signature
        taken = {}
    path, _, name = reference.rpartition(":")
    return run_file(Path(path), f"{name}() in '{path}' to run", partial(function, **taken))


def run_file(path: Path, what: str, work: Callable[[], object]) -> Any:
    """Run code of a user's file with its folder on sys.path, because functions may import late."""
    sys.path.insert(0, str(path.parent))
    try:
        return work()
    except ModebridgeError:
        raise
    except (Exception, SystemExit) as error:  # a user's program can raise anything
        # "timm.new" is missing from what is installed.
        missing = error.name if isinstance(error, ModuleNotFoundError) and "." not in (error.name or ".") else None
        lines = [one.lineno for one in extract_tb(error.__traceback__) if one.filename == str(path)]
        at = f" in line {lines[-1]}" if lines else ""
        hint = f"install {missing}" if missing else "fix it, or see all of it with --debug"
        if "torchvision::" in str(error):  # built for another torch
            hint = "install versions of torch and torchvision that match, both for the CPU or both for CUDA"
        raise ModebridgeError(
            f"Expected {what}, but got {type(error).__name__}: '{first_line(error)}'{at}; {hint}."
        ) from error
    finally:
        sys.path.remove(str(path.parent))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python, then restore them: for code of others."""
    with seeds.borrowed(seed):
        python, numpy = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
