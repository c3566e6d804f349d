"""Classifiers as people have them: torchvision's, timm's, one in the manner of Hugging Face; all run fast."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

IMAGES = {
    "torchvision resnet18": (3, 64, 64),
    "torchvision mobilenet": (3, 64, 64),
    "timm resnet18": (3, 64, 64),
    "timm convnext": (3, 64, 96),
    "timm vit": (3, 32, 32),
    "timm swin": (3, 64, 64),
    "timm efficientnet": (3, 64, 64),
}
"""(C, H, W) of the images of each network; ConvNeXt's are not square."""


def real_net(name: str, seed: int = 0) -> nn.Module:
    """A freshly drawn network of ten classes."""
    import timm
    import torchvision.models

    builders = {
        "torchvision resnet18": lambda: torchvision.models.resnet18(num_classes=10),
        "torchvision mobilenet": lambda: torchvision.models.mobilenet_v3_small(num_classes=10),
        "timm resnet18": lambda: timm.create_model("resnet18", num_classes=10),
        "timm convnext": lambda: timm.create_model("convnext_atto", num_classes=10),
        "timm vit": lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, num_classes=10),
        "timm swin": lambda: timm.create_model(
            "swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=48, num_classes=10
        ),
        "timm efficientnet": lambda: timm.create_model("efficientnet_b0", num_classes=10),
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return builders[name]()


class Texts(nn.Module):
    """As Hugging Face's: inputs by name, layers that return tuples, an object that holds the logits."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, x, mask):
            return self.mix(x, src_key_padding_mask=mask == 0), None

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.length = nn.Identity()
        self.layers = nn.ModuleList(Texts.Encoder() for _ in range(5))
        self.head = nn.Linear(8, 3)

    def forward(self, ids, mask):
        x = self.embed(ids)
        self.length(mask.float().sum(dim=1))
        for layer in self.layers:
            x = layer(x, mask)[0]
        return SimpleNamespace(hidden=x, logits=self.head(x[:, 0]))
