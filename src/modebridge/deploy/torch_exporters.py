"""Run torch's exporters on the parts of an ensemble: without their output, and with readable errors."""

from __future__ import annotations

import contextlib
import io
import linecache
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, fx, nn

from modebridge.batches import flatten, map_inputs
from modebridge.deploy.one_module import BasePart, OneModule, Positional
from modebridge.errors import ModebridgeError, first_line
from modebridge.types import Inputs

__all__ = ["Exporter", "export_module", "export_parts", "in_order", "quiet"]

Exporter: TypeAlias = Callable[..., Any]
"""Maps a module with positional inputs, an example and `dynamic_shapes` to a program, as `torch.export.export` does."""

LOGGERS = (
    "torch.onnx",
    "onnxscript",
    "torch.export",
    "onnx_ir",
    "torch.fx.experimental.symbolic_shapes",
    "torch._dynamo",
)


@torch.no_grad()
def export_parts(exporter: Exporter, called: str, module: OneModule, example: Inputs) -> tuple[list[Any], list[Any]]:
    """The program of every base (images to logits and features) and of every unit of bridges (features to logits).

    They are exported separately, so that each has its own batch size: a bridge may run on only some of the images.

    Args:
        exporter: exports one program.
        called: name of the exporter in errors.
        module: the ensemble.
        example: an example of any batch size.
    """
    _, features = module.run_bases(_two_rows(example))
    bases = [export_module(exporter, called, base, example) for base in module.bases]
    bridges = [
        _export(exporter, called, Positional(runner), [features[place] for place in module.reads[numbers[0]]])
        for numbers, runner in zip(module.units, module.runners, strict=True)
    ]
    return bases, bridges


def export_module(exporter: Exporter, called: str, module: nn.Module, example: Inputs) -> Any:
    """The program of a module that takes images, or several inputs as one dict."""
    names = None if isinstance(example, Tensor) else list(example)
    return _export(exporter, called, Positional(module, names), in_order(_two_rows(example)))


def _export(exporter: Exporter, called: str, wrapped: Positional, inputs: Sequence[Tensor]) -> Any:
    # Contiguous, so that the strides of the example do not become part of the program.
    example = tuple(tensor.contiguous() for tensor in inputs)
    with quiet():
        try:
            shapes = (tuple({0: torch.export.Dim.DYNAMIC} for _ in example),)
            return exporter(wrapped.eval(), example, dynamic_shapes=shapes)
        except Exception as error:
            raise _refusal(error, wrapped, called) from error


def _two_rows(inputs: Inputs) -> Inputs:
    """The first row twice: a batch size of one would be exported as a constant."""
    return map_inputs(lambda tensor: tensor[:1].expand(2, *tensor.shape[1:]).clone(), inputs)


def in_order(inputs: Inputs) -> list[Tensor]:
    """The tensors of the inputs as a list, for positional calls."""
    return list(flatten(inputs).values())


@contextlib.contextmanager
def quiet(names: Sequence[str] = LOGGERS) -> Iterator[None]:
    """Suppress prints, logs and warnings of exporters; exceptions are raised as usual."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        out, err = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        with warnings.catch_warnings(action="ignore"), out, err:
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _refusal(error: Exception, wrapped: Positional, exporter: str) -> ModebridgeError:
    """An error that names the submodule of the user's network, its line and the operation that cannot be exported."""
    owners = _owners(wrapped)
    chain = list(_chain(error))
    place = next((match for link in reversed(chain) if (match := _place(link, wrapped))), None)
    net, name = owners[id(place.module)] if place else next(iter(owners.values()))
    where = f" in its submodule '{name}' ({type(place.module).__name__})" if place and name else ""
    line = f", {place.line}" if place and place.line else ""
    reason, hint = _reason(chain, place)
    return ModebridgeError(
        f"Expected {type(net).__name__} to be exportable by {exporter}, but got {reason}{where}{line}; {hint}."
    )


class _Place(NamedTuple):
    """Where in a network an exporter failed: the submodule, its line of code, and the operation if known."""

    module: nn.Module
    line: str
    operation: str = ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, the original one last."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _place(error: BaseException, wrapped: Positional) -> _Place | None:
    """The innermost submodule in the traceback, or whose operation was being exported."""
    place: _Place | None = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        node, module = frame.f_locals.get("node"), frame.f_locals.get("self")
        if isinstance(node, fx.Node) and (of_node := _of_node(node, wrapped)):
            place = of_node
        elif isinstance(module, nn.Module) and id(module) in _owners(wrapped):
            file = frame.f_code.co_filename
            # torch's frames between the call of a module and its forward pass do not help.
            useful = not frame.f_code.co_name.endswith("_call_impl")
            code = linecache.getline(file, number).strip()
            place = _Place(module, f"{Path(file).name}:{number} `{code}`" if useful and code else "")
    return place


def _of_node(node: fx.Node, wrapped: Positional) -> _Place | None:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    operation = str(node.target) if node.op == "call_function" else ""
    lines = re.findall(r'File "([^"]+)", line (\d+), in .*\n\s*(.+)', node.meta.get("stack_trace") or "")
    line = f"{Path(lines[-1][0]).name}:{lines[-1][1]} `{lines[-1][2].strip()}`" if lines else ""
    for path in reversed(paths):
        with contextlib.suppress(AttributeError):
            module = wrapped.get_submodule(path)
            if id(module) in _owners(wrapped):
                return _Place(module, line, operation)
    return None


def _reason(chain: list[BaseException], place: _Place | None) -> tuple[str, str]:
    kinds = {type(error).__name__ for error in chain}
    if "GuardOnDataDependentSymNode" in kinds or any("data-dependent" in str(error) for error in chain):
        return (
            "a branch or a number that depends on the values in a tensor",
            "use tensor operations such as torch.where",
        )
    missing = re.findall(r"No ONNX function found for .*?op='([^']+)'", "\n".join(map(str, chain)))
    if missing:
        return f"the operation {missing[-1]}, which ONNX does not have", "use other operations, or export to .pt2"
    text = next((first_line(error) for error in reversed(chain) if str(error).strip()), type(chain[0]).__name__)
    operation = f" at {place.operation}" if place and place.operation else ""
    return f"'{text}'{operation}", "rewrite that part of its forward pass with operations that can be exported"


def _owners(wrapped: Positional) -> dict[int, tuple[nn.Module, str]]:
    """The user's network, or body of a bridge, that contains each submodule, and the name of the submodule there."""
    nets = [part.net for part in wrapped.modules() if isinstance(part, BasePart)]
    nets += [runner for part in wrapped.modules() if isinstance(part, OneModule) for runner in part.runners]
    return {id(module): (net, name) for net in nets or [wrapped.module] for name, module in net.named_modules()}
