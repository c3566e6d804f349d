"""The parts of an ensemble as torch.export programs in one .pt2 archive, compiled ahead of time where asked for."""

from __future__ import annotations

import shutil
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from modebridge.deploy.one_module import OneModule
from modebridge.deploy.torch_exporters import export_module, export_parts
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs

__all__ = ["Pack", "make_package"]

Pack: TypeAlias = Callable[[Path, Mapping[str, str]], None]
"""Writes the archive, with text files in it."""


@torch.no_grad()
def make_package(module: OneModule, example: Inputs, *, elastic: bool, aot: bool) -> Pack:
    """Export what a .pt2 archive holds.

    Plain, that is one program, `model`, from images to each member's probabilities (M, B, K). Elastic, it is one
    program a base and one a bridge (`base0`, `bridge0`), which the reader runs as far as it needs them: a graph of
    torch.export cannot leave out images by what it has computed.

    Args:
        module: the ensemble.
        example: (B, ...) images, or several inputs by name.
        elastic: see above.
        aot: compile every program with AOTInductor for the machine at hand.
    """
    if aot and shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ModebridgeError(
            "Expected a C++ compiler for AOTInductor, but found neither g++ nor clang++; install one or leave out aot."
        )
    if elastic:
        bases, bridges = export_parts(_program, "torch.export", module, example)
        programs = {f"base{k}": base for k, base in enumerate(bases)}
        programs |= {f"bridge{j}": bridge for j, bridge in enumerate(bridges)}
    else:
        programs = {"model": export_module(_program, "torch.export", _Members(module), example)}
    compiled = {name: _compiled(program) for name, program in programs.items()} if aot else None

    def pack(path: Path, texts: Mapping[str, str]) -> None:
        try:
            from torch.export.pt2_archive._package import package_pt2
        except ImportError as error:
            raise ModebridgeError(
                f"Expected torch 2.8 or newer for .pt2 files, but got {torch.__version__}; install it or use .onnx."
            ) from error
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if compiled is None:
                package_pt2(str(path), exported_programs=programs, extra_files=dict(texts))
            else:
                package_pt2(str(path), aoti_files=compiled, extra_files=dict(texts))

    return pack


class _Members(nn.Module):
    def __init__(self, one: OneModule) -> None:
        super().__init__()
        self.one = one

    def forward(self, images: Inputs) -> Tensor:
        return self.one.members(images)


def _program(module: nn.Module, example: tuple[Tensor, ...], shapes: Any) -> Any:
    return torch.export.export(module, example, dynamic_shapes=shapes)


def _compiled(program: Any) -> Any:
    args, kwargs = program.example_inputs
    # Parts of one architecture have the same code, from which the compiler makes its files' names in a cache that all
    # programs share: without a name that nobody else has one would overwrite the weights of another.
    name = f"part{uuid.uuid4().hex}"
    options = {"aot_inductor.package": True, "aot_inductor.model_name_for_generated_files": name}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch._inductor.aot_compile(program.module(), args, kwargs, options=options)
