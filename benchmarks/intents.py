"""Text: four small transformers from scratch on CLINC150 (150 intents, and queries that belong to none) or BANKING77.

    python benchmarks/intents.py data_full.json --seeds 0-2 --out results/intents/clinc150.json
    python benchmarks/intents.py data_full.json --epochs 20 --cutmix 0 --out results/intents/clinc150-20-epochs.json
    python benchmarks/intents.py banking_data --seeds 0-2 --out results/intents/banking77.json

The file is data/data_full.json of the public repository clinc/oos-eval, the folder that of PolyAI-LDN's
task-specific-datasets. A seed takes 30 minutes on one core; seeds that the file already has are not run again. The
student is trained as long as the networks, and both with spans exchanged, so that the networks are its controls. AURC
is that of the calibrated confidence; OOS is how well it separates known intents from other queries (AUROC).
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor, nn

import modebridge as mb
from modebridge import seeds
from modebridge.bridges import label_target, mode_target
from modebridge.scoring import LogitTable, MemberCost, module_cost
from published import add_seed, seeds_in

LENGTH, WIDTH, LAYERS, MODES, BATCH = 24, 64, 2, 4, 100
PAD, UNKNOWN = 0, 1
HEAD_EPOCHS, STUDENT_EPOCHS = 40, 60
Batch = dict[str, Tensor]


class Reader(nn.Module):
    """A transformer that averages over the words of a query."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, WIDTH, padding_idx=PAD)
        self.place = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.2, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        seen = attention_mask.bool()
        read = self.norm(self.blocks(self.embed(input_ids) + self.place(places), src_key_padding_mask=~seen))
        return self.head((read * seen[..., None]).sum(dim=1) / seen.sum(dim=1, keepdim=True))


class Queries:
    """Batches of encoded queries, in another order in every epoch."""

    def __init__(self, ids: Tensor, labels: Tensor, seed: int | None = None) -> None:
        self.ids, self.labels, self.seed, self.epoch = ids, labels, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        order = torch.arange(len(self.ids))
        if self.seed is not None:
            order = torch.randperm(len(order), generator=seeds.generator(self.seed, "order", self.epoch))
        for rows in order.split(BATCH):
            ids = self.ids[rows]
            yield {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": self.labels[rows]}


def read(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Queries and intents by split. BANKING77 has no validation split: every tenth training query."""
    if path.is_file():
        return {
            split: [(text, intent) for text, intent in rows] for split, rows in json.loads(path.read_text()).items()
        }
    tables = []
    for name in ("train.csv", "test.csv"):
        with (path / name).open(newline="", encoding="utf-8") as file:
            tables.append([(row["text"], row["category"]) for row in csv.DictReader(file)])
    train, test = tables
    return {"train": [row for k, row in enumerate(train) if k % 10], "val": train[::10], "test": test}


def encode(path: Path) -> tuple[dict[str, tuple[Tensor, Tensor]], int, int]:
    """Word ids and labels of every split; words that training queries have at least twice."""
    data = {split: [(_words(text), intent) for text, intent in rows] for split, rows in read(path).items()}
    counts = Counter(word for words, _ in data["train"] for word in words)
    words = {word: k for k, word in enumerate(sorted(word for word, n in counts.items() if n > 1), UNKNOWN + 1)}
    intents = {intent: k for k, intent in enumerate(sorted({intent for _, intent in data["train"]}))}
    encoded = {}
    for split, rows in data.items():
        ids = torch.full((len(rows), LENGTH), PAD)
        for k, (query, _) in enumerate(rows):
            found = [words.get(word, UNKNOWN) for word in query[:LENGTH]]
            ids[k, : len(found)] = torch.tensor(found)
        encoded[split] = ids, torch.tensor([intents.get(intent, 0) for _, intent in rows])
    return encoded, UNKNOWN + 1 + len(words), len(intents)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|\d", text.lower())


@torch.no_grad()
def members_of(ensemble: mb.Ensemble, ids: Tensor, first: int) -> Tensor:
    """Log probabilities (M, N, K) of the members from `first` on."""
    batches = Queries(ids, torch.zeros(len(ids), dtype=torch.long))
    parts = [ensemble.members({k: v for k, v in batch.items() if k != "labels"}) for batch in batches]
    return torch.cat(parts, dim=1)[first:].clamp_min(1e-30).log()


def run(path: Path, seed: int, epochs: int, cutmix: float) -> dict[str, dict[str, float]]:
    """The scores of every row for one seed."""
    data, words, classes = encode(path)
    nets = []
    for k in range(MODES + 1):
        torch.manual_seed(seeds.seed_for(seed, "start", k))
        nets.append(Reader(words, classes))
    base = nets[0]
    config = mb.TrainConfig(epochs=epochs, weight_decay=0.01, clip=1.0, seed=seed, progress=False)
    networks_config = replace(config, cutmix=cutmix or None)
    loaders = [Queries(*data["train"], seed=seeds.seed_for(seed, "mode", k)) for k in range(MODES)]
    modes = mb.fit_modes(nets[:MODES], loaders, networks_config)
    train, example = Queries(*data["train"], seed=seeds.seed_for(seed, "others")), next(iter(loaders[0]))
    example = {name: tensor[:2] for name, tensor in example.items() if name != "labels"}
    longer = replace(config, epochs=HEAD_EPOCHS, weight_decay=0.0, clip=0.0)
    bridges = {"heads": mb.fit_bridge(base, modes, train, budget=0.05, config=longer)}
    for name, target in (("own", mode_target(modes[0])), ("labels", label_target())):
        bridges[name] = mb.fit_bridge(
            base, modes[:1], train, budget=0.05, target=target, config=replace(longer, cutmix=1.0)
        )
    student = mb.distill(base, modes, train, replace(config, epochs=STUDENT_EPOCHS))
    networks = {**{f"mode-{k}": mode for k, mode in enumerate(modes)}, "student": student}
    tables: dict[str, dict[str, Tensor]] = {split: {} for split in ("val", "test", "oos_test") if split in data}
    for split, table in tables.items():
        for name, mode in networks.items():
            table[name] = members_of(mb.Ensemble(base, [mode]), data[split][0], 0)[0]
        for name, bridge in bridges.items():
            table[name] = members_of(mb.Ensemble(base, modes[:1], [bridge]), data[split][0], 1)
    cost = module_cost(base, example)
    costs = dict.fromkeys(networks, MemberCost(cost.flops, cost.params))
    costs |= {name: MemberCost(one.flops, one.params, reads=("mode-0",)) for name, one in bridges.items()}
    known = LogitTable(tables["val"], tables["test"], data["val"][1], data["test"][1], costs)
    strange = known.on(tables["oos_test"], data["oos_test"][1]) if "oos_test" in data else None
    rows = {f"DE-{m}": [f"mode-{k}" for k in range(m)] for m in range(1, MODES + 1)}
    rows |= {"3 heads, the default": ["mode-0", "heads"], "1 head on mode 0 itself": ["mode-0", "own"]}
    rows |= {"1 head on labels": ["mode-0", "labels"]}
    rows |= {"student of all four": ["student"], "DE-2 cascade x1.15": ["mode-0", "mode-1"]}
    found = {}
    for name, names in rows.items():
        threshold = known.threshold(names, 1.15) if "cascade" in name else None
        scored = known.score(names, threshold=threshold)
        found[name] = {"flops": scored.cost.relative_flops, "accuracy": scored.accuracy, "nll": scored.nll}
        found[name] |= {"ece": scored.ece, "aurc": scored.aurc}
        if strange is not None:
            sure, other = (one.calibrated(names, threshold=threshold).amax(dim=-1).numpy() for one in (known, strange))
            found[name]["oos"] = float(mannwhitneyu(sure, other).statistic / (len(sure) * len(other)))
        print(f"seed {seed} {name:24}", *(f"{key} {value:.4f}" for key, value in found[name].items()), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--epochs", type=int, default=60, help="of the networks")
    parser.add_argument("--cutmix", type=float, default=1.0, help="alpha of exchanged spans for the networks")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    title = "CLINC150" if given.data.is_file() else "BANKING77"
    about = {"epochs": {"modes": given.epochs, "heads": HEAD_EPOCHS, "student": STUDENT_EPOCHS}, "cutmix": given.cutmix}
    about |= {"versions": {"torch": torch.__version__}, "hardware": "CPU"}
    for seed in seeds_in(given.seeds, given.out):
        add_seed(given.out, title, seed, run(given.data, seed, given.epochs, given.cutmix), about)


if __name__ == "__main__":
    main()
