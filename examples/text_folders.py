"""From fine-tunes of transformers, or LoRA adapters, to one ONNX file: folders of `save_pretrained`, and texts.

python examples/text_folders.py                                            # makes two small fine-tunes first
python examples/text_folders.py run1 run2 --train a.csv --valid b.csv      # yours; columns: text, label (a number)
python examples/text_folders.py adapter1 adapter2 --train a.csv --valid b.csv
"""

import argparse
import csv
import tempfile
from pathlib import Path

import torch
import transformers

import modebridge as mb

Rows = list[tuple[str, int]]


def batches(
    tokenizer: transformers.PreTrainedTokenizerBase, rows: Rows, size: int = 32
) -> list[dict[str, torch.Tensor]]:
    """Dicts as a model of transformers takes them, with labels. Any loader of such dicts will do."""
    made = []
    for start in range(0, len(rows), size):
        texts, labels = zip(*rows[start : start + size], strict=True)
        encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=128, return_tensors="pt")
        made.append({**encoded, "labels": torch.tensor(labels)})
    return made


def load(folder: Path) -> torch.nn.Module:
    """The network of a folder: a model, or its base with an adapter."""
    if (folder / "adapter_config.json").is_file():
        import peft

        return peft.AutoPeftModelForSequenceClassification.from_pretrained(folder, is_trainable=True)
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--train", type=Path)
    parser.add_argument("--valid", type=Path)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "fast.onnx")
    given = parser.parse_args()
    if given.folders:
        folders, rows = given.folders, [read(given.train), read(given.valid)]
    else:
        folders, rows = make_folders()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[0])
    train, valid = (batches(tokenizer, part) for part in rows)

    # 1. Folders are modes: safetensors only, and no code in them is run.
    net = load(folders[0])
    modes = mb.load_checkpoints(net, folders)
    # 2. A small network that reads the first one and imitates the others, with one head for each.
    bridge = mb.fit_bridge(net, modes, train, budget=0.05, config=mb.TrainConfig(epochs=20))
    fast = mb.Ensemble(net, modes[:1], [bridge]).calibrate(valid)
    # 3. The alternative at no extra cost: one network trained to predict the mean of all. Fine-tunes start from one of
    #    them, since new weights would lose what was learned before the fine-tuning.
    student = mb.distill(net, modes, train, mb.TrainConfig(epochs=20), start=modes[0])
    # Here on the data that the temperature was fitted on; use a test split for figures that you report.
    for name, ensemble in {
        "one network": mb.Ensemble(net, modes[:1]).calibrate(valid),
        "one network + heads": fast,
        "distilled": mb.Ensemble(net, [student]).calibrate(valid),
        "all networks": mb.Ensemble(net, modes).calibrate(valid),
    }.items():
        scores = mb.evaluate(ensemble, valid)
        print(f"{name:20} x{scores.cost.relative_flops:.2f}  accuracy {scores.accuracy:.3f}  NLL {scores.nll:.3f}")
    # 4. One file for texts of any length.
    example = {name: tensor for name, tensor in train[0].items() if name != "labels"}
    print(mb.export(fast, given.out, example=example).path)


def read(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["text"], int(row["label"])) for row in csv.DictReader(file)]


def make_folders() -> tuple[list[Path], list[Rows]]:
    """Two small networks that tell four topics by their words, to stand in for your fine-tunes."""
    folder, words = Path(tempfile.mkdtemp()), [f"word{k}" for k in range(60)]
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (1600,), generator=generator)
    topics = torch.randn(4, len(words), generator=generator).mul(0.6).softmax(1)
    picked = torch.multinomial(topics[labels], 10, replacement=True, generator=generator)
    rows = [(" ".join(words[k] for k in row), int(label)) for row, label in zip(picked.tolist(), labels, strict=True)]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"))
    shape = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, num_labels=4, **shape)
    folders = [folder / "run1", folder / "run2"]
    for seed, place in enumerate(folders):
        torch.manual_seed(seed)
        net = transformers.BertForSequenceClassification(config)
        (mode,) = mb.fit_modes([net], batches(tokenizer, rows[:800]), mb.TrainConfig(epochs=10))
        mode.load(net).save_pretrained(place)
        tokenizer.save_pretrained(place)
    return folders, [rows[:800], rows[800:]]


if __name__ == "__main__":
    main()
