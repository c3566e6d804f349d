"""CLINC150: does better training of the first network help on texts, and does a head gain by reading early?

    python benchmarks/better_texts.py data_full.json --seeds 0-2 --out results/intents/better.json

The networks are those of benchmarks/intents.py, trained on labels as there, and with spans exchanged (CutMix for
tokens). "tail" is the mean of the weights after each of the last quarter of the epochs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import modebridge as mb
from intents import WIDTH, Queries, Reader, encode, members_of
from modebridge import seeds
from modebridge.batches import Mapped, check_batch
from modebridge.bridges import mode_target
from modebridge.objectives import MODE
from modebridge.scoring import LogitTable, MemberCost, module_cost
from modebridge.training import Engine, Task, train
from one_network import Regularization, SoftLabels
from published import add_seed, seeds_in

CUTMIX = Regularization(cutmix=1.0)
KINDS = {"plain": Regularization(), "plain-b": Regularization(), "cutmix": CUTMIX}
LONGER = {"cutmix, as long as a student": CUTMIX}
EARLY = "blocks.layers.0"
NARROW = 24


class EarlyReader(nn.Module):
    """A narrow transformer layer on the words of an early layer, and their mean."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.narrow = nn.Linear(WIDTH, NARROW)
        self.block = nn.TransformerEncoderLayer(NARROW, 2, 2 * NARROW, dropout=0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(NARROW), nn.Linear(NARROW, classes)

    def forward(self, words: Tensor) -> Tensor:
        seen = words.abs().sum(dim=-1) > 0  # features are zeros at padding
        read = self.norm(self.block(self.narrow(words), src_key_padding_mask=~seen))
        return self.head((read * seen[..., None]).sum(dim=1) / seen.sum(dim=1, keepdim=True).clamp_min(1))


def networks(
    kinds: dict[str, Regularization], data: tuple[Tensor, Tensor], words: int, classes: int, config: mb.TrainConfig
) -> dict[str, mb.Mode]:
    """The networks by name, and the means of their weights."""
    tasks, engine = [], None
    for name, soft in kinds.items():
        torch.manual_seed(seeds.seed_for(config.seed, "better", name))
        net = Reader(words, classes)
        engine = engine or Engine.of(config, net)
        first = tasks[0].objective if tasks else None
        mode = mb.Mode.from_module(net)
        objective = first.on(mode) if first else SoftLabels(net, mode)
        objective.soft, objective.classes, objective.epochs = soft, classes, config.epochs
        seed = seeds.seed_for(config.seed, "better", name, "data")
        batches = Mapped(Queries(*data, seed=seed), lambda batch: check_batch(batch, "train"))
        tasks.append(Task(objective, batches, [], seed))
    trained, modes = train(tasks, replace(config, keep="best"), engine=engine), {}
    for name, task, states in zip(kinds, tasks, trained, strict=True):
        modes[name] = task.objective.result(states)
        modes[f"{name}-tail"] = task.objective.result({MODE: task.objective.means["tail"]})
    return modes


def run(path: Path, seed: int, epochs: int) -> dict[str, dict[str, float]]:
    data, words, classes = encode(path)
    config = mb.TrainConfig(epochs=epochs, weight_decay=0.01, clip=1.0, seed=seed, progress=False, optimizer="adamw")
    base, given = Reader(words, classes), (data["train"], words, classes)
    modes = networks(KINDS, *given, config) | networks(LONGER, *given, replace(config, epochs=3 * epochs))
    longer = replace(config, epochs=2 * epochs, weight_decay=0.0, clip=0.0, optimizer="auto", cutmix=1.0)
    queries = Queries(*data["train"], seed=seeds.seed_for(seed, "heads"))

    def head(first: str, target: str, **options: object) -> mb.Bridge:
        torch.manual_seed(seed)
        return mb.fit_bridge(base, modes[first], queries, target=mode_target(modes[target]), config=longer, **options)

    heads = {
        ("plain", "late"): head("plain", "plain-b", budget=0.05),
        ("plain", "late, larger"): head("plain", "plain-b", budget=0.15),
        ("plain", "early"): head("plain", "plain-b", tap=EARLY, body=EarlyReader(classes)),
        ("plain-tail", "late, on the tail"): head("plain-tail", "plain-b-tail", budget=0.05),
        ("cutmix", "late, on cutmix"): head("cutmix", "plain", budget=0.05),
    }
    tables: dict[str, dict[str, Tensor]] = {split: {} for split in ("val", "test")}
    for split, table in tables.items():
        for name, mode in modes.items():
            table[name] = members_of(mb.Ensemble(base, [mode]), data[split][0], 0)[0]
        for (first, name), bridge in heads.items():
            table[name] = members_of(mb.Ensemble(base, [modes[first]], [bridge]), data[split][0], 1)
    example = {name: tensor[:2] for name, tensor in next(iter(queries)).items() if name != "labels"}
    cost = module_cost(base, example)
    costs = dict.fromkeys(modes, MemberCost(cost.flops, cost.params))
    costs |= {name: MemberCost(one.flops, one.params, reads=(first,)) for (first, name), one in heads.items()}
    known = LogitTable(tables["val"], tables["test"], data["val"][1], data["test"][1], costs)
    rows = {name: [name] for name in modes} | {f"{first} + head {name}": [first, name] for first, name in heads}
    pairs = [["plain", "plain-b"], ["plain-tail", "plain-b-tail"], ["plain", "cutmix"]]
    rows |= {" + ".join(pair): pair for pair in pairs} | {" + ".join(pair) + " @1.15": pair for pair in pairs[:2]}
    found = {}
    for name, names in rows.items():
        scored = known.score(names, threshold=known.threshold(names, 1.15) if "@" in name else None)
        found[name] = {"flops": scored.cost.relative_flops, "accuracy": scored.accuracy, "nll": scored.nll}
        print(f"seed {seed} {name:32}", *(f"{key} {value:.4f}" for key, value in found[name].items()), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for seed in seeds_in(given.seeds, given.out):
        rows = run(given.data, seed, given.epochs)
        add_seed(given.out, "CLINC150, networks trained otherwise", seed, rows)


if __name__ == "__main__":
    main()
