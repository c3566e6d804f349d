"""Networks of others, small: what users bring."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import timm
import torch
import torchvision
from torch import Tensor, nn

from tests.scenarios import tiny_net


class Plain(nn.Module):
    """A classifier as anybody writes one: two convolutions, batch norm, a shortcut, a perceptron."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12, momentum=0.3)
        self.branch = nn.Conv2d(12, 12, 3, padding=1)
        self.hidden = nn.Sequential(nn.Linear(12, 20), nn.BatchNorm1d(20, momentum=None), nn.ReLU(inplace=True))
        self.head = nn.Linear(20, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(images)))
        x = x + torch.tanh(self.branch(x))
        return self.head(self.hidden(x.mean((2, 3))))


class HuggingFaceStyle(nn.Module):
    """Takes tensors by name, returns an object with `logits`; its layers return tuples."""

    class Layer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
            self.norm = nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

        def forward(self, hidden: Tensor) -> tuple[Tensor, None]:
            x = self.norm(hidden)
            x = hidden + self.attention(x, x, x, need_weights=False)[0]
            return x + self.mlp(self.norm(x)), None

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 8, 8)
        self.layers = nn.ModuleList([self.Layer(16) for _ in range(3)])
        self.classifier = nn.Linear(16, classes)

    def forward(self, pixel_values: Tensor, mask: Tensor | None = None) -> SimpleNamespace:
        hidden = self.embed(pixel_values).flatten(2).transpose(1, 2)
        for layer in self.layers:
            hidden = layer(hidden)[0]
        weights = torch.ones(hidden.shape[:2], dtype=hidden.dtype) if mask is None else mask.to(hidden.dtype)
        pooled = (hidden * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        return SimpleNamespace(loss=None, logits=self.classifier(pooled))


BY_NAME = {"pixel_values": torch.rand(2, 3, 32, 32), "mask": torch.ones(2, 16, dtype=torch.int64)}
"""Inputs of `HuggingFaceStyle`."""


def _timm(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=3, **options)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "torchvision resnet18": lambda: torchvision.models.resnet18(num_classes=3),
    "timm resnet18": _timm("resnet18"),
    "timm convnext_atto": _timm("convnext_atto", depths=(1, 1, 2, 1)),
    "timm vit_tiny": _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3),
    "plain module": Plain,
}
"""What users bring most, at 32 x 32 pixels and three classes."""

OTHERS: dict[str, Callable[[], nn.Module]] = {
    "torchvision densenet": lambda: torchvision.models.DenseNet(8, (2, 2, 2), 16, num_classes=3),
    "torchvision mobilenet": lambda: torchvision.models.mobilenet_v2(num_classes=3, width_mult=0.25),
    "as VGG": lambda: nn.Sequential(
        torchvision.models.vgg.make_layers([8, "M", 12, "M"], batch_norm=True),
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Sequential(nn.Linear(12 * 49, 20), nn.ReLU(True), nn.Dropout(), nn.Linear(20, 3)),
    ),
    "torchvision shufflenet": lambda: torchvision.models.shufflenet_v2_x0_5(num_classes=3),
    "torchvision swin": lambda: torchvision.models.SwinTransformer(
        [2, 2], 24, [2, 2], [2, 4], [4, 4], num_classes=3, stochastic_depth_prob=0.0
    ),
    "torchvision vit": lambda: torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 48, num_classes=3),
    "timm efficientnet": _timm("efficientnet_lite0"),
    "timm mixer": lambda: timm.models.mlp_mixer.MlpMixer(
        num_classes=3, img_size=32, patch_size=8, num_blocks=2, embed_dim=24
    ),
    "timm regnet": _timm("regnetx_002"),
    "timm xcit": _timm("xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=2),
    "timm beit": _timm("beitv2_base_patch16_224", img_size=32, depth=2, embed_dim=48, num_heads=3),
    "timm group norm": _timm("resnet50_gn", layers=(1, 1, 1, 1)),
    "timm weight standardized": _timm("nf_resnet26"),
    "Hugging Face style": HuggingFaceStyle,
    "ours, filter response norm": lambda: nn.Sequential(nn.Conv2d(3, 1, 4, 4), tiny_net(0, "frn")),
}


def made(name: str, seed: int = 0) -> nn.Module:
    """A network with weights and statistics that differ from unit to unit, as training makes them."""
    torch.manual_seed(seed)
    net = {**NETWORKS, **OTHERS}[name]().eval()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    for parameter in net.parameters():
        # Fresh layers hold zeros and ones, alike for all units, where trained ones do not.
        if bool((parameter == parameter.flatten()[0]).all()):
            nn.init.normal_(parameter, float(parameter.detach().flatten()[0]), 0.1)
    return net


class _Block(nn.Module):
    """Two convolutions and a shortcut, whose sum no module makes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(inputs, outputs, 3, stride, 1)
        self.norm = nn.BatchNorm1d(outputs)
        self.conv2 = nn.Conv1d(outputs, outputs, 3, 1, 1)
        self.down = nn.Conv1d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv2(self.norm(self.conv1(x)).relu()) + self.down(x)).relu()


class Sound(nn.Module):
    """A small residual network; it takes any length."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.stem = nn.Conv1d(1, 4, 5, 2, 2)
            self.layers = nn.Sequential(_Block(4, 6, 2), _Block(6, 6, 1), _Block(6, 6, 1))
            self.act = nn.ReLU()
            self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.layers(self.stem(x))).mean(-1))


class Tokens(nn.Module):
    """Reads sequences of 20 different tokens, with attention; with `fixed`, of one length only."""

    def __init__(self, seed: int = 0, fixed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = nn.Embedding(20, 8)
            self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.place = nn.Parameter(torch.randn(fixed, 8)) if fixed else None
            self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids) if self.place is None else self.embed(input_ids) + self.place
        seen = (torch.ones_like(input_ids) if attention_mask is None else attention_mask)[..., None].to(x.dtype)
        return self.head((self.block(x) * seen).sum(dim=1) / seen.sum(dim=1))


class _Turned(nn.Module):
    """(B, C, L) to (B, L, C) and back."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Hybrid(nn.Module):
    """Convolutions, then attention, then a convolution, as speech models have them; here as long as it is wide."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 3, 2, 1)
        self.turn = _Turned()
        self.drop = nn.Dropout(0.1)
        self.mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.back = _Turned()
        self.last = nn.Conv1d(8, 8, 3, 1, 1)
        self.act = nn.SiLU()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(self.drop(self.turn(self.conv(x))))
        return self.head(self.act(self.last(self.back(x))).mean(-1))


def sounds(n: int = 12, length: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Waves of three frequencies."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    time = torch.arange(length) * (labels[:, None] + 1.0) / 3
    return (time.sin() + 0.1 * torch.randn(n, length, generator=generator))[:, None], labels
