# %% [markdown]
# # Distill, export, serve
#
# From three trained networks to an HTTP service that costs as much as one: distill them, export one file, and serve it. It needs `pip install '.[serve]'`.
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
# A [student](../concepts/distillation.md) learns the mean probability of its teachers on mixed images. It is a mode
# like any other, and costs what one network costs.

# %%
student = mb.distill(
    net, modes, train, config=mb.TrainConfig(epochs=30, weight_decay=1e-3, warmup=3)
)

# %% [markdown]
# ## What it is worth

# %%
ensembles = {
    "one network": mb.Ensemble(net, modes[:1]),
    "distilled": mb.Ensemble(net, [student]),
    "three networks": mb.Ensemble(net, modes),
}
for ensemble in ensembles.values():
    ensemble.calibrate(valid)
found = mb.compare(ensembles, test)
print(found)

# %% [markdown]
# ## Export
#
# Class names and scores go into the file, where a reader of it finds them.

# %%
scores = found.scores["distilled"]
done = mb.export(
    ensembles["distilled"],
    "digits.onnx",
    example=digits.images[:1],
    valid=valid,
    classes=[f"digit {k}" for k in range(10)],
    info={"scores": {"accuracy": scores.accuracy, "nll": scores.nll}},
)
size = done.path.stat().st_size / 1e6
print(f"{size:.2f} MB, differs from the library by at most {done.parity:.1e}")

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
    expected = ensembles["distilled"](image[None])[0]
print(f"{(torch.tensor(answer['probabilities']) - expected).abs().max():.1e}")

# %%
server.terminate()
print(f"stopped with exit code {server.wait()}")

# %% [markdown]
# ## Next
#
# - [Deployment](../deploy.md): cascades in one file, limits of the server, measured times.
# - [Cascades](../concepts/cascades.md): a second network for the images that the first is unsure of.
