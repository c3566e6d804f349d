"""The parts of an ensemble as torch.export programs in one .pt2 archive, optionally compiled ahead of time."""

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
"""Writes the archive with additional text files."""


@torch.no_grad()
def make_package(module: OneModule, example: Inputs, *, elastic: bool, aot: bool) -> Pack:
    """Export the programs of a .pt2 archive.

    A plain archive has one program, `model`, from images to the members' probabilities (M, B, K). An elastic archive
    has one program per base and per bridge (`base0`, `bridge0`), and the reader runs those it needs: a graph of
    torch.export cannot skip images depending on computed values.

    Args:
        module: the ensemble.
        example: (B, ...) images, or several inputs by name.
        elastic: whether the archive is elastic.
        aot: compile every program with AOTInductor for this machine.
    """
    if aot and shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ModebridgeError(
            "Expected a C++ compiler for AOTInductor, but found neither g++ nor clang++; install one, or leave out aot."
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
    # Parts of one architecture have the same code, and the compiler derives its file names from the code, in a cache
    # shared by all programs. Without a unique name, one part would overwrite the weights of another.
    name = f"part{uuid.uuid4().hex}"
    options = {"aot_inductor.package": True, "aot_inductor.model_name_for_generated_files": name}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch._inductor.aot_compile(program.module(), args, kwargs, options=options)
