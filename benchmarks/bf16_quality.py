"""Does bf16 reduce quality? Trains the same seeds in bf16 and in fp32 on CIFAR-10 and prints accuracy and NLL.

    python benchmarks/bf16_quality.py --data FOLDER --epochs 30 --seeds 3

FOLDER holds the binary version of CIFAR-10. ResNet-32x2 with filter response norm; the paper's settings except epochs.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from modebridge import BridgedEnsemble, TrainConfig, __version__, evaluate, fit_modes
from modebridge.data import ImageSet, Loader, read_cifar
from modebridge.nets import ResNet, spec_of
from modebridge.training import Engine


def compare(
    engine: Engine, config: TrainConfig, seeds: int, train: ImageSet, valid: ImageSet, test: ImageSet
) -> Iterator[str]:
    """Train all seeds together with an engine, and yield lines of results."""
    nets = [ResNet(spec_of("cifar10"), torch.Generator().manual_seed(k)) for k in range(seeds)]
    loaders = [Loader(train, 128, shuffle=True, seed=k, pad=4, flip=True) for k in range(seeds)]
    marks = [time.perf_counter()]
    modes = fit_modes(nets, loaders, config=config, engine=engine, report=lambda *_: marks.append(time.perf_counter()))
    seconds = [b - a for a, b in itertools.pairwise(marks)]
    ensembles = [BridgedEnsemble(nets[0], [mode]).to(engine.device) for mode in modes]
    scores = [evaluate(ensemble.calibrate(Loader(valid, 1000)), Loader(test, 1000)) for ensemble in ensembles]
    precision = "bf16" if engine.bf16 else "fp32"
    for what in ("accuracy", "raw_nll", "nll"):
        values = [getattr(score, what) for score in scores]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        each = ", ".join(f"{value:.4f}" for value in values)
        yield f"{precision} {what}: {statistics.mean(values):.4f} +- {spread:.4f} ({each})"
    rate = seeds * len(train) / statistics.median(seconds[1:] or seconds)
    yield f"  {rate:,.0f} images/s over {seeds} modes; first epoch {seconds[0]:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    best = Engine.best()
    if best.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    train, test = (part.to(best.device) for part in read_cifar(arguments.data))
    cut = len(train) * 9 // 10
    train, valid = train.part(0, cut), train.part(cut, len(train))
    name = torch.cuda.get_device_name() if best.device.type == "cuda" else "cpu"
    print(f"modebridge {__version__}, torch {torch.__version__}, {name}, {arguments.epochs} epochs", flush=True)
    config = TrainConfig(epochs=arguments.epochs, weight_decay=1e-3, keep="last")
    for bf16 in (True, False):
        print(*compare(replace(best, bf16=bf16), config, arguments.seeds, train, valid, test), sep="\n", flush=True)


if __name__ == "__main__":
    main()
