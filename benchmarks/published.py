"""Recompute accuracy, NLL, mean IoU, shares and differences of `results/` from numbers per test image; print tables.

    python benchmarks/published.py                       # check every folder: exit status 1 if one of these differs
    python benchmarks/published.py results/cifar10-frn   # its tables
    python benchmarks/published.py results/digits/default.json
    python benchmarks/published.py --record RUN results/NAME   # publish the table of a run folder

`results.json` has the figures. `rows.safetensors` has what they rest on: for every row the calibrated NLL of each test
image in half precision, and one bit for right or wrong; for networks that classify pixels, sums over each test image.
Intervals are 95 % percentile bootstrap intervals over test images; all rows share the draws, so shares and differences
are paired. Files of `results/digits` have a score per seed, and their intervals are t intervals of paired differences
over seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.special import stdtrit
from torch import Tensor

from modebridge.scoring import hits, interval_of, resampled_means, surprisals

RESULTS = Path(__file__).parents[1] / "results"
BASELINE = "paper small"
TOLERANCE = 2e-4
"""Of NLL, accuracy and shares: results.json is rounded."""

Record = dict[str, Any]


def read_rows(folder: Path) -> dict[str, Tensor]:
    """What each row has of each test image (N, C), in float64; see `rates`."""
    with safe_open(folder / "rows.safetensors", "pt") as file:
        names = json.loads(file.metadata()["rows"])
        if "sums" in file.keys():  # noqa: SIM118 - no dict
            return dict(zip(names, file.get_tensor("sums").double(), strict=True))
        nll, packed = file.get_tensor("nll").double(), file.get_tensor("right")
    right = torch.from_numpy(np.unpackbits(packed.numpy(), axis=1)[:, : nll.shape[1]]).double()
    return {name: torch.stack([nll[k], right[k]], dim=1) for k, name in enumerate(names)}


def write_rows(folder: Path, rows: dict[str, Tensor]) -> None:
    """The inverse of `read_rows`; the NLL of images is rounded to half precision, sums over places to single."""
    table, about = torch.stack(list(rows.values())), {"rows": json.dumps(list(rows))}
    tensors = {"sums": table.float().contiguous()}
    if table.shape[2] == 2:
        right = torch.from_numpy(np.packbits(table[..., 1].to(torch.uint8).numpy(), axis=1))
        tensors = {"nll": table[..., 0].half().contiguous(), "right": right}
    save_file(tensors, folder / "rows.safetensors", about)


def per_image(probabilities: Tensor, labels: Tensor) -> Tensor:
    """NLL and right or wrong of each image (N, 2)."""
    return torch.stack([surprisals(probabilities, labels).double(), hits(probabilities, labels).double()], dim=1)


def rates(means: Tensor) -> dict[str, Tensor]:
    """The scores of a row from means (R, C) over images.

    C is 2, NLL and right or wrong; or, for networks that classify places, 3 + 3 K: labeled places, the sum of their
    NLL, how many are right, and by class those found, all of the class, and all that were taken for it.
    """
    if means.shape[1] == 2:
        return {"nll": means[:, 0], "accuracy": means[:, 1]}
    places, both, truth, found = means[:, :1], *means[:, 3:].unflatten(1, (3, -1)).unbind(dim=1)
    nll, accuracy = (means[:, 1:3] / places).unbind(dim=1)
    return {"nll": nll, "accuracy": accuracy, "mean_iou": (both / (truth + found - both)).nanmean(dim=1)}


def compute(
    rows: dict[str, Tensor], between: tuple[str, str], pairs: list[Record]
) -> tuple[list[Record], list[Record]]:
    """Scores with the share of the gap that they close between two rows, and differences between (means over) rows.

    Args:
        rows: what each row has of each image, see `rates`.
        between: the rows at the two ends of the gap, one network and two.
        pairs: records with the names of rows under "a" and "b".
    """
    table = torch.cat(list(rows.values()), dim=1)
    widths = [row.shape[1] for row in rows.values()]
    # One set of draws serves all rows.
    parts = [torch.split(means, widths, dim=1) for means in (resampled_means(table), table.mean(dim=0, keepdim=True))]
    drawn, exact = ({name: rates(part) for name, part in zip(rows, some, strict=True)} for some in parts)
    first, last = between
    scores, differences = [], []
    for name, values in exact.items():
        score: Record = {"name": name}
        for key, value in values.items():
            score[key] = float(value)
            if name not in between:
                ways = [
                    (one[name][key] - one[first][key]) / (one[last][key] - one[first][key]) for one in (exact, drawn)
                ]
                score[f"way_{key}"] = [float(ways[0]), *interval_of(ways[1])]
        scores.append(score)
    for pair in pairs:
        difference: Record = {key: pair[key] for key in ("title", "a", "b")}
        for key in exact[first]:
            means = [
                torch.stack([one[name][key] for name in pair[side]]).mean(dim=0)
                for one in (exact, drawn)
                for side in ("a", "b")
            ]
            difference[key] = [float(means[0] - means[1]), *interval_of(means[2] - means[3])]
        differences.append(difference)
    return scores, differences


def publish(
    folder: Path, rows: dict[str, Tensor], facts: dict[str, Record], about: Record, pairs: list[Record]
) -> None:
    """Write rows.safetensors, and results.json: `about`, the scores of rows with further facts, and differences."""
    write_rows(folder, rows)
    scores, differences = compute(read_rows(folder), tuple(about["ways_between"]), pairs)
    records = [{**score, **{k: v for k, v in facts[score["name"]].items() if k not in score}} for score in scores]
    write(folder / "results.json", about | {"rows": records, "differences": differences})


def write(file: Path, content: Record) -> None:
    file.write_text(json.dumps(rounded(content), indent=1) + "\n")


def seeds_in(text: str, file: Path | None = None) -> list[int]:
    """The seeds that "5", "20,21" or "30-37" name, without those that a file of `add_seed` already has.

    >>> seeds_in("3,30-32")
    [3, 30, 31, 32]
    """
    ranges = [part.partition("-") for part in text.split(",")]
    seeds = [seed for first, _, last in ranges for seed in range(int(first), int(last or first) + 1)]
    done = _seeds_of(file)["seeds"] if file is not None else []
    return [seed for seed in seeds if seed not in done]


def add_seed(file: Path, title: str, seed: int, rows: dict[str, dict[str, float]], about: Record | None = None) -> None:
    """Add the scores of one seed to a file with a score per seed, where a seed counts once."""
    table = _seeds_of(file)
    table["title"] = table["title"] or title
    table["seeds"] += [seed] if seed not in table["seeds"] else []
    for name, scores in rows.items():
        row = table["rows"].setdefault(name, {key: score if key == "flops" else [] for key, score in scores.items()})
        for key, score in scores.items():
            if key != "flops" and len(row[key]) < len(table["seeds"]):
                row[key].append(score)
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, {**(about or {}), "tables": [table]})


def _seeds_of(file: Path) -> Record:
    empty: Record = {"title": "", "seeds": [], "rows": {}}
    return json.loads(file.read_text())["tables"][0] if file.exists() else empty


def record(run: Path, folder: Path) -> None:
    """Write results.json and rows.safetensors from the logits of a run folder; differences to its first bridge."""
    from modebridge.runs import RunFolder, find_recipe_of, main_rows, read_answers

    source = RunFolder(run, writes=False)
    recipe, seed = find_recipe_of(source)
    table = read_answers(source)
    main = main_rows(recipe, table)
    scored, roles = {row.name: row.scores for row in main}, {row.role: row.name for row in main}
    rows, known = {}, {}
    for name, one in scored.items():
        tempered = table.calibrated(one.members, threshold=one.threshold)
        rows[name] = per_image(tempered, table.test_labels)
        cost = {"flops": one.cost.relative_flops, "params": one.cost.relative_params}
        known[name] = cost | {"temperature": one.temperature, "ece": one.ece, "brier": one.brier}
    bridge, between = roles.get("bridge", roles["two"]), (roles["one"], roles["two"])
    beside = [{"title": f"{name} against {bridge}", "a": [name], "b": [bridge]} for name in scored if name != bridge]
    facts = json.loads((run / "results.json").read_text())
    about = {"title": recipe.about, "recipe": recipe.name, "seeds": 1, "seed": seed, "date": facts.get("made")}
    about |= {
        "hardware": facts.get("machine"),
        "versions": {"torch": facts.get("torch")},
        "ways_between": list(between),
    }
    folder.mkdir(parents=True, exist_ok=True)
    publish(folder, rows, known, about, beside)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 5) if isinstance(value, float) else value


def wrong_figures(folder: Path) -> list[str]:
    """The figures of results.json that numbers per image do not give."""
    published = json.loads((folder / "results.json").read_text())
    scores, differences = compute(read_rows(folder), tuple(published["ways_between"]), published["differences"])
    wrong = []
    for kind, computed in (("rows", scores), ("differences", differences)):
        if len(published[kind]) != len(computed):
            wrong.append(f"{folder.name}: {len(published[kind])} {kind}, but {len(computed)} in rows.safetensors")
        for said, found in zip(published[kind], computed, strict=False):
            for key, value in found.items():
                if key not in ("name", "title", "a", "b"):
                    # Shares are ratios of small differences.
                    tolerance = TOLERANCE * (10 if "way" in key else 1)
                    close = np.allclose(said[key], value, rtol=0, atol=tolerance, equal_nan=True)
                    wrong += [] if close else [f"{folder.name}: {found.get('name') or found['title']}: {key}"]
    return wrong


def tables(folder: Path) -> list[str]:
    """Rows, correspondence and differences of a folder as Markdown."""
    published = json.loads((folder / "results.json").read_text())
    titles = ["members", "FLOPs", "params", "ACC %", "NLL", "ECE", "Brier", "T", "gap closed: NLL", "ACC"]
    places = "mean_iou" in published["rows"][0]
    titles += ["mean IoU %", "gap closed: mean IoU"] if places else []
    lines = [f"| {' | '.join(titles)} |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    for row in published["rows"]:
        ways = [_share(row[key]) if key in row else "" for key in ("way_nll", "way_accuracy")]
        if places:
            ways += [f"{100 * row['mean_iou']:.2f}", _share(row["way_mean_iou"]) if "way_mean_iou" in row else ""]
        scores = [f"{100 * row['accuracy']:.2f}", *(f"{row[key]:.4f}" for key in ("nll", "ece", "brier"))]
        cost, temperature = [f"x{row['flops']:.2f}", f"x{row['params']:.2f}"], f"{row['temperature']:.3f}"
        lines.append(f"| {' | '.join([row['name'], *cost, *scores, temperature, *ways])} |")
    if published.get("correspondence"):
        lines += ["", "| bridge | imitates | R2 | KL |", "|---|---|---:|---:|"]
        lines += [
            f"| {one['bridge']} | {one['imitates']} | {one['r2']:.3f} | {one['kl']:.3f} |"
            for one in published["correspondence"]
        ]
    if published["differences"]:
        shares = {"ACC, points": "accuracy"} | ({"mean IoU, points": "mean_iou"} if places else {})
        lines += ["", f"| difference | NLL | {' | '.join(shares)} |", "|---|---:|" + "---:|" * len(shares)]
        for one in published["differences"]:
            points = [_signed([100 * x for x in one[key]], 2) for key in shares.values()]
            lines.append(f"| {' | '.join([one['title'], _signed(one['nll'], 4), *points])} |")
    return lines


def seed_tables(file: Path) -> list[str]:
    """Means over seeds, and differences to the paper's bridge and to two networks, as Markdown."""
    lines: list[str] = []
    for table in json.loads(file.read_text())["tables"]:
        rows = table["rows"]
        beside = [name for name in (BASELINE, "DE-2", "two networks") if name in rows]
        fit = table.get("training_accuracy")
        lines += [f"### {table['title']}, seeds {table['seeds'][0]} to {table['seeds'][-1]}", ""]
        lines += [f"Mode 0 is right on {100 * np.mean(fit):.1f} % of its training images.", ""] if fit else []
        lines += ["| beside mode 0 | FLOPs | ACC % | NLL |" + "".join(f" NLL minus {name} |" for name in beside)]
        lines += ["|---|---:|---:|---:|" + "---:|" * len(beside)]
        for name, row in rows.items():
            apart = ["" if name == other else _signed(difference(table, name, other), 4) for other in beside]
            cells = [
                name,
                f"x{row['flops']:.2f}",
                f"{100 * np.mean(row['accuracy']):.2f}",
                f"{np.mean(row['nll']):.4f}",
            ]
            lines.append(f"| {' | '.join([*cells, *apart])} |")
        lines.append("")
    return lines


def difference(table: Record, name: str, other: str, key: str = "nll") -> list[float]:
    """The mean difference over the seeds that both rows have, and its 95 % t interval (NaN for one seed)."""
    one, two = (
        dict(zip(table["rows"][row].get("seeds", table["seeds"]), table["rows"][row][key], strict=True))
        for row in (name, other)
    )
    values = np.array([one[seed] - two[seed] for seed in one if seed in two])
    mean, n = float(values.mean()), len(values)
    half = float(stdtrit(n - 1, 0.975) * values.std(ddof=1) / n**0.5) if n > 1 else float("nan")
    return [mean, mean - half, mean + half]


def _share(way: list[float]) -> str:
    value, low, high = (f"{100 * share:.0f}" for share in way)
    return f"{value} % [{low} to {high}]"


def _signed(numbers: list[float], digits: int) -> str:
    value, low, high = (f"{number:+.{digits}f}" for number in numbers)
    return f"{value} [{low} to {high}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="RUN")
    parser.add_argument("folder", type=Path, nargs="?")
    given = parser.parse_args()
    folder = given.folder
    if given.record is not None:
        record(given.record, folder)
    if folder is not None:
        files = sorted(folder.glob("*.json")) if not (folder / "rows.safetensors").exists() else []
        parts = [seed_tables(file) for file in files or [folder] if file.suffix == ".json"] or [tables(folder)]
        print("\n\n".join("\n".join(part) for part in parts))
        return
    folders = sorted(file.parent for file in RESULTS.glob("*/rows.safetensors"))
    wrong = [figure for folder in folders for figure in wrong_figures(folder)]
    print(
        "\n".join(wrong)
        or f"{len(folders)} folders: accuracy, NLL, mean IoU, shares and differences are what the rows give"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
