"""Convert the output of a hold to a folder of results/, which `modebridge report` reads without data or GPU.

    python benchmarks/holds/keep.py HOLD results/cifar10-frn --recipe cifar10 --set modes=4 --data DIR \
        --machine "NVIDIA H200, 16 cores" --torch 2.11.0+cu130 --log log-bridges.txt --bridge I-0-3-small

    python benchmarks/holds/keep.py FRONTIER results/cifar10-frn --seed 0 --recipe cifar10 --set modes=4 --data DIR \
        --machine "NVIDIA H200, 16 cores" --torch 2.11.0+cu130 --log log-heads.txt --bridge heads-others-cutmix-budget

HOLD has one file per member, NAME.safetensors with the logits of both splits (NAME-h0, NAME-h1, ... if it has several
heads), weights-NAME.safetensors, and main.log. The weights of modes are kept unless --no-weights is given; those of
small networks only if listed with --bridge. With --seed, the folder is of benchmarks/frontier.py: its heads
(heads_frn.py) are added to the members of an existing results folder; pass the recipe of all its members.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from heads_frn import files_of
from safetensors.torch import load_file

from members import cost_of, kept_name, kind_of, splits_of
from modebridge import trees
from modebridge.data import load_mode
from modebridge.members import key_of
from modebridge.nets import ResNet, spec_of
from modebridge.recipes import RunData, changed, find_recipe, to_toml
from modebridge.runs import RunFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hold", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--data", required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--torch", required=True)
    parser.add_argument("--log", default="log.txt", help="name of the log in the folder")
    parser.add_argument("--bridge", action="append", default=[], help="keep the weights of this bridge; repeatable")
    parser.add_argument("--no-weights", action="store_true", help="do not keep the weights of modes")
    parser.add_argument("--leave-out", action="append", default=[], help="skip the logits of this member; repeatable")
    parser.add_argument("--python", help="Python version on the machine of the hold")
    parser.add_argument("--seed", type=int, help="add the heads of this seed of a run of benchmarks/frontier.py")
    given = parser.parse_args()
    recipe = changed(find_recipe(given.recipe), given.set)
    data = RunData(recipe, 0, given.data)
    spec = spec_of(recipe.net, recipe.norm, data.facts.classes)
    folder, weights = RunFolder(given.out), given.out / "weights"
    added = {} if given.seed is None else files_of(given.hold, given.seed)
    for place, names in ((weights, [] if given.no_weights else ["mode-*"]), (given.out / "bridges", given.bridge)):
        for name in names:
            for file in given.hold.glob(f"weights-{added.get(name, name)}.safetensors"):
                place.mkdir(exist_ok=True)
                kept = f"{name}.safetensors" if name in added else file.name.removeprefix("weights-")
                shutil.copyfile(file, place / kept)
    files = list(weights.glob("mode-*.safetensors")) or list(given.hold.glob("weights-mode-*.safetensors"))
    modes = {file.stem.removeprefix("weights-"): load_mode(ResNet(spec), file).id for file in files}

    def keep(kind: str, name: str, key: str, tensors: dict[str, torch.Tensor], **notes: object) -> None:
        made = {"torch": given.torch, "machine": given.machine, "note": "rounded to half precision"}
        made |= {"python": given.python} if given.python else {}
        folder.keep(f"{kind}/{name}", key, tensors, {"inputs": {}, **notes, **made})

    logits_of = {name: load_file(given.hold / f"{file}.safetensors") for name, file in added.items()}
    for called, logits in (splits_of(given.hold) if given.seed is None else logits_of).items():
        name, weights_name = kept_name(called, recipe.norm), added.get(called, called.replace("curve-", "pin-"))
        if name in given.leave_out:
            continue
        file = given.hold / f"weights-{weights_name}.safetensors"
        identity = modes.get(name) or trees.fingerprint(load_file(file))
        cost = cost_of(name, spec)
        keep(
            kind_of(name),
            name,
            key_of("logits", name, identity, data.scored_on),
            logits,
            flops=cost.flops,
            params=cost.params,
            reads=list(cost.reads),
            id=identity,
            scored_on=data.scored_on,
        )
    if given.seed is None:
        labels = {"valid": data.labels("valid"), "test": data.labels("test")}
        keep("logits", "labels", key_of("labels", data.scored_on), labels, scored_on=data.scored_on)
    folder.files.write({"recipe.toml": to_toml(recipe, 0)})
    shutil.copyfile(given.hold / "main.log", given.out / given.log)
    shutil.rmtree(given.out / ".work")


if __name__ == "__main__":
    main()
