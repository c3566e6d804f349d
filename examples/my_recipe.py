"""A custom recipe: any network, any data, one file.

pip install '.[vision]'
modebridge run examples/my_recipe.py               # two timm networks, a head and a distilled network: a minute or two
modebridge run examples/my_recipe.py --modes DIR   # the same from your own weights of make_net(), one file each
modebridge run examples/my_recipe.py --set methods=paper   # the paper's way: a curve and bridges
modebridge run examples/my_recipe.py --set "net=timm:vit_tiny_patch16_224(img_size=32, depth=3)" --out runs/vit

The file is executed with your permissions, now and whenever the run is repeated from its folder.
"""

import timm
import torch
import torch.nn.functional as F

from modebridge.data import noisy_digits
from modebridge.recipes import DataConfig, Recipe, StageConfig


def recipe() -> Recipe:
    return Recipe(
        name="my-recipe",
        net=make_net,  # or by name: "timm:resnet18", "torchvision:resnet18", ...
        data=DataConfig(name=my_data, batch_size=60),
        # All other settings have defaults; with --modes, those above are enough.
        modes=2,
        mode=StageConfig(epochs=12, weight_decay=1e-3),  # also of the distilled network, unless student_epochs is set
        curve=StageConfig(epochs=24, weight_decay=1e-3),
        bridge=StageConfig(epochs=24),
        lr=0.05,
        device="cpu",
    )


def make_net(classes: int, channels: int) -> torch.nn.Module:
    """A new network, here a narrow one; both arguments are optional and come from the data."""
    small = {"channels": (16, 32, 64, 128), "stem_width": 16}
    return timm.create_model("resnet10t", num_classes=classes, in_chans=channels, **small)


def my_data():
    """(train, valid, test): tensors, ImageSets or loaders; or (train, test), and validation images are split off train.

    Validation images should be ones that no checkpoint was trained on. Images for `modebridge predict` and `serve` go
    from 0 to 1: if your loaders normalize, make that the network's first layer.
    """
    digits = noisy_digits(0.7)
    images = F.interpolate(digits.images.clamp(0, 1), size=32, mode="bilinear").expand(-1, 3, -1, -1)
    parts = slice(700), slice(700, 1100), slice(1100, None)
    train, valid, test = ((images[part], digits.labels[part]) for part in parts)
    return train, valid, test
