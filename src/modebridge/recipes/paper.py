"""Recipes by name or file: the demo, the paper's four data sets with its settings, short versions of two of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from modebridge.errors import ModebridgeError, near
from modebridge.recipes.recipe import DataConfig, Recipe, StageConfig, from_toml
from modebridge.recipes.user_code import load_file, run_file

DIGITS = Recipe(
    name="digits",
    about="UCI hand-written digits with pixel noise, carried in the package; half a minute on two cores",
    data=DataConfig(name="digits", train=500, valid=397, noise=0.7, batch_size=50),
    net="digits",
    norm="bn",
    modes=4,
    mode=StageConfig(20, 1e-3),
    curve=StageConfig(40, 1e-3),
    bridge=StageConfig(35),
    warmup=3,
    type2="first",
    width_divisor=4,
    budget=0.0,
    student_epochs=60,
    device="cpu",
)
CIFAR10 = Recipe(
    name="cifar10",
    about="the paper's CIFAR-10: ResNet-32x2 with FRN, 8 modes, 200 epochs each",
    data=DataConfig(name="cifar10", batch_size=128, pad=4, flip=True),
    net="cifar10",
    modes=8,
    mode=StageConfig(200, 1e-3, "best"),
    curve=StageConfig(200, 1e-3, "best"),
    bridge=StageConfig(200, 0.0, "best"),
    pairs="paper",
    sizes=("small", "medium"),
    methods=("paper",),
    budget=0.0,
    pin_start="random",
)
CIFAR100 = replace(
    CIFAR10,
    name="cifar100",
    about="the paper's CIFAR-100: ResNet-32x4 with FRN, 8 modes, 200 epochs each",
    data=replace(CIFAR10.data, name="cifar100"),
    net="cifar100",
    mode=StageConfig(200, 5e-4, "best"),
    curve=StageConfig(200, 5e-4, "best"),
)
TIN200 = replace(
    CIFAR100,
    name="tin200",
    about="the paper's Tiny ImageNet: ResNet-34 with FRN, 8 modes, 200 epochs each",
    data=DataConfig(name="tin200", batch_size=128, bridge_batch_size=256, pad=4, flip=True),
    net="tin200",
    bridge=StageConfig(100, 0.0, "best"),
    nesterov="authors",  # affects all of the authors' runs on this set
    together=2,
)
IN1K = replace(
    CIFAR10,
    name="in1k",
    about="the paper's ImageNet: ResNet-50 with FRN, 8 modes, 100 epochs each, aligned, streamed",
    data=DataConfig(name="in1k", batch_size=256, bridge_batch_size=512),
    net="in1k",
    mode=StageConfig(100, 1e-4, "best"),  # 100 epochs as in the authors' code; the paper states 200
    curve=StageConfig(100, 1e-5, "best"),
    bridge=StageConfig(100, 0.0, "best"),
    mixup=0.0,
    align="activations",
    together=1,
)
SHORT: dict[str, Any] = {"modes": 3, "pairs": "all", "pin_start": "midpoint"}
CIFAR10_SHORT = replace(
    CIFAR10,
    name="cifar10-short",
    about="CIFAR-10, short: ResNet-32x2 with FRN, 3 modes, 15 minutes on one H200",
    mode=StageConfig(45, 1e-3),
    curve=StageConfig(90, 1e-3),
    bridge=StageConfig(40),
    **SHORT,
)
TIN200_SHORT = replace(
    TIN200,
    name="tin200-short",
    about="Tiny ImageNet, short: ResNet-34 with FRN, 3 modes, 6 epochs each, curves 8",
    mode=StageConfig(6, 5e-4),
    curve=StageConfig(8, 5e-4),
    bridge=StageConfig(4),
    nesterov="standard",
    **SHORT,
)

RECIPES = {"digits": DIGITS}
"""All recipes by name; those of the paper's networks with each norm."""
for _frn in (CIFAR10_SHORT, TIN200_SHORT, CIFAR10, CIFAR100, TIN200, IN1K):
    _bn = replace(_frn, name=f"{_frn.name}-bn", about=_frn.about.replace("FRN", "BN"), norm="bn")
    RECIPES |= {_frn.name: _frn, _bn.name: _bn}


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise ModebridgeError(f"Expected a known recipe, but got '{name}'; {near(name, RECIPES)}")
    return RECIPES[name]


def read_recipe(name: str) -> tuple[Recipe, int | None]:
    """A recipe by name, from a file (.toml, or .py, which is executed) or a run folder; and its seed, if it has one."""
    path = Path(name)
    if (kept := path / "recipe.toml").is_file():  # a run folder
        path, name = kept, str(kept)
    if not name.endswith((".toml", ".py")):
        if name not in RECIPES and path.exists():
            raise ModebridgeError(
                f"Expected a recipe (.py or .toml) or a run folder, but got '{name}'; check the path."
            )
        return find_recipe(name), None
    if not path.is_file():
        raise ModebridgeError(f"Expected a recipe in '{path}', but there is no such file; check the path.")
    if path.suffix == ".toml":
        return from_toml(path.read_bytes(), name, path.parent.resolve())
    make = getattr(load_file(path), "recipe", None)
    recipe = run_file(path, f"recipe() in '{path}' to run", make) if callable(make) else None
    if not isinstance(recipe, Recipe):
        got = type(recipe).__name__ if callable(make) else "none"
        raise ModebridgeError(
            f"Expected '{path}' to have a function recipe() that returns a Recipe, but got {got}; start from "
            "examples/my_recipe.py, or from replace(find_recipe('digits'), ...)."
        )
    return recipe, None
