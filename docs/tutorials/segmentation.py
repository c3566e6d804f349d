# %% [markdown]
# # Segmentation: folds as one network
#
# Networks that label every pixel are often trained several times, once per fold, and averaged. Here three small U-Nets
# become one model that is calibrated, says where it is unsure, and costs as much as one of them. Pictures of shapes are
# drawn on the spot: nothing is downloaded.
#
# ```sh
# make setup
# .venv/bin/python docs/tutorials/segmentation.py   # close each picture to go on
# ```
#
# ## The data
#
# Discs under noise: plain ones, with rows, and with columns. Every pixel has a label, 0 for the background.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import interpolate, max_pool2d

import modebridge as mb

SIDE, CLASSES = 32, 4


def draw(count, seed):
    """Images (B, 1, H, W) and labels (B, H, W)."""
    random = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(*[torch.arange(SIDE)] * 2, indexing="ij")
    fills = torch.ones(SIDE, SIDE), (rows % 4 < 2).float(), (columns % 4 < 2).float()
    images = torch.full((count, 1, SIDE, SIDE), 0.5)
    labels = torch.zeros(count, SIDE, SIDE, dtype=torch.long)
    for image, label in zip(images, labels, strict=True):
        for kind, fill in enumerate(fills, 1):
            top, left = torch.randint(SIDE, (2,), generator=random)
            radius = torch.randint(5, 10, (), generator=random)
            disc = (rows - top) ** 2 + (columns - left) ** 2 < radius**2
            label[disc] = kind
            image[0, disc] = fill[disc]
    return images + 0.5 * torch.randn(images.shape, generator=random), labels


def batches(count, seed, size=10):
    images, labels = draw(count, seed)
    return list(zip(images.split(size), labels.split(size), strict=True))


train, valid, test = batches(40, 0), batches(60, 1), batches(160, 2)

# %% [markdown]
# ## Three U-Nets
#
# Any module from images `(B, C, H, W)` to logits `(B, K, H, W)` will do, also those of torchvision,
# segmentation_models_pytorch and transformers, and 3-D ones.


# %%
class UNet(nn.Module):
    def __init__(self, seed, width=8):
        torch.manual_seed(seed)
        super().__init__()
        self.fine, self.middle = block(1, width), block(width, 2 * width)
        self.coarse = block(2 * width, 4 * width)
        self.up, self.join = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        fine = self.fine(x)
        middle = self.middle(max_pool2d(fine, 2))
        coarse = interpolate(self.coarse(max_pool2d(middle, 2)), scale_factor=2.0)
        larger = interpolate(self.up(torch.cat([middle, coarse], 1)), scale_factor=2.0)
        return self.head(self.join(torch.cat([fine, larger], 1)))


def block(inputs, outputs):
    layers = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


net = UNet(0)
config = mb.TrainConfig(epochs=50, weight_decay=1e-3)
modes = mb.fit_modes([UNet(seed) for seed in (0, 1, 2)], train, config)

# %% [markdown]
# If you have checkpoints: `modes = mb.load_checkpoints(net, ["fold0.pth", "fold1.pth", "fold2.pth"])`.
#
# ## One network of three
#
# [Distillation](../concepts/distillation.md) trains one more network on the mean of all; on segmentation it gave the
# most ([measured](../segmentation.md#is-it-worth-it)). [Heads](../concepts/heads.md) keep the first network as it is.

# %%
longer = mb.TrainConfig(epochs=100, weight_decay=1e-3, cutmix=1.0)
student = mb.distill(net, modes, train, longer)
learn = mb.TrainConfig(epochs=100)
heads = mb.fit_bridge(net, modes, train, budget=0.05, config=learn)
print(f"{heads.heads} heads read {heads.tap}, for {heads.share:.1%} of one network.")

# %% [markdown]
# ## What it is worth
#
# The temperature is fitted on pixels of the validation images; the intervals of the differences are over images.

# %%
models = {
    "one network": mb.Ensemble(net, modes[:1]),
    "distilled": mb.Ensemble(net, [student]),
    "one + heads": mb.Ensemble(net, modes[:1], [heads]),
    "three networks": mb.Ensemble(net, modes),
}
for model in models.values():
    model.calibrate(valid)
print(mb.compare(models, test))
for name, model in models.items():
    print(f"{name:15} mean IoU {mb.evaluate(model, test).mean_iou:.1%}")

# %% [markdown]
# ## Where it is unsure
#
# The entropy of the probabilities, bright where a model doubts. It should be bright where the prediction is wrong.

# %% alt="A noisy image, its labels, the prediction, its errors, and the entropy of one network, three networks and the distilled one"
image, truth = test[0][0][:3], test[0][1][:3]


def entropy(model):
    p = model(image)
    return -(p * p.clamp_min(1e-12).log()).sum(dim=1)


labels = models["distilled"](image).argmax(dim=1)
columns = {
    "image": image[:, 0],
    "labels": truth,
    "prediction": labels,
    "errors": labels != truth,
    "doubt: one": entropy(models["one network"]),
    "three": entropy(models["three networks"]),
    "distilled": entropy(models["distilled"]),
}
figure, axes = plt.subplots(3, 7, figsize=(7, 3.2), layout="constrained")
for place, (title, pictures) in enumerate(columns.items()):
    style = {"cmap": "gray"} if place in (0, 3) else {"vmin": 0, "vmax": 3}
    style = style if place < 4 else {"vmin": 0, "vmax": 1.2, "cmap": "magma"}
    for axis, picture in zip(axes[:, place], pictures, strict=True):
        axis.imshow(picture, interpolation="nearest", **style)
        axis.set(xticks=[], yticks=[])
    axes[0, place].set_title(title, fontsize=9)
plt.show()

# %% [markdown]
# ## Ship it

# %%
file = mb.export(models["distilled"], "shapes.onnx", example=image)
found = file(image.numpy())
print(found.probabilities.shape)

# %% [markdown]
# ## Next
#
# - [Segmentation](../segmentation.md): what is different for pixels, and what was measured on street scenes.
# - nnU-Net: `examples/nnunet_folds.py` goes from the folds of a trained model to one file.
