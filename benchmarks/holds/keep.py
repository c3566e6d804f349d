"""Turn what a hold brought back into a folder of results/, which `modebridge report` reads without data or GPU.

    python benchmarks/holds/keep.py HOLD results/cifar10-frn --recipe cifar10 --set modes=3 --data DIR \
        --machine "NVIDIA H200, 16 cores" --torch 2.11.0+cu130

HOLD has a file per mode, mode-K.safetensors with the logits of both splits and weights-mode-K.safetensors, and the log.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from modebridge.recipes.costs import part_cost, spec_for
from safetensors.torch import load_file

from modebridge.data import load_mode
from modebridge.nets import ResNet
from modebridge.recipes import find_recipe
from modebridge.recipes.run_data import RunData
from modebridge.recipes.settings import changed, to_toml
from modebridge.runs.folder import RunFolder, key_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hold", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--data", required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--torch", required=True)
    given = parser.parse_args()
    recipe = changed(find_recipe(given.recipe), given.set)
    spec, data = spec_for(recipe), RunData(recipe, 0, given.data)
    folder, base, net = RunFolder(given.out), part_cost(spec), ResNet(spec)
    (given.out / "weights").mkdir(exist_ok=True)

    def keep(name: str, key: str, tensors: dict[str, torch.Tensor], **notes: object) -> None:
        made = {"torch": given.torch, "machine": given.machine, "note": "rounded to half precision"}
        folder.keep("logits", name, key, tensors, notes | made)

    labels = {"valid": data.labels("valid"), "test": data.labels("test")}
    for file in sorted(given.hold.glob("mode-*.safetensors")):
        weights = given.out / "weights" / file.name
        shutil.copyfile(given.hold / f"weights-{file.name}", weights)
        identity = load_mode(net, weights).id
        keep(
            file.stem,
            key_of("logits", file.stem, identity, data.scored_on),
            load_file(file),
            flops=base.flops,
            params=base.params,
            reads=[],
            id=identity,
            scored_on=data.scored_on,
        )
    keep("labels", key_of("labels", data.scored_on), labels, scored_on=data.scored_on)
    folder.files.write({"recipe.toml": to_toml(recipe, 0)})
    shutil.copyfile(given.hold / "main.log", given.out / "log.txt")
    shutil.rmtree(given.out / ".work")


if __name__ == "__main__":
    main()
