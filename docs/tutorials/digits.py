# %% [markdown]
# # Digits in five minutes
#
# Train three small networks, make one model of them that costs little more than one, and see what it is worth. The
# data, 1,797 hand-written digits, comes with the package: nothing is downloaded.
#
# You need Python 3.11 or newer, make, and a clone of the repository. In its folder:
#
# ```sh
# make setup                                  # creates .venv and installs modebridge there
# .venv/bin/python docs/tutorials/digits.py   # runs this page; close each picture to go on
# ```
#
# To run it cell by cell, open `notebooks/digits.ipynb` in Jupyter or VS Code. `make demo` does more with one command:
# four networks, all alternatives and a page ([runs](../runs.md)).
#
# ## The data
#
# Clean digits are too easy for a comparison, so each image gets fixed noise. 500 images are for training, 397 for
# validation, and 900 for testing.

# %%
import matplotlib.pyplot as plt

import modebridge as mb
from modebridge.data import Loader, noisy_digits
from modebridge.nets import resnet

digits = noisy_digits(0.7)
train = Loader(digits.part(0, 500), 50, shuffle=True)
valid = Loader(digits.part(500, 897), 397)
test = Loader(digits.part(897, 1797), 300)

# %% alt="Eight noisy gray images of hand-written digits, each with its label above it"
figure, axes = plt.subplots(1, 8, figsize=(7, 1.2))
for axis, image, label in zip(axes, digits.images, digits.labels, strict=False):
    axis.imshow(image[0], cmap="gray_r")
    axis.set(title=int(label), xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## Three networks
#
# A [mode](../concepts/modes.md) is one trained network. Any `nn.Module` that maps a batch of images to logits will do;
# here it is a ResNet with four blocks and batch norm. The modes differ only in their random start. The best one on
# validation images goes first: it is the one that will run.

# %%
net = resnet("digits", norm="bn")
config = mb.TrainConfig(epochs=20, weight_decay=1e-3, warmup=3)
nets = [resnet("digits", norm="bn", seed=seed) for seed in (0, 1, 2)]
modes = mb.fit_modes(nets, train, config)
modes.sort(key=lambda mode: mb.evaluate(mode, valid, net=net).nll)
print(*modes, sep="\n")

# %% [markdown]
# ## Heads
#
# Their average is better than each of them, and costs three forward passes. [Heads](../concepts/heads.md) come close to
# it in one: a small network reads a feature map that the first mode computes anyway, and has one head for each other
# mode, which learns to predict what that one would say. `budget=0.05` asks for at most 5 % of the FLOPs of one network.

# %%
learn = mb.TrainConfig(epochs=35, warmup=3)
heads = mb.fit_bridge(net, modes, train, budget=0.05, config=learn)
print(f"{heads.heads} heads read {heads.tap}, for {heads.share:.1%} of one network.")

# %% [markdown]
# ## One network instead
#
# [Distillation](../concepts/distillation.md) trains one more network to predict the mean of all. It takes longer to train
# than heads, and costs nothing extra afterwards.

# %%
longer = mb.TrainConfig(epochs=60, weight_decay=1e-3, warmup=3)
student = mb.distill(net, modes, train, longer)

# %% [markdown]
# ## What it is worth
#
# An [ensemble](../concepts/ensemble.md) averages the probabilities of its members. `calibrate` fits one
# [temperature](../concepts/calibration.md) on the validation images; the scores are those of the test images, and the
# differences to the first row come with 95 % intervals over them.

# %%
models = {
    "one network": mb.Ensemble(net, modes[:1]),
    "distilled": mb.Ensemble(net, [student]),
    "one + heads": mb.Ensemble(net, modes[:1], [heads]),
    "three networks": mb.Ensemble(net, modes),
}
for model in models.values():
    model.calibrate(valid)
found = mb.compare(models, test)
print(found)

# %% alt="FLOPs against calibrated test NLL, one point for each row of the table"
colors = ["#8a8f98", "#3b82c4", "#e07b39", "#4b5058"]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for (name, scores), color in zip(found.scores.items(), colors, strict=True):
    axes.scatter(scores.cost.relative_flops, scores.nll, color=color, label=name)
axes.set(xlabel="FLOPs, relative to one network", ylabel="calibrated test NLL")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# This is one seed and a test set of 900 images, so expect other numbers with other seeds: [what was tried](../frontier.md)
# has eight of them, and [the results](../results.md) have CIFAR-10, Tiny ImageNet and texts.
#
# ## The paper's way
#
# On the straight line between two modes the loss rises. A [curve](../concepts/curve.md) goes around that barrier: its
# two ends stay as they are, and one control point, the pin, is trained so that all networks along the curve do well.

# %%
curve = mb.fit_curve(
    net,
    modes[0],
    modes[1],
    train,
    config=mb.TrainConfig(epochs=40, weight_decay=1e-3, warmup=3),
)
print(curve)

# %% alt="Test NLL between the two modes: the straight line has a barrier in its middle, the trained curve stays low"
from modebridge.scoring import curve_profile

figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for name, path, color in (
    ("straight line", mb.Curve.line(*modes[:2]), "#8a8f98"),
    ("trained curve", curve, "#a05bc4"),
):
    points = curve_profile(net, path, test, positions=11, train=train)
    axes.plot(
        [point.r for point in points],
        [point.nll for point in points],
        marker=".",
        color=color,
        label=name,
    )
axes.set(xlabel="r, from one mode to the other", ylabel="test NLL")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# A [bridge](../concepts/bridge.md) is a small network that imitates the network in the middle of the curve.

# %%
bridge = mb.fit_bridge(net, curve, train, budget=0.05, config=learn)
paper = mb.Ensemble(net, modes[:1], [bridge]).calibrate(valid)
print(mb.compare({"one network": models["one network"], "one + bridge": paper}, test))

# %% [markdown]
# ## Next
#
# - [Your two timm checkpoints](checkpoints.md): the same with networks and checkpoints of your own.
# - [Distill, export, serve](serve.md): from networks to an HTTP service.
# - [Which should I use?](../which.md): heads are not always the best choice.
