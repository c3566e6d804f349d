"""From the folds of a trained nnU-Net v2 model to one network: distilled, or fold 0 with heads that imitate the others.

pip install '.[onnx]' dynamic-network-architectures           # and blosc2, if the cases are .b2nd files
python examples/nnunet_folds.py MODEL CASES                   # one new network: fast.onnx
python examples/nnunet_folds.py MODEL CASES --save-fold NEW   # and as a model with one fold, for nnU-Net itself
python examples/nnunet_folds.py MODEL CASES --heads           # fold 0 as it is, and heads: 5 % more

MODEL is like nnUNet_results/Dataset027_ACDC/nnUNetTrainer__nnUNetPlans__2d, and CASES, what it was trained on, like
nnUNet_preprocessed/Dataset027_ACDC/nnUNetPlans_2d. The table is about patches of cases that fold 0 was not trained on.
The other folds were, which flatters their average: for figures to report pass --test, a folder of new cases.
"""

import argparse
import json
import pydoc
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import modebridge as mb
from modebridge.files.checkpoints import read_state

CHECKPOINT = "checkpoint_final.pth"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Patches:
    """Batches of random patches, a third of them around foreground; equal for the same seed and epoch."""

    cases: list[str]
    plan: dict[str, Any]
    ignored: int | None
    batches: int
    seed: int
    mirror: Sequence[int] = ()
    epoch: int = 0
    places: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        random, size = np.random.default_rng([self.seed, self.epoch]), self.plan["batch_size"]
        for _ in range(self.batches):
            batch = [self.patch(random, foreground=k >= round(size * 2 / 3)) for k in range(size)]
            images, labels = (torch.from_numpy(np.stack(arrays)).to(DEVICE) for arrays in zip(*batch, strict=True))
            yield images.float(), labels.long()

    def patch(self, random: np.random.Generator, foreground: bool) -> tuple[np.ndarray, np.ndarray]:
        case, shape = self.cases[random.integers(len(self.cases))], self.plan["patch_size"]
        image, labels = read(case)
        # Cases have three axes, and a patch of two is a slice of them. A case that is too small gets a margin.
        sides, whole = np.array([1, *shape][-3:]), np.array(labels.shape[1:])
        first = -(np.maximum(sides - whole, 0) // 2)
        last = np.maximum(whole - sides, first)
        start = random.integers(first, last + 1)
        if foreground and (classes := self.foreground(case, labels)):
            found = classes[random.integers(len(classes))]
            start = np.clip(found[random.integers(len(found))] - sides // 2, first, last)
        stop = np.minimum(start + sides, whole)
        inside = tuple(slice(max(a, 0), b) for a, b in zip(start, stop, strict=True))
        margin = [(0, 0), *zip(np.maximum(-start, 0), start + sides - stop, strict=True)]
        # Outside of the mask of a case, -1, is background as in nnU-Net; margins and "ignore" do not count.
        labels = labels[(slice(1), *inside)]
        labels = np.where(labels == self.ignored, -1, np.maximum(labels, 0))
        image = np.pad(image[(slice(None), *inside)], margin).reshape(-1, *shape)
        labels = np.pad(labels, margin, constant_values=-1).reshape(shape)
        turned = [axis - len(shape) for axis in self.mirror if random.random() < 0.5]
        return np.flip(image, turned), np.flip(labels, turned)

    def foreground(self, case: str, labels: Any) -> list[np.ndarray]:
        """At most 1,000 places of each class of a case; nnU-Net keeps them too, in pickles, which could run code."""
        if case not in self.places:
            whole = np.asarray(labels[:])[0]
            found = [np.argwhere(whole == k) for k in np.unique(whole) if k > 0 and k != self.ignored]
            self.places[case] = [rows[:: -(-len(rows) // 1000)] for rows in found]
        return self.places[case]


def read(case: str) -> tuple[Any, Any]:
    """Image (C, Z, Y, X) and labels (1, Z, Y, X); all but .npz are read from the disk only where they are cut."""
    if Path(f"{case}.b2nd").is_file():
        blosc2 = needed("blosc2")
        return blosc2.open(f"{case}.b2nd", mode="r"), blosc2.open(f"{case}_seg.b2nd", mode="r")
    if Path(f"{case}.npy").is_file():
        return np.load(f"{case}.npy", mmap_mode="r"), np.load(f"{case}_seg.npy", mmap_mode="r")
    with np.load(f"{case}.npz") as arrays:
        return arrays["data"], arrays["seg"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--test", type=Path, help="preprocessed cases that no fold was trained on")
    parser.add_argument("--out", type=Path, default=Path("fast.onnx"))
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--heads", action="store_true", help="keep fold 0 and add heads, instead of one new network")
    way.add_argument("--save-fold", type=Path, help="where to write the new network as a model of nnU-Net")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batches", type=int, default=250, help="batches per epoch")
    given = parser.parse_args(arguments)

    # 1. Folds are modes: their weights are read, and no code in them is run.
    files = sorted(given.model.glob(f"fold_[0-9]*/{CHECKPOINT}"))
    if len(files) < 2 or files[0].parent.name != "fold_0":
        got = ", ".join(file.parent.name for file in files) or "none"
        sys.exit(f"Expected {CHECKPOINT} in fold_0 and other folds of '{given.model}', but got {got}; train them.")
    fold = read_state(files[0])
    plans, dataset = (json.loads((given.model / name).read_text()) for name in ("plans.json", "dataset.json"))
    plan = configuration(plans, fold["init_args"]["configuration"])
    net = build(plan, dataset)
    modes = mb.load_checkpoints(net, files)

    # 2. Patches of the cases of fold 0, mirrored along the axes that nnU-Net mirrors.
    ignored, fewer = dataset["labels"].get("ignore"), -(-given.batches // 5)
    mirror = fold.get("inference_allowed_mirroring_axes") or ()
    train = Patches(cases(given.cases, "train"), plan, ignored, given.batches, 0, mirror)
    valid = Patches(cases(given.cases, "val"), plan, ignored, fewer, seed=1)
    test = Patches(cases(given.test) if given.test else valid.cases, plan, ignored, fewer, seed=2)

    # 3. One network that learns the mean of all, or heads on fold 0 that imitate the others.
    config = mb.TrainConfig(epochs=given.epochs, clip=12.0)  # clipped as in nnU-Net
    if given.heads:
        bridge = mb.fit_bridge(net, modes, train, budget=0.05, config=config)
        title, fast = "fold 0 + heads", mb.Ensemble(net, modes[:1], [bridge])
    else:
        student = mb.distill(net, modes, train, config, start=modes[0])
        title, fast = "distilled", mb.Ensemble(net, [student])
    rows = {"fold 0": mb.Ensemble(net, modes[:1]), title: fast, "all folds": mb.Ensemble(net, modes)}
    table = mb.compare({name: row.to(DEVICE).calibrate(valid) for name, row in rows.items()}, test)
    print(table)
    for name, scores in table.scores.items():
        print(f"{name}: mean Dice of foreground {np.nanmean(scores.dice[1:]):.4f}")
    if not given.test:
        print("All folds but fold 0 were trained on these cases, so their average is worse on new ones: see --test.")

    # 4. One file for any number of patches of this size; and the new network as a model of nnU-Net with one fold.
    classes = sorted(dataset["labels"].keys() - {"ignore"}, key=dataset["labels"].get)
    example = next(iter(test))[0][:1].cpu()
    # Through dozens of layers in float32, probabilities of a real network differ by almost 1e-5.
    print(mb.export(fast, given.out, example, classes=classes, tolerance=1e-4).path)
    if given.save_fold:
        (given.save_fold / "fold_0").mkdir(parents=True, exist_ok=True)
        for name in ("plans.json", "dataset.json"):
            shutil.copy(given.model / name, given.save_fold)
        # What nnU-Net's predictor reads of a checkpoint.
        kept = {key: fold.get(key) for key in ("init_args", "trainer_name", "inference_allowed_mirroring_axes")}
        saved = {"network_weights": student.load(net).state_dict(), **kept}
        torch.save(saved, given.save_fold / "fold_0" / CHECKPOINT)
        print(f"nnUNetv2_predict_from_modelfolder -m {given.save_fold} -f 0 -i IMAGES -o PREDICTIONS")


def configuration(plans: dict[str, Any], name: str) -> dict[str, Any]:
    own = plans["configurations"][name]
    return {**configuration(plans, own["inherits_from"]), **own} if "inherits_from" in own else own


def build(plan: dict[str, Any], dataset: dict[str, Any]) -> torch.nn.Module:
    """The network of a plan; it has the layers of deep supervision, which the files hold too, and does not run them."""
    regions = any(isinstance(value, list) for value in dataset["labels"].values())
    if regions or plan.get("previous_stage") or "architecture" not in plan:
        got = "regions, which may overlap" if regions else "a cascade, or plans of an early release"
        sys.exit(f"Expected a network from images to classes, but got {got}; use another model.")
    needed("dynamic_network_architectures")
    design = plan["architecture"]
    options = {**design["arch_kwargs"], "deep_supervision": False}
    options |= {key: options[key] and find(options[key]) for key in design["_kw_requires_import"]}
    channels = dataset.get("channel_names") or dataset["modality"]
    classes = dataset["labels"].keys() - {"ignore"}
    return find(design["network_class_name"])(input_channels=len(channels), num_classes=len(classes), **options)


def find(name: str) -> Any:
    """A network or a layer by its name; from nothing but these two packages."""
    found = pydoc.locate(name) if name.startswith(("dynamic_network_architectures.", "torch.nn.")) else None
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        sys.exit(f"Expected classes of dynamic_network_architectures or torch.nn in the plans, but got '{name}'.")
    return found


def needed(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        sys.exit(f"Expected {module} to be installed, but it is not; pip install {module.replace('_', '-')}")


def cases(folder: Path, part: str = "") -> list[str]:
    """The cases of a folder, or those that fold 0 had for "train" or "val"."""
    files = [file for file in folder.glob("*.*") if file.suffix in (".b2nd", ".npy", ".npz")]
    found = sorted({file.stem for file in files if not file.stem.endswith("_seg")})
    if not found:
        sys.exit(f"Expected '{folder}' to hold preprocessed cases, .b2nd, .npy or .npz, but got none; check the path.")
    if part:
        file, held = folder.parent / "splits_final.json", -(-len(found) // 5)
        parts = json.loads(file.read_text())[0] if file.is_file() else {"train": found[:-held], "val": found[-held:]}
        found = parts[part]
    return [f"{folder}/{name}" for name in found]


if __name__ == "__main__":
    main()
