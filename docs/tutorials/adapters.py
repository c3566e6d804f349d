# %% [markdown]
# # LoRA adapters as one model
#
# Adapters of one base are cheap to train, and an ensemble of them costs as much as any other: each needs its own forward
# pass. Here two LoRA adapters become one: the base with the first adapter, and a small bridge that imitates the second.
# It needs `pip install '.[adapters,onnx]'`.
#
# ## A base and two adapters
#
# So that the page runs without a download, we make them here: a small BERT that first learns to sort short sequences of
# numbers by their most frequent one, and adapters for another task on the same sequences, whether the sum is large. With
# your own folders, skip this cell.

# %%
import peft
import torch
import transformers

import modebridge as mb

generator = torch.Generator().manual_seed(0)
ids = torch.randint(3, 13, (1800, 12), generator=generator)
first_task = torch.stack([(ids == k).sum(1) for k in range(3, 13)], 1).argmax(1)
second_task = torch.bucketize(ids.sum(1), torch.tensor([80, 90, 100]))


def batches(part, labels):
    mask = torch.ones_like(ids[part])
    rows = torch.utils.data.TensorDataset(ids[part], mask, labels[part])
    names = ("input_ids", "attention_mask", "labels")
    return [
        dict(zip(names, batch, strict=True))
        for batch in torch.utils.data.DataLoader(rows, batch_size=50)
    ]


def bert(folder=None, labels=4):
    cls = transformers.BertForSequenceClassification
    if folder is not None:
        return cls.from_pretrained(
            folder, num_labels=labels, ignore_mismatched_sizes=True
        )
    shape = transformers.BertConfig(
        vocab_size=13,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=12,
        num_labels=labels,
    )
    return cls(shape)


transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
torch.manual_seed(0)
base = bert(labels=10)
(trained,) = mb.fit_modes(
    [base], batches(slice(0, 1000), first_task), mb.TrainConfig(epochs=10)
)
trained.load(base).save_pretrained("base")

train = batches(slice(0, 1000), second_task)
valid = batches(slice(1000, 1400), second_task)
test = batches(slice(1400, 1800), second_task)
lora = peft.LoraConfig(
    task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=["query", "value"]
)
for seed, folder in enumerate(("adapter1", "adapter2")):
    torch.manual_seed(seed)
    net = peft.get_peft_model(bert("base"), lora)
    (mode,) = mb.fit_modes([net], train, mb.TrainConfig(epochs=15, lr=5e-3))
    mode.load(net).save_pretrained(folder)

# %% [markdown]
# ## Adapters are modes
#
# Give the network with any of the adapters, and the folders. They must be of one kind: the same rank, scale and places.

# %%
torch.manual_seed(0)
net = peft.PeftModel.from_pretrained(bert("base"), "adapter1")
modes = mb.load_checkpoints(net, ["adapter1", "adapter2"])
bridge = mb.fit_bridge(
    net, modes, train, budget=0.1, config=mb.TrainConfig(epochs=40, lr=0.05)
)
fast = mb.Ensemble(net, modes[:1], [bridge]).calibrate(valid)
for name, ensemble in {
    "one adapter": mb.Ensemble(net, modes[:1]).calibrate(valid),
    "one adapter + bridge": fast,
    "two adapters": mb.Ensemble(net, modes).calibrate(valid),
}.items():
    scores = mb.evaluate(ensemble, test)
    cost = f"x{scores.cost.relative_flops:.2f}"
    print(f"{name:22} {cost}  accuracy {scores.accuracy:.3f}  NLL {scores.nll:.3f}")

# %% [markdown]
# ## Save and export
#
# A saved ensemble holds the adapter, the bridge, and the name and a hash of the base. The ONNX file holds everything, and
# takes sequences of any length.

# %%
from pathlib import Path

fast.save("fast")
sizes = {
    name: Path(name, "model.safetensors").stat().st_size for name in ("base", "fast")
}
print(sizes)
example = {name: tensor for name, tensor in test[0].items() if name != "labels"}
print(torch.equal(mb.load("fast")(example), fast(example)))
deployed = mb.export(fast, "fast.onnx", example=example)
shorter = {name: tensor[:2, :5].numpy() for name, tensor in example.items()}
print(deployed(shorter).probabilities.round(3))
