# %% [markdown]
# # Distill, bridge, export, serve
#
# From three trained networks to an HTTP service that costs little more than one: distill a student, put a bridge beside
# it, export one file, and serve it. It needs `pip install 'modebridge[serve]'`.
#
# ## Three networks

# %%
import torch

import modebridge as mb
from modebridge.data import Loader, noisy_digits
from modebridge.nets import resnet

digits = noisy_digits(0.7)
train = Loader(digits.part(0, 500), 50, shuffle=True)
valid = Loader(digits.part(500, 897), 397)
test = Loader(digits.part(897, 1797), 300)

net = resnet("digits", norm="bn")
config = mb.TrainConfig(epochs=15, weight_decay=1e-3, warmup=3)
nets = [resnet("digits", norm="bn", seed=seed) for seed in (0, 1, 2)]
modes = mb.fit_modes(nets, train, config)

# %% [markdown]
# ## Distill them into one
#
# A [student](../concepts/distillation.md) learns the mean probability of its teachers on mixed-up images. It is a mode
# like any other, and costs what one network costs.

# %%
student = mb.distill(
    net, modes, train, config=mb.TrainConfig(epochs=30, weight_decay=1e-3, warmup=3)
)

# %% [markdown]
# ## A bridge beside the student
#
# The [bridge](../concepts/bridge.md) reads a feature map of the student and has one head per teacher. All heads share
# one trunk, so three cost about as much as one.

# %%
bridge = mb.fit_bridge(
    net,
    [student, *modes],
    train,
    budget=0.05,
    config=mb.TrainConfig(epochs=20, warmup=3),
)
print(f"{bridge.heads} heads, {bridge.share:.1%} of the FLOPs of one network")

# %%
ensembles = {
    "one network": mb.Ensemble(net, modes[:1]),
    "student": mb.Ensemble(net, [student]),
    "student + bridge": mb.Ensemble(net, [student], [bridge]),
    "three networks": mb.Ensemble(net, modes),
}
print(f"{'members':20}{'FLOPs':>8}{'ACC':>8}{'NLL':>8}")
scores = {}
for name, ensemble in ensembles.items():
    scores[name] = mb.evaluate(ensemble.calibrate(valid), test)
    s = scores[name]
    print(f"{name:20}{f'x{s.cost.relative_flops:.2f}':>8}{s.accuracy:8.1%}{s.nll:8.3f}")

# %% [markdown]
# A bridge beside a student does not always pay: on digits the student alone is often better
# ([frontier](../frontier.md#what-did-not-work)). So the validation images decide, not the test images above.

# %%
candidates = ("student", "student + bridge")
valid_nll = {name: mb.evaluate(ensembles[name], valid).nll for name in candidates}
chosen = min(candidates, key=valid_nll.get)
print(
    ", ".join(f"{name}: {value:.3f}" for name, value in valid_nll.items()), "->", chosen
)

# %% [markdown]
# ## Export
#
# Class names and scores go into the file, where a reader of it finds them.

# %%
done = mb.export(
    ensembles[chosen],
    "digits.onnx",
    example=digits.images[:1],
    valid=valid,
    classes=[f"digit {k}" for k in range(10)],
    info={"scores": {"accuracy": scores[chosen].accuracy, "nll": scores[chosen].nll}},
)
print(
    f"{chosen}: {done.path.stat().st_size / 1e6:.2f} MB, differs from the library by at most {done.parity:.1e}"
)

# %% [markdown]
# ## Serve
#
# `modebridge serve` answers over HTTP and runs images that arrive together as one batch. Here it is started in the
# background; in a terminal it is `modebridge serve digits.onnx`.

# %%
import json
import socket
import subprocess
import sys
import time
import urllib.request

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
address = f"http://127.0.0.1:{port}"
command = [
    sys.executable,
    "-m",
    "modebridge",
    "serve",
    "digits.onnx",
    "--port",
    str(port),
]
server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ready() -> bool:
    try:
        return urllib.request.urlopen(f"{address}/health").status == 200
    except OSError:
        return False


while not ready() and server.poll() is None:
    time.sleep(0.2)
print("ready" if server.poll() is None else "it has stopped")

# %% [markdown]
# One image as JSON, with values in [0, 1]; `curl --data-binary @digit.png` sends an image file.

# %%
image, label = digits.images[-1].clamp(0, 1), int(digits.labels[-1])
request = urllib.request.Request(
    f"{address}/predict",
    data=json.dumps({"image": image.tolist()}).encode(),
    headers={"Content-Type": "application/json"},
)
answer = json.load(urllib.request.urlopen(request))
print(
    f"{answer['class']} with probability {answer['probability']:.2f}; the label is {label}"
)

# %% [markdown]
# The answer over HTTP is that of the library:

# %%
with torch.no_grad():
    expected = ensembles[chosen](image[None])[0]
print(f"{(torch.tensor(answer['probabilities']) - expected).abs().max():.1e}")

# %%
server.terminate()
print(f"stopped with exit code {server.wait()}")

# %% [markdown]
# ## Next
#
# - [Deployment](../deploy.md): cascades in one file, limits of the server, measured times.
# - [Cascades](../concepts/cascades.md): a second network for the images that the first is unsure of.
