"""Time the variants of an exported file: base, plain, grouped, and elastic with all, one and no bridges.

Weights are random, since time does not depend on them. Usage: `python benchmarks/deploy_forms.py cifar10 --norm bn`
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from modebridge import BridgedEnsemble, Deployed, Mode, cost, export
from modebridge.bridges import Bridge, body_like, last_blocks_tap
from modebridge.nets import resnet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="?", default="digits")
    parser.add_argument("--norm", default="frn", choices=["frn", "bn"])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    net = resnet(arguments.net, arguments.norm, seed=0)
    mode, tap = Mode.from_module(net), last_blocks_tap(net.spec)
    bridges = [Bridge(body_like(net.spec, "I", 2, seed=k), [mode], tap, name=f"I-{k}") for k in range(3)]
    whole, base = BridgedEnsemble(net, [mode], bridges), BridgedEnsemble(net, [mode])
    example = torch.rand(1, *net.spec.image)
    plans = {
        "base": (base, {"elastic": False}, {}),
        "plain, one by one": (whole, {"elastic": False, "grouped": False}, {}),
        "plain, grouped": (whole, {"elastic": False, "grouped": True}, {}),
        "elastic, 3 bridges": (whole, {}, {}),
        "elastic, 1 bridge": (whole, {}, {"bridges": 1}),
        "elastic, 0 bridges": (whole, {}, {"bridges": 0}),
        "elastic, all sure": (whole, {}, {"threshold": 0.0}),
    }
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, Deployed] = {}
        for name, (ensemble, form, _) in plans.items():
            place = Path(folder) / f"{len(files)}.onnx"
            # Parity is not tested here: random networks have logits of any size.
            export(ensemble, place, example, uncertainty=False, tolerance=1.0, **form)
            files[name] = Deployed.load(place, threads=arguments.threads)
    print(f"{arguments.net} {arguments.norm}: relative FLOPs x{cost(whole, net.spec.image).relative_flops:.3f}")
    for batch in (1, 64):
        images, calls = np.random.default_rng(0).random((batch, *net.spec.image), np.float32), max(1, 8 // batch)
        times: dict[str, list[float]] = {name: [] for name in files}
        for round_ in range(arguments.rounds + 3):
            # Interleaved, so that a busy moment of the machine affects all variants alike.
            for name, file in files.items():
                start = time.perf_counter()
                for _ in range(calls):
                    file(images, **plans[name][2])
                if round_ >= 3:
                    times[name].append((time.perf_counter() - start) / calls)
        unit = np.quantile(times["base"], 0.25)
        for name, seconds in times.items():
            low, middle = np.quantile(seconds, 0.25), np.median(seconds)
            print(f"batch {batch:3d}  {name:20s} {1e3 * low:9.3f} ms x{low / unit:.3f}   median {1e3 * middle:.3f} ms")


if __name__ == "__main__":
    main()
