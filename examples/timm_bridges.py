"""Add a bridge to a timm model: align two fine-tuned checkpoints, connect them by a curve, and fit a bridge.

pip install '.[vision]'
python examples/timm_bridges.py [MODEL]      # resnet10t by default; try convnext_atto, vit_tiny_patch16_224, ...
"""

import sys

import torch
import torch.nn.functional as F

try:
    import timm
except RuntimeError as error:  # "operator torchvision::nms does not exist": built for another torch
    sys.exit(f"torchvision does not match this torch ({error}); install a matching pair, or run `make examples`.")

import modebridge as mb
from modebridge.data import ImageSet, Loader, noisy_digits


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "resnet10t"
    train, valid, test = data()
    net = model(name)

    # Two checkpoints, as after fine-tuning (here trained from scratch for a few epochs, to avoid a download).
    config = mb.TrainConfig(epochs=8, lr=0.02, weight_decay=5e-4)
    modes = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        modes += mb.fit_modes([model(name)], train, config)
        print(f"network {seed} trained")

    # Permute the units of the second network to match the first: the same function, closer in parameter space.
    aligned = mb.align(net, modes[0], modes[1], valid)
    print(aligned)
    modes[1] = aligned.mode

    curve = mb.fit_curve(net, modes[0], modes[1], train, config=mb.TrainConfig(epochs=8, lr=0.02))
    print("curve trained")
    print(mb.inspect(net, next(iter(valid))[0][:2]))
    bridge = mb.fit_bridge(net, curve, train, budget=0.1, config=mb.TrainConfig(epochs=15, lr=0.05))
    print(bridge.extra_repr())

    print(f"\n{'members':24}{'FLOPs':>8}{'ACC':>8}{'NLL':>8}")
    for row, members, bridges in (
        (name, modes[:1], []),
        (f"{name} + bridge", modes[:1], [bridge]),
        (f"two {name}", modes, []),
    ):
        scores = mb.evaluate(mb.Ensemble(net, members, bridges).calibrate(valid), test)
        flops = f"x{scores.cost.relative_flops:.2f}"
        print(f"{row:24}{flops:>8}{scores.accuracy:8.1%}{scores.nll:8.3f}")


def model(name: str) -> torch.nn.Module:
    """A timm model for one channel and ten classes."""
    small = {"img_size": 32, "patch_size": 8} if name.startswith("vit") else {}
    return timm.create_model(name, in_chans=1, num_classes=10, **small)


def data() -> tuple[Loader, Loader, Loader]:
    """Handwritten digits with noise, at 32 pixels."""
    digits = noisy_digits(0.7)
    images = F.interpolate(digits.images, size=32, mode="bilinear")
    large = ImageSet(images, digits.labels, 10)
    train = Loader(large.part(0, 600), 60, shuffle=True)
    return train, Loader(large.part(600, 1000), 200), Loader(large.part(1000, 1797), 200)


if __name__ == "__main__":
    main()
