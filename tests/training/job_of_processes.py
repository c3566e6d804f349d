"""What `test_processes.py` starts as one process and as two: trains a little of everything and writes it down."""

from __future__ import annotations

import sys
from pathlib import Path

import safetensors.torch
import torch

from modebridge.training import Checkpoints, Engine, fit_bridge, fit_curve
from modebridge.training.processes import leave
from tests.scenarios import EXACT, fit_mode, loader, quick, tiny_net

# In float64, where nothing but the sharing could differ: in float32 rounding grows from step to step.
STEPS = {"n": 24, "batch_size": 6, "dtype": EXACT}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    processes = Engine().processes
    found: dict[str, torch.Tensor] = {"size": torch.tensor(float(processes.size))}
    config = quick(4, weight_decay=1e-3)
    # Seeds differ by rank on purpose: all must begin from the weights of the first.
    mode = fit_mode(tiny_net(processes.rank, dtype=EXACT), loader(**STEPS), config=config)
    found |= {f"mode/{name}": tensor for name, tensor in mode.params.items()}

    net, other = tiny_net(0, dtype=EXACT), fit_mode(tiny_net(5, dtype=EXACT), loader(**STEPS, seed=5), config=config)
    saved = quick(4, seed=3, checkpoints=Checkpoints(out / "curve", every=0))
    curve = fit_curve(net, mode, other, loader(**STEPS), config=saved)
    found |= {f"curve/{name}": tensor for name, tensor in curve.pins[0].items()}

    kept = type(config)(epochs=4, lr=0.05, warmup=1, keep="best", mixup=0.0)
    bridge = fit_bridge(net, curve, loader(**STEPS), config=kept, valid=loader(10, 4, seed=9, dtype=EXACT))
    found |= {f"bridge/{name}": tensor for name, tensor in bridge.state_dict().items()}

    # With mixup, batch norm and a last batch that is filled up, processes differ from one, but never from each other.
    uneven = loader(25, 6, dtype=EXACT)
    normed = fit_mode(tiny_net(0, "bn", EXACT), uneven, config=quick(2))
    mixed = fit_bridge(net, curve, uneven, config=quick(2, mixup=0.4))
    for tensor in (*normed.state.values(), *mixed.state_dict().values()):
        same = tensor.clone()
        if processes.size > 1:
            processes.from_first(same)
        assert torch.equal(same, tensor), "processes ended at other weights or statistics"

    if processes.rank == 0:
        safetensors.torch.save_file({k: v.contiguous() for k, v in found.items()}, out / "found.safetensors")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
