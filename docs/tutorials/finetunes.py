# %% [markdown]
# # Fine-tunes from transformers
#
# You have two folders that `Trainer` wrote: fine-tunes of one model. This tutorial turns them into one model that costs
# little more than the first, as a pipeline of transformers and as one ONNX file. It needs
# `pip install '.[transformers,onnx]' accelerate`.
#
# ## Two folders
#
# So that the page runs without a download, we make them here: a tiny ViT on hand-written digits, from scratch. With
# your own folders, skip this cell.

# %%
import torch
import torch.nn.functional as F
import transformers

import modebridge as mb
from modebridge.data import noisy_digits

digits = noisy_digits(0.7)
images = F.interpolate(digits.images, size=16, mode="bilinear").repeat(1, 3, 1, 1)
rows = [
    {"pixel_values": image, "labels": label}
    for image, label in zip(images, digits.labels, strict=True)
]
shape = transformers.ViTConfig(
    image_size=16,
    patch_size=4,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    num_labels=10,
)

transformers.utils.logging.disable_progress_bar()
for seed, folder in enumerate(("run1", "run2")):
    transformers.set_seed(seed)
    options = transformers.TrainingArguments(
        output_dir=folder,
        num_train_epochs=40,
        per_device_train_batch_size=50,
        learning_rate=2e-3,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=seed,
    )
    model = transformers.ViTForImageClassification(shape)
    trainer = transformers.Trainer(model=model, args=options, train_dataset=rows[:800])
    trainer.train()
    trainer.save_model(folder)

# %% [markdown]
# ## From folders to modes
#
# `net` is the architecture; its own weights do not matter. Folders are read with the class of `net`, safetensors only,
# and no code in them is run. Data goes in as it goes into `Trainer`: dicts with `labels`.

# %%
net = transformers.ViTForImageClassification.from_pretrained("run1")
modes = mb.load_checkpoints(net, ["run1", "run2"])


def batches(part):
    return torch.utils.data.DataLoader(part, batch_size=50)


train, valid, test = batches(rows[:800]), batches(rows[800:1200]), batches(rows[1200:])

# %% [markdown]
# ## Fit, average, calibrate
#
# The bridge reads the tokens of one layer of the first network and imitates the second one.

# %%
config = mb.TrainConfig(epochs=40, lr=0.05)
bridge = mb.fit_bridge(net, modes, train, budget=0.05, config=config)
fast = mb.Ensemble(net, modes[:1], [bridge]).calibrate(valid)
for name, ensemble in {
    "one network": mb.Ensemble(net, modes[:1]).calibrate(valid),
    "one network + bridge": fast,
    "two networks": mb.Ensemble(net, modes).calibrate(valid),
}.items():
    scores = mb.evaluate(ensemble, test)
    cost = f"x{scores.cost.relative_flops:.2f}"
    print(f"{name:22} {cost}  accuracy {scores.accuracy:.3f}  NLL {scores.nll:.3f}")

# %% [markdown]
# ## Back to transformers
#
# `as_transformers` returns a `PreTrainedModel` whose logits are those of the ensemble. Pipelines and `Trainer.evaluate`
# take it like any other.

# %%
from PIL import Image

processor = transformers.ViTImageProcessor(
    size={"height": 16, "width": 16}, do_normalize=False
)
pipe = transformers.pipeline(
    "image-classification",
    model=fast.as_transformers(),
    image_processor=processor,
    device="cpu",
)
pixels = images[1200].clamp(0, 1).mul(255).byte().permute(1, 2, 0).numpy()
print(pipe(Image.fromarray(pixels))[0], "is a", int(digits.labels[1200]))

# %% [markdown]
# ## One file
#
# The graph holds the first network, the bridge and the temperature, and is compared with the library before it is
# written.

# %%
example = {"pixel_values": images[:2]}
deployed = mb.export(fast, "fast.onnx", example=example)
print(f"largest difference to the library: {deployed.parity:.0e}")
fast.save("fast")  # a folder that mb.load reads: class, config and weights
print(torch.equal(mb.load("fast")(example), fast(example)))
