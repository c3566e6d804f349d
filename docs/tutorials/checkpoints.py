# %% [markdown]
# # Your two timm checkpoints
#
# You have two checkpoints of one architecture, for example from two fine-tuning runs. This tutorial turns them into
# one model that costs little more than the first, and into one ONNX file. It needs timm and ONNX Runtime: `pip install '.[vision,onnx]'`.
#
# ## Two checkpoints
#
# So that the page runs without a download, we make the checkpoints here: a narrow `resnet10t` on hand-written digits,
# saved the way a training script saves them. With your own files, skip this cell.

# %%
import timm
import torch
import torch.nn.functional as F

import modebridge as mb
from modebridge.data import ImageSet, Loader, noisy_digits

digits = noisy_digits(0.7)
images = F.interpolate(digits.images, size=32, mode="bilinear")
data = ImageSet(images, digits.labels, classes=10)
train = Loader(data.part(0, 600), 60, shuffle=True)
valid = Loader(data.part(600, 1000), 200)
test = Loader(data.part(1000, 1797), 200)


def make_net():
    return timm.create_model(
        "resnet10t",
        in_chans=1,
        num_classes=10,
        channels=(16, 32, 64, 128),
        stem_width=16,
    )


for seed, file in enumerate(("first.pth", "second.pth")):
    torch.manual_seed(seed)
    config = mb.TrainConfig(epochs=10, lr=0.05, weight_decay=5e-4)
    (trained,) = mb.fit_modes([make_net()], train, config)
    torch.save({"epoch": 10, "state_dict": trained.state}, file)

# %% [markdown]
# ## Load them
#
# `load_checkpoint` reads `.pth`, `.pt` and safetensors files, finds the weights inside, and removes prefixes left by DDP,
# `torch.compile` or Lightning. Nothing is unpickled. [Your own models](../models.md) lists what it understands.

# %%
net = make_net()
modes = [mb.load_checkpoint(net, file) for file in ("first.pth", "second.pth")]
print(*modes, sep="\n")

# %% [markdown]
# ## Where can it read?
#
# `inspect` lists every submodule whose output a small network could read, and what that would cost. The arrow marks the
# one it would choose.

# %%
print(mb.inspect(net, images[:2], budget=0.05))

# %% [markdown]
# ## Fit a head
#
# A small network reads the first mode and learns to predict what the second would. Your module is not changed: only the
# output of one of its layers is read. It is small but not trained in a moment: with 20 epochs it would be clearly worse.

# %%
bridge = mb.fit_bridge(
    net, modes, train, budget=0.05, config=mb.TrainConfig(epochs=60, lr=0.05)
)
print(f"It reads '{bridge.tap}' and costs {bridge.share:.1%} of one network.")

# %%
ensembles = {
    "one network": mb.Ensemble(net, modes[:1]),
    "one network + head": mb.Ensemble(net, modes[:1], [bridge]),
    "two networks": mb.Ensemble(net, modes),
}
for ensemble in ensembles.values():
    ensemble.calibrate(valid)
print(mb.compare(ensembles, test))

# %% [markdown]
# ## The paper's way: align, curve, bridge
#
# The units of two networks trained apart come in a different order. [Alignment](../concepts/alignment.md) renumbers
# those of the second to match the first and proves that the function stays the same. Then a curve connects the two,
# and a bridge learns its midpoint.

# %%
aligned = mb.align(net, modes[0], modes[1], valid)
print(aligned)

# %% alt="Test NLL along three paths: the straight line, the straight line after alignment, and the trained curve"
import matplotlib.pyplot as plt

from modebridge.scoring import curve_profile

curve = mb.fit_curve(
    net,
    modes[0],
    aligned.mode,
    train,
    config=mb.TrainConfig(epochs=15, lr=0.05, weight_decay=5e-4),
)
paths = {
    "straight line": mb.Curve.line(*modes),
    "straight line, aligned": mb.Curve.line(modes[0], aligned.mode),
    "trained curve": curve,
}
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for name, path in paths.items():
    points = curve_profile(net, path, test, positions=7, train=train)
    axes.plot(
        [point.r for point in points],
        [point.nll for point in points],
        marker=".",
        label=name,
    )
axes.set(xlabel="r, from one checkpoint to the other", ylabel="test NLL")
axes.legend(frameon=False)
plt.show()

# %%
of_curve = mb.fit_bridge(
    net, curve, train, budget=0.05, config=mb.TrainConfig(epochs=60, lr=0.05)
)
scores = mb.evaluate(mb.Ensemble(net, modes[:1], [of_curve]).calibrate(valid), test)
print(f"one network + bridge of the curve: {scores.accuracy:.1%}, NLL {scores.nll:.3f}")

# %% [markdown]
# ## One file
#
# `export` writes base, bridge and temperature as one graph. Before the file appears it is run in ONNX Runtime and
# compared with the library.

# %%
fast = ensembles["one network + head"]
done = mb.export(fast, "fast.onnx", example=images[:1], valid=valid)
print(
    f"{done.path.stat().st_size / 1e6:.2f} MB, largest difference of a probability: {done.parity:.1e}"
)

# %%
answer = mb.DeployedEnsemble.load("fast.onnx")(images[-3:])
print(
    "predicted",
    answer.probabilities.argmax(axis=1),
    "labels",
    digits.labels[-3:].numpy(),
)

# %% [markdown]
# ## With your own checkpoints
#
# Replace `make_net` by your model, the files by yours, and the loaders by anything that yields `(images, labels)` and
# can be iterated again, such as a `DataLoader`. [Your own models](../models.md) has the details, and
# [deployment](../deploy.md) the options of `export`.
