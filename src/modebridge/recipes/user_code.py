"""Functions in a user's own Python file: named by text, imported once, called with the arguments that they take."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from modebridge import seeds
from modebridge.errors import ModebridgeError, first_line, near

__all__ = [
    "USER",
    "absolute",
    "call_function",
    "find_function",
    "load_file",
    "reference_to",
    "run_file",
    "seeded",
    "split_reference",
]

USER = "modebridge_user_"
"""How the modules of users' files begin."""

_REFERENCE = re.compile(r"(?P<path>.+\.py):(?P<name>[^\W\d]\w*)", re.DOTALL)
_LOADED: dict[tuple[Path, int], ModuleType] = {}
"""By path and date: a file that was edited meanwhile is another."""
_TURN = threading.RLock()


def split_reference(text: str) -> tuple[Path, str] | None:
    """The file and the name in "FILE.py:NAME"; None for any other text.

    >>> split_reference("my_recipe.py:make_net")
    (PosixPath('my_recipe.py'), 'make_net')
    """
    match = _REFERENCE.fullmatch(text)
    return (Path(match["path"]), match["name"]) if match else None


def absolute(path: Path | str, beside: Path | None = None) -> str:
    """A path that holds in any folder.

    Args:
        path: of a user; "~" is the home.
        beside: the folder that relative paths begin at; None for the current one.
    """
    try:
        return str(((beside or Path.cwd()) / Path(path).expanduser()).resolve())
    except (OSError, ValueError, RuntimeError):  # no path at all: whoever reads it says so
        return str(path)


def reference_to(function: Callable[..., object], what: str) -> str:
    """The text by which a function is found again in another process: "/PATH/FILE.py:NAME".

    Args:
        function: at the top of a file of the user's own.
        what: the setting that it is given for.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None)

    def wrong(reason: str) -> ModebridgeError:
        return ModebridgeError(
            f"Expected {what} to be a function that another process can find again, but got {reason}; write it with "
            "def at the top of your recipe's .py file."
        )

    if "<lambda>" in name:
        raise wrong("a lambda")
    if not (inspect.isfunction(function) or inspect.isclass(function)) or "." in name:
        raise wrong(f"{name}, which is not at the top of a file")
    if file is None or Path(file).suffix != ".py":
        raise wrong(f"{name}, which is in no .py file")
    if module is not None and module.__package__:
        raise wrong(f"{module.__name__}.{name}, which is part of a package")
    return f"{absolute(file)}:{name}"


def load_file(path: Path) -> ModuleType:
    """A user's Python file as a module, executed once per process; it may import the files beside it."""
    try:
        path = path.resolve()
        key = (path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        raise ModebridgeError(
            f"Expected a Python file in '{path}', but there is no such file; check the path."
        ) from None
    running = sys.modules.get("__main__")
    if running is not None and Path(getattr(running, "__file__", None) or "").resolve() == path:
        return running  # the user's program started this one: executing it again would start another
    with _TURN:
        if key not in _LOADED:
            # The same in every process, so that what is defined there can be pickled.
            name = f"{USER}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module  # dataclasses and pickle look there
            try:
                run_file(path, f"'{path}' to run", partial(spec.loader.exec_module, module))
            except ModebridgeError:
                del sys.modules[name]
                raise
            _LOADED[key] = module
        return _LOADED[key]


def find_function(reference: str, what: str) -> Callable[..., object]:
    """The function of "/PATH/FILE.py:NAME".

    Args:
        reference: of the function.
        what: the setting that names it.
    """
    location = split_reference(reference)
    assert location is not None
    path, name = location
    module = load_file(path)
    function = getattr(module, name, None)
    if not callable(function):
        known = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
        raise ModebridgeError(
            f"Expected {what} to be a function in '{path}', but it has no '{name}'; {near(name, known)}"
        )
    return function  # type: ignore[no-any-return]


def call_function(reference: str, what: str, **offered: object) -> Any:
    """What a user's function returns.

    Args:
        reference: "/PATH/FILE.py:NAME".
        what: the setting that names it.
        offered: arguments that it gets where its signature has them.
    """
    function = find_function(reference, what)
    path, _, name = reference.rpartition(":")
    arguments = _arguments(function, reference, what, offered)
    return run_file(Path(path), f"{name}() in '{path}' to run", partial(function, **arguments))


def _arguments(
    function: Callable[..., object], reference: str, what: str, offered: dict[str, object]
) -> dict[str, object]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a class of C, say: it takes what it takes
        return {}
    taken = {name: value for name, value in offered.items() if name in parameters}
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in parameters.items():
        if name not in taken and parameter.default is parameter.empty and parameter.kind not in optional:
            known = " or ".join(offered) or "none"
            raise ModebridgeError(
                f"Expected {what} '{reference}' to take no argument but {known}, but it asks for '{name}'; give it a "
                "default."
            )
    return taken


def run_file(path: Path, what: str, work: Callable[[], object]) -> Any:
    """Do some work of a user's file, with its folder on the path: its imports may come as late as in a function.

    Args:
        path: of the file.
        what: what is expected of it, for the sentence where it fails.
        work: a part of it.
    """
    sys.path.insert(0, str(path.parent))
    try:
        return work()
    except ModebridgeError:
        raise
    except (Exception, SystemExit) as error:  # it is a user's program: anything can be wrong with it
        raise ModebridgeError(
            f"Expected {what}, but got {type(error).__name__}: '{first_line(error)}'; mend it."
        ) from error
    finally:
        sys.path.remove(str(path.parent))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators of torch, NumPy and Python at a seed, then where they were: for the code of others."""
    with seeds.borrowed(seed):
        python, numpy = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
