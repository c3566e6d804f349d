"""From two checkpoints to a bridged ensemble, in the fewest steps.

python examples/two_checkpoints.py                       # trains two checkpoints first, on handwritten digits
python examples/two_checkpoints.py a.pt b.safetensors    # your checkpoints; replace `Net` below by your network
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import modebridge as mb
from modebridge.data import Loader, noisy_digits


class Net(nn.Module):
    """Any module that maps a batch to logits; it does not depend on modebridge."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        layers, channels = [], 1
        for _ in range(4):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).mean((2, 3)))


def main() -> None:
    digits = noisy_digits(0.7)
    train = Loader(digits.part(0, 600), 100, shuffle=True)
    valid, test = Loader(digits.part(600, 950), 350), Loader(digits.part(950, 1797), 300)
    net = Net()
    files = [Path(name) for name in sys.argv[1:]] or make_checkpoints(train)

    # 1. Load modes from checkpoints; prefixes of DDP and torch.compile, EMA weights and Lightning files are supported.
    modes = [mb.load_checkpoint(net, file) for file in files]
    # 2. Show where a bridge can read; the table marks the default tap.
    print(mb.inspect(net, digits.images[:2]))
    # 3. Fit a bridge of at most 10 % of the network's FLOPs that reads the first network and learns the second.
    config = mb.TrainConfig(epochs=40, lr=0.05)
    bridge = mb.fit_bridge(net, modes, train, budget=0.1, config=config)
    print(f"\nThe bridge reads '{bridge.tap}' and costs {bridge.share:.1%} of one network.\n")
    #    As in the paper: a low-loss curve between the two, and a bridge that learns its midpoint.
    curve = mb.fit_curve(net, modes[0], modes[1], train, config=config)
    of_curve = mb.fit_bridge(net, curve, train, budget=0.1, config=config)
    # 4. Compare on the test split, calibrated on the validation split.
    print(f"{'members':24}{'FLOPs':>8}{'ACC':>8}{'NLL':>8}{'ECE':>8}")
    for name, members, bridges in (
        ("one network", modes[:1], []),
        ("one network + bridge", modes[:1], [bridge]),
        ("one + bridge of a curve", modes[:1], [of_curve]),
        ("two networks", modes, []),
    ):
        scores = mb.evaluate(mb.Ensemble(net, members, bridges).calibrate(valid), test)
        flops = f"x{scores.cost.relative_flops:.2f}"
        print(f"{name:24}{flops:>8}{scores.accuracy:8.1%}{scores.nll:8.3f}{scores.ece:8.3f}")


def make_checkpoints(train: Loader) -> list[Path]:
    """Train two networks from different initializations and save them, to stand in for your checkpoints."""
    folder = Path(tempfile.mkdtemp())
    for seed in (0, 1):
        torch.manual_seed(seed)
        (mode,) = mb.fit_modes([Net()], train, mb.TrainConfig(epochs=20, lr=0.05, weight_decay=5e-4))
        torch.save({"epoch": 20, "state_dict": mode.state}, folder / f"network-{seed}.pt")
    return sorted(folder.glob("*.pt"))


if __name__ == "__main__":
    main()
