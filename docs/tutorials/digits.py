# %% [markdown]
# # Digits in five minutes
#
# Train two small networks, connect them by a curve, learn a bridge, and see what each step is worth. The data, 1,797
# hand-written digits, comes with the package: nothing is downloaded.
#
# You need Python 3.11 or newer, make, and a clone of the repository. In its folder:
#
# ```sh
# make setup                                  # creates .venv and installs modebridge there
# .venv/bin/python docs/tutorials/digits.py   # runs this page; close each picture to go on
# ```
#
# To run it cell by cell, open `notebooks/digits.ipynb` in Jupyter or VS Code. `make demo` does more with one command:
# four networks, three curves, six bridges and a report ([runs](../runs.md)).
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
# ## Two modes
#
# A [mode](../concepts/modes.md) is one trained network. Any `nn.Module` that maps a batch of images to logits will do;
# here it is a ResNet with four blocks and batch norm. The two modes differ only in their random start.

# %%
net = resnet("digits", norm="bn")
config = mb.TrainConfig(epochs=20, weight_decay=1e-3, warmup=3)
nets = [resnet("digits", norm="bn", seed=seed) for seed in (0, 1)]
modes = mb.fit_modes(nets, train, config)
print(*modes, sep="\n")

# %% [markdown]
# ## A curve between them
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
for name, path in {
    "straight line": mb.Curve.line(*modes),
    "trained curve": curve,
}.items():
    points = curve_profile(net, path, test, positions=11, train=train)
    axes.plot(
        [point.r for point in points],
        [point.nll for point in points],
        marker=".",
        label=name,
    )
axes.set(xlabel="r, from one mode to the other", ylabel="test NLL")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## A bridge
#
# Running the network in the middle of the curve would cost a second forward pass. A [bridge](../concepts/bridge.md) is
# a small network that predicts its output from a feature map that the first mode computes anyway. `budget=0.05` asks
# for at most 5 % of the FLOPs of one network.

# %%
learn = mb.TrainConfig(epochs=25, warmup=3)
bridge = mb.fit_bridge(net, curve, train, budget=0.05, config=learn)
print(f"It reads {bridge.tap} and has {bridge.share:.1%} of the FLOPs of one network.")

# %% [markdown]
# A bridge can also imitate the other mode directly, without a curve. It is worth trying: in
# [our results](../results.md) it did as well or better. Such a bridge is also built and trained differently, with one
# wide block and CutMix, which [did best](../frontier.md); the bridge of a curve is the paper's.

# %%
direct = mb.fit_bridge(net, modes, train, budget=0.05, config=learn)
print(f"It reads {direct.tap} and has {direct.share:.1%} of the FLOPs of one network.")

# %% [markdown]
# ## What it is worth
#
# An [ensemble](../concepts/ensemble.md) averages the probabilities of its members. `calibrate` fits one
# [temperature](../concepts/calibration.md) on the validation images; the scores are those of the test images.

# %%
rows = {
    "one network": ([modes[0]], []),
    "one network + bridge of the curve": ([modes[0]], [bridge]),
    "one network + bridge to the other": ([modes[0]], [direct]),
    "two networks": (modes, []),
}
scores = {}
print(f"{'members':36}{'FLOPs':>8}{'ACC':>8}{'NLL':>8}{'ECE':>8}")
for name, (members, bridges) in rows.items():
    scores[name] = mb.evaluate(
        mb.Ensemble(net, members, bridges).calibrate(valid), test
    )
    s = scores[name]
    print(
        f"{name:36}{f'x{s.cost.relative_flops:.2f}':>8}{s.accuracy:8.1%}{s.nll:8.3f}{s.ece:8.3f}"
    )

# %% [markdown]
# How far does each row go from the NLL of one network (0 %) to that of two (100 %)?

# %% alt="FLOPs against calibrated test NLL, one point for each row of the table"
one, two = scores["one network"], scores["two networks"]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for name, s in scores.items():
    axes.scatter(s.cost.relative_flops, s.nll, label=name)
    print(f"{name:36}{(one.nll - s.nll) / (one.nll - two.nll):6.0%}")
axes.set(xlabel="FLOPs, relative to one network", ylabel="calibrated test NLL")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# This is one seed and a test set of 900 images, so expect other numbers with other seeds: [frontier](../frontier.md)
# has eight of them, and [the results](../results.md) have CIFAR-10 and Tiny ImageNet.
#
# ## Next
#
# - [Your two timm checkpoints](checkpoints.md): the same with networks and checkpoints of your own.
# - [Distill, bridge, export, serve](serve.md): from networks to an HTTP service.
# - [Which should I use?](../which.md): bridges are not always the best choice.
