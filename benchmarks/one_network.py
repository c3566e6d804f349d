"""Controls at the cost of one network: better training on labels, averaged weights, and heads on the best of them.

    python benchmarks/one_network.py --data DIR --out OUT [--recipe cifar10-bn] [--epochs 200] [--head-epochs 60]
    python benchmarks/one_network.py --out OUT --publish results/cifar10-frn

Heads get CutMix, and the network that they stand on does not. What does a network gain that is trained with it? All
networks are trained together: as the recipe says (`plain`), with CutMix (`cutmix-a` and `cutmix-b`: half of the
batches, as its authors do), with mixup, with label smoothing. Of each, two means of the weights after every epoch:
`ema` (decay .8 per epoch), and `tail`, the last quarter. `swa` goes on from three quarters of the first with a
constant rate.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import published
from bodies import DESIGNS, plan
from modebridge import Ensemble, Mode, seeds, trees
from modebridge.bridges import Bridge, ensemble_target, heads_target, label_target
from modebridge.matching import draw_mixing, mixed, mixed_labels
from modebridge.members import Setting
from modebridge.modes import has_statistics, refresh_statistics
from modebridge.objectives import MODE, BridgeObjective, ModeObjective, StudentPlan
from modebridge.recipes import find_recipe
from modebridge.scoring import LogitTable, MemberCost
from modebridge.training import Epoch, Task, fit_many, fit_students, train
from modebridge.types import Batch, Batches, Draw, Prepared, State, States

NETWORKS = "plain,cutmix-a,cutmix-b,mixup,smoothing,swa"
Watch: TypeAlias = Callable[[Epoch], None]
HEADS = "cutmix-a>cutmix-b,cutmix-a>cutmix-a,plain>cutmix-a,cutmix-a>plain,plain>plain"
DECAY = 0.8
"""Of the running mean `ema`, per epoch."""


@dataclass(frozen=True)
class Regularization:
    """How labels and images are softened."""

    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float = 0.0

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        return draw_mixing(size, self.mixup, self.cutmix, generator, half=True)


KINDS = {
    "plain": Regularization(),
    "plain-b": Regularization(),
    "cutmix-a": Regularization(cutmix=1.0),
    "cutmix-b": Regularization(cutmix=1.0),
    "mixup": Regularization(mixup=1.0),
    "smoothing": Regularization(smoothing=0.1),
}


class SoftLabels(ModeObjective):
    """Cross entropy on soft labels; keeps means of the weights after every epoch.

    `validate` never chooses: every epoch is better than the one before it.
    """

    soft: Regularization
    classes: int
    epochs: int

    def start(self) -> States:
        self._seen, self.means = 0, dict[str, State]()
        return super().start()

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        return self.soft.draw(size, generator)

    def prepare(self, batch: Batch, draw: Draw) -> dict[str, Prepared]:
        target = mixed_labels(batch[1], self.classes, torch.float32, draw, batch[0])
        target = target * (1 - self.soft.smoothing) + self.soft.smoothing / self.classes
        prepared = super().prepare((mixed(batch[0], draw), target), {})
        return {MODE: prepared[MODE]}

    @torch.no_grad()
    def validate(self, states: States, batches: Batches) -> dict[str, float]:
        state = states[MODE]
        self._seen += 1
        late = self._seen - 3 * self.epochs // 4
        if "ema" not in self.means:
            self.means["ema"] = _copy(state)
        _move(self.means["ema"], state, 1 - DECAY)
        if late == 0:
            self.means["three quarters"] = _copy(state)
        if late == 1:
            self.means["tail"] = _copy(state)
        if late > 1:
            _move(self.means["tail"], state, 1 / late)
        return {MODE: -float(self._seen)}


def _copy(state: State) -> State:
    return State(trees.clone(state.params), trees.clone(state.buffers), state.frozen)


def _move(mean: State, state: State, share: float) -> None:
    for name, tensor in mean.params.items():
        tensor.lerp_(state.params[name], share)


def fit_networks(setting: Setting, kinds: list[str], epochs: int) -> dict[str, Mode]:
    """Networks of some kinds, with their means, by name; "swa" goes on from the first of them."""
    kinds, averaging = [name for name in kinds if name != "swa"], "swa" in kinds
    recipe, engine = setting.recipe, setting.engine
    config = replace(recipe.training("mode"), epochs=epochs, keep="best", callbacks=(report,), progress=False)
    net = setting.placed()
    start = Mode.from_module(setting.network.build(seeds.generator(setting.seed, "control", kinds[0])))
    first, tasks = SoftLabels(net, start), []
    for name in kinds:
        built = setting.network.build(seeds.generator(setting.seed, "control", name))
        objective = first.on(Mode.from_module(built))
        objective.soft, objective.classes, objective.epochs = KINDS[name], setting.facts.classes, epochs
        tasks.append(Task(objective, setting.data.train("control", name), [], setting.seed_of("control", name)))
    trained = train(tasks, config, engine=engine)
    modes = {}
    for name, task, states in zip(kinds, tasks, trained, strict=True):
        objective = task.objective
        modes[name] = objective.result(states)
        for mean in ("ema", "tail"):
            if mean in objective.means:
                modes[f"{name}-{mean}"] = _settled(setting, objective.result({MODE: objective.means[mean]}), name)
    at = tasks[0].objective.means.get("three quarters")
    if averaging and at is not None:
        rest = epochs - 3 * epochs // 4
        rate = (config.lr or 0.0) * config.factor(epochs - rest - 1)
        constant = replace(config, epochs=rest, lr=rate, warmup=1, average_from=1, constant_from=1, keep="last")
        objective = first.on(first.result({MODE: at}))
        objective.soft, objective.classes, objective.epochs = KINDS["plain"], setting.facts.classes, rest
        batches = setting.data.train("control", kinds[0], "swa")
        (states,) = train([Task(objective, batches, None, setting.seed)], constant, engine=engine)
        modes["swa"] = _settled(setting, objective.result(states), kinds[0])
    return {name: mode.to("cpu") for name, mode in modes.items()}


def _settled(setting: Setting, mode: Mode, name: str) -> Mode:
    """The mode with statistics of its own weights, if the network has batch norm."""
    if not has_statistics(setting.net):
        return mode
    batches = setting.data.train("control", name, "statistics")
    return replace(mode, buffers=refresh_statistics(setting.placed(), mode.params, mode.buffers, batches))


def plan_head(setting: Setting, modes: dict[str, Mode], name: str) -> Bridge:
    """A small network by a name as "[DESIGN ]BASE>TARGETS": "A+B" has two heads, "A&B" one on the mean."""
    design, base, targets = parts_of(name)
    heads = [
        label_target() if head == "labels" else ensemble_target([modes[one] for one in head.split("&")])
        for head in targets.split("+")
    ]
    return plan(
        setting, modes[base], heads_target(heads), DESIGNS[design], name, setting.seed_of("head", *name.split(">"))
    )


def parts_of(name: str) -> tuple[str, str, str]:
    """The design, the base and the targets of a name.

    >>> parts_of("plain>labels"), parts_of("early plain>plain-b")
    (('default', 'plain', 'labels'), ('early', 'plain', 'plain-b'))
    """
    read, _, targets = name.partition(">")
    design, _, base = read.rpartition(" ")
    return design or "default", base, targets


class Steps(BridgeObjective):
    """Images moved along the gradient of a random direction of the networks' mean answer, before heads see them.

    Output diversified sampling (Tashiro et al., 2020), with confidence as in Nam et al. (2021): networks trained apart
    agree less on such images. The root mean square of a step is a share of that of the image.
    """

    size: float
    classes: int

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        return {
            **super().draw(size, generator),
            "direction": 2 * torch.rand(size, self.classes, generator=generator) - 1,
        }

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        images = mixed(batch[0], draw)
        assert isinstance(images, Tensor)
        with torch.enable_grad():
            moving = images.detach().requires_grad_()
            answer = torch.stack([logits.softmax(dim=-1) for logits, _ in self.bases(moving).values()]).mean(dim=0)
            (gradient,) = torch.autograd.grad((answer * draw["direction"]).sum(), moving)
        axes = tuple(range(1, images.dim()))
        sizes = [one.square().mean(dim=axes, keepdim=True).sqrt() for one in (images, gradient)]
        sure = answer.detach().amax(dim=-1).view(-1, *[1] * len(axes))
        return super().prepare((images + self.size * sure * sizes[0] * gradient / (sizes[1] + 1e-12), batch[1]), {})


def fit_heads(
    setting: Setting,
    modes: dict[str, Mode],
    names: list[str],
    epochs: int,
    cutmix: float = 1.0,
    step: float = 0.0,
    watch: Watch = lambda epoch: None,
) -> dict[str, Bridge]:
    """Heads by name, trained on images mixed by CutMix (or plain ones), and moved by a step if it is not 0."""
    if not names:
        return {}
    bridges = {name: plan_head(setting, modes, name) for name in names}
    config = replace(setting.recipe.training("bridge"), epochs=epochs, keep="last", cutmix=cutmix, progress=False)
    config = replace(config, callbacks=(report, watch), device=setting.engine.device, seed=setting.seed_of("heads"))
    data = setting.data.train("heads", bridges=True)
    if not step:
        return fit_many(setting.net, bridges, data, config)
    objective = Steps(setting.placed(), bridges, 0.0, cutmix)
    objective.size, objective.classes = step, setting.facts.classes
    (states,) = train([Task(objective, data, None, config.seed)], config, engine=setting.engine)
    return objective.result(states)


def fit_learners(
    setting: Setting, modes: dict[str, Mode], names: list[str], epochs: int, cutmix: float, watch: Watch
) -> dict[str, Mode]:
    """New networks by the names of their teachers ("A&B"), trained on images mixed by CutMix to predict the mean."""
    if not names:
        return {}
    plans = {}
    for name in names:
        start = Mode.from_module(setting.network.build(seeds.generator(setting.seed, "student", name)))
        plans[f"student {name}"] = StudentPlan(setting.net, start, tuple(modes[one] for one in name.split("&")))
    config = replace(setting.recipe.training("mode"), epochs=epochs, keep="last", cutmix=cutmix, progress=False)
    config = replace(config, callbacks=(report, watch), device=setting.engine.device, seed=setting.seed_of("students"))
    return fit_students(setting.net, plans, setting.data.train("students"), config)


@torch.no_grad()
def logits_of(setting: Setting, modes: dict[str, Mode], bridges: dict[str, Bridge]) -> dict[str, Tensor]:
    """Log probabilities on the validation and test images, as `name/split`."""
    tables: dict[str, Tensor] = {}
    groups = [(mode, {name: None}) for name, mode in modes.items()]
    groups += [(modes[base_of(name)], {"": None, name: bridge}) for name, bridge in bridges.items()]
    for mode, members in groups:
        ensemble = Ensemble(setting.net, [mode], [one for one in members.values() if one is not None])
        ensemble.to(setting.engine.device)
        for split, batches in (("valid", setting.data.valid()), ("test", setting.data.test())):
            parts = [ensemble.members(images).clamp_min(1e-30).log().cpu() for images, _ in batches]
            table = torch.cat(parts, dim=1).float()
            name = list(members)[-1]
            tables[f"{name}/{split}"] = table[0] if len(members) == 1 else table[1:].squeeze(0).contiguous()
    return tables


def base_of(name: str) -> str:
    return parts_of(name)[1]


def read_logits(file: Path) -> tuple[dict[str, Any], Setting, LogitTable, dict[str, Bridge]]:
    """What was trained, its setting, its log probabilities with costs, and untrained bridges in place of its heads."""
    with safe_open(file, "pt") as stored:
        about = json.loads(stored.metadata()["about"])
        tables = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - no dict
    members = sorted({name.partition("/")[0] for name in tables} - {"labels"})
    valid, test = ({name: tables[f"{name}/{split}"] for name in members} for split in ("valid", "test"))
    setting = Setting(find_recipe(about["recipe"]), about["seed"])
    modes = {name: Mode.from_module(setting.net) for name in members if ">" not in name}
    heads = {name: plan_head(setting, modes, name) for name in members if ">" in name}
    unit = setting.base_cost
    costs = {name: MemberCost(unit.flops, unit.params) for name in modes}
    for name, head in heads.items():
        costs[name] = MemberCost(head.flops, head.params, reads=(base_of(name),))
    return about, setting, LogitTable(valid, test, tables["labels/valid"], tables["labels/test"], costs), heads


def publish_seed(file: Path, target: Path, sets: list[str], suffix: str) -> None:
    """Add the scores of one seed to a file with a score per seed, such as results/digits/designs.json."""
    about, setting, table, heads = read_logits(file)
    rows = {}
    modes = [name for name in table.test if ">" not in name]
    for title in [*modes, *(f"{base_of(name)} + {name}" for name in heads), *sets]:
        scored, learned = table.score(title.split(" + ")), ">" in title or title.startswith("student ")
        scores = {"flops": scored.cost.relative_flops, "accuracy": scored.accuracy, "nll": scored.nll}
        rows[title + suffix * learned] = scores
    published.add_seed(target, setting.recipe.name, about["seed"], rows)


def publish(file: Path, folder: Path, sets: list[str], pairs: list[list[str]]) -> None:
    """Add the rows of a file to a published folder of the same test images: networks, heads beside their base, `sets`.

    "A + B" is an ensemble, "A + B @1.15" a cascade of that average cost. Rows that are there already are named by the
    epochs of the heads. In a new folder, shares are of the gap between the first network of the first set and that set.
    Pairs of rows are compared.
    """
    about, _, table, heads = read_logits(file)
    labels, modes = table.test_labels, [name for name in table.test if ">" not in name]
    rows: dict[str, Tensor] = {}
    if folder.exists():
        rows, record = published.read_rows(folder), json.loads((folder / "results.json").read_text())
    else:
        folder.mkdir()
        title = f"{about['recipe']}: networks trained otherwise, heads on them"
        record = {"title": title, "recipe": about["recipe"], "seed": about["seed"], "seeds": 1}
        record |= {
            "epochs": {"networks": about["epochs"], "heads": about["heads"]},
            "date": about["date"],
            "hardware": about["card"],
            "rows": [],
            "differences": [],
        }
        record |= {"versions": {"torch": about["torch"]}, "ways_between": [sets[0].split(" + ")[0], sets[0]]}
    known = {row["name"]: row for row in record["rows"]}
    for title in [*modes, *(f"{base_of(name)} + {name}" for name in heads), *sets]:
        text, _, average = title.partition(" @")
        names = text.split(" + ")
        if title in known:
            if len(names) == 1:
                continue  # the same network, rounded to half precision in between
            title += f", {about['heads']} epochs"
        threshold = table.threshold(names, float(average)) if average else None
        scored, calibrated = table.score(names, threshold=threshold), table.calibrated(names, threshold=threshold)
        rows[title] = published.per_image(calibrated, labels)
        known[title] = {"flops": scored.cost.relative_flops, "params": scored.cost.relative_params}
        known[title] |= {"temperature": scored.temperature, "ece": scored.ece, "brier": scored.brier}
    pairs_of_modes = [(name, *parts_of(name)[1:]) for name in heads]
    record["sides"] = [
        *record.get("sides", []),
        *(sides(table, base, other, name) for name, base, other in pairs_of_modes if other in modes and other != base),
    ]
    record["differences"] += [{"title": f"{a} against {b}", "a": [a], "b": [b]} for a, b in pairs]
    published.publish(folder, rows, known, record, record["differences"])


def sides(table: LogitTable, base: str, other: str, head: str) -> dict[str, float]:
    """On test images on which two networks predict different classes: with which of them a head sides, who is right.

    "apart" is the share of such images; the names of members are those of `LogitTable`.
    """

    def answers(*members: str) -> Tensor:
        return table.probabilities(members).argmax(dim=-1)[apart]

    apart = table.probabilities([base]).argmax(dim=-1) != table.probabilities([other]).argmax(dim=-1)
    labels, said = table.test_labels[apart], answers(head)
    chosen = {"with its base": said == answers(base), "with its target": said == answers(other)}
    groups = {"base": (base,), "target": (other,), "head": (head,), "base + head": (base, head), "both": (base, other)}
    right = {f"{name} right": answers(*members) == labels for name, members in groups.items()}
    shares = {name: float(each.double().mean()) for name, each in {**chosen, **right}.items()}
    return {"head": head, "apart": float(apart.double().mean()), **shares}


def report(epoch: Epoch) -> None:
    losses = " ".join(f"{loss:.3f}" for loss in epoch.losses.values())
    print(f"{time.strftime('%X')} epoch {epoch.number} of {epoch.total}: {epoch.seconds:.2f} s, {losses}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10")
    parser.add_argument("--data", default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--publish", type=Path, help="add the rows of OUT to a folder of results, or to a .json of seeds"
    )
    parser.add_argument("--sets", default="plain + cutmix-a,cutmix-a + cutmix-b", help="further rows to publish")
    parser.add_argument("--difference", nargs=2, action="append", default=[], metavar=("ROW", "ROW"))
    parser.add_argument("--kinds", default=NETWORKS)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--head-epochs", type=int, default=60)
    parser.add_argument("--heads", default=HEADS)
    parser.add_argument("--students", default="", help="networks to distill, by their teachers, as plain&cutmix-a")
    parser.add_argument("--until", type=float, help="train either until this Unix time, not for --head-epochs")
    parser.add_argument("--cutmix", type=float, default=1.0, help="alpha of the heads' CutMix")
    parser.add_argument("--step", type=float, default=0.0, help="size of a step on their images, see Steps")
    parser.add_argument("--suffix", default="", help="of heads in --publish, to tell those of several runs apart")
    parser.add_argument("--weights", type=Path, help="networks of an earlier run, instead of training them")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.publish is not None:
        sets = [one for one in given.sets.split(",") if one]
        file = given.out / "logits.safetensors"
        if given.publish.suffix == ".json":
            publish_seed(file, given.publish, sets, given.suffix)
        else:
            publish(file, given.publish, sets, given.difference)
        return
    setting = Setting(find_recipe(given.recipe), given.seed, given.data)
    heads, learners = ([one for one in names.split(",") if one] for names in (given.heads, given.students))
    given.out.mkdir(parents=True, exist_ok=True)

    def finish(modes: dict[str, Mode]) -> None:
        def fit(epochs: int, watch: Watch = lambda epoch: None) -> tuple[dict[str, Mode], dict[str, Bridge]]:
            students = fit_learners(setting, modes, learners, epochs, given.cutmix, watch)
            return students, fit_heads(setting, modes, heads, epochs, given.cutmix, given.step, watch)

        if given.until is not None:
            seconds: list[float] = []
            fit(2, lambda epoch: seconds.append(epoch.seconds * (epoch.number == 2)))  # the first one compiles
            given.head_epochs = max(1, int((given.until - time.time()) / sum(seconds)))
        students, bridges = fit(given.head_epochs)
        keep(modes | students, bridges)

    def keep(modes: dict[str, Mode], bridges: dict[str, Bridge]) -> None:
        tables = logits_of(setting, modes, bridges)
        tables |= {f"labels/{split}": setting.data.labels(split) for split in ("valid", "test")}
        about = {"recipe": given.recipe, "seed": given.seed, "epochs": given.epochs, "heads": given.head_epochs}
        about |= {"shares": {name: bridge.share for name, bridge in bridges.items()}, "torch": torch.__version__}
        about |= {
            "date": f"{date.today()}",
            "card": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        }
        save_file(tables, given.out / "logits.safetensors", {"about": json.dumps(about)})
        for name, table in tables.items():
            member, _, split = name.partition("/")
            if split == "test" and member != "labels" and table.dim() == 2:
                loss = torch.nn.functional.nll_loss(table, tables["labels/test"])
                right = (table.argmax(dim=-1) == tables["labels/test"]).float().mean()
                print(f"{member:24} accuracy {100 * right:.2f} NLL {loss:.4f}, not calibrated", flush=True)

    if given.weights is not None:
        saved = load_file(given.weights)
        names = dict.fromkeys(key.partition("/")[0] for key in saved)
        states = {
            name: {k.partition("/")[2]: t for k, t in saved.items() if k.startswith(f"{name}/")} for name in names
        }
        modes = {name: setting.load_mode(state) for name, state in states.items()}
        finish(modes)
        return
    modes = fit_networks(setting, given.kinds.split(","), given.epochs)
    keep(modes, {})
    weights = {f"{name}/{key}": tensor.half() for name, mode in modes.items() for key, tensor in mode.state.items()}
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, given.out / "weights.safetensors")
    finish(modes)


if __name__ == "__main__":
    main()
