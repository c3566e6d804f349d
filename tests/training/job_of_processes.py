"""What `test_processes.py` starts as one process and as two: trains a little of everything and writes it down."""

from __future__ import annotations

import sys
from pathlib import Path

import safetensors.torch
import torch

from modebridge import ModebridgeError
from modebridge.batches import go_to_epoch
from modebridge.curves import CurveObjective, start_curve
from modebridge.training import Checkpoints, Engine, fit_bridges, fit_curve, fit_mode, plan_bridge
from tests.scenarios import EXACT, blobs, loader, quick, tiny_net

# In float64, where nothing but the sharing could differ: in float32 rounding grows from step to step.
STEPS = {
    "n": 25,
    "batch_size": 6,
    "dtype": EXACT,
}  # 5 steps an epoch, the last one of a single image; 4 epochs are 20 steps


def main(out: Path) -> None:
    torch.set_num_threads(1)
    processes = Engine().processes
    found: dict[str, torch.Tensor] = {"size": torch.tensor(float(processes.size))}
    config = quick(4, weight_decay=1e-3)
    # Seeds differ by rank on purpose: all must begin from the weights of the first.
    mode = fit_mode(tiny_net(processes.rank, dtype=EXACT), loader(**STEPS), config=config)
    found |= {f"mode/{name}": tensor for name, tensor in mode.params.items()}

    net, other = tiny_net(0, dtype=EXACT), fit_mode(tiny_net(5, dtype=EXACT), loader(**STEPS, seed=5), config=config)
    best = quick(4, seed=3)
    curve = fit_curve(net, mode, other, loader(**STEPS), config=best, checkpoints=Checkpoints(out / "curve", every=0))
    found |= {f"curve/{name}": tensor for name, tensor in curve.pins[0].items()}

    images = blobs(dtype=EXACT).images
    plans = {
        "I": plan_bridge(net, curve, images, kind="I", name="I"),
        "II": plan_bridge(net, curve, images, kind="II", name="II"),
        "labels": plan_bridge(net, curve, images, target="labels", name="labels"),
    }
    kept = type(config)(epochs=4, lr=0.05, warmup=1, keep="best")
    bridges = fit_bridges(net, plans, loader(**STEPS), config=kept, valid=loader(10, 4, seed=9, dtype=EXACT))
    for name, bridge in bridges.items():
        found |= {f"bridge-{name}/{key}": tensor for key, tensor in bridge.state_dict().items()}

    # Statistics over all processes, at a point that is given: nothing but their estimation differs.
    bn = tiny_net(0, "bn", EXACT)
    ends = [fit_mode(tiny_net(seed, "bn", EXACT), loader(16, 8, dtype=EXACT), config=quick(1)) for seed in (0, 1)]
    if processes.size > 1:
        for end in ends:
            for tensor in end.state.values():
                same = tensor.clone()
                processes.from_first(same)
                assert torch.equal(same, tensor), "processes ended at other weights or statistics"
    line = start_curve(bn, *(type(ends[0]).from_module(tiny_net(seed, "bn", EXACT)) for seed in (3, 4)))
    data = loader(16, 5, dtype=EXACT)
    go_to_epoch(data, 0)
    objective = CurveObjective(bn, line, data, refresh=processes.refresh)
    refreshed = objective.result(objective.start()).statistics[0.5]
    found |= {f"statistics/{name}": tensor for name, tensor in refreshed.items()}

    if processes.size > 1:
        try:
            fit_mode(tiny_net(0), loader(seed=processes.rank), config=quick(1))
        except ModebridgeError as error:
            (out / f"said-{processes.rank}").write_text(str(error))
    if processes.rank == 0:
        safetensors.torch.save_file({k: v.contiguous() for k, v in found.items()}, out / "found.safetensors")
    processes.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
