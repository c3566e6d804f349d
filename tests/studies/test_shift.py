"""The study shift on a tiny run: its rows against the library's own scores, its files, the page, and other kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from sklearn.metrics import roc_auc_score

from modebridge.ensembles import average, fit_temperature, scale
from modebridge.errors import ModebridgeError
from modebridge.members import KINDS, ModeMember, members_of
from modebridge.recipes.shifted import CORRUPTED, SEVERITIES
from modebridge.recipes.user_code import load_file
from modebridge.runs import Run, RunFolder
from modebridge.scoring import nll
from modebridge.studies import run_study
from modebridge.studies.shift import shifted_tables
from tests.runs.damaging import everything
from tests.runs.small import tiny


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One figure is enough for all tests."""
    monkeypatch.setattr("modebridge.studies.shift.lines_figure", lambda *given, **options: "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return RunFolder(everything(tmp_path_factory.mktemp("shift") / "run"))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@torch.no_grad()
def test_scores_are_those_of_the_networks_on_corrupted_images(folder: RunFolder) -> None:
    """Straight through the networks, in another order and in full precision."""
    run = Run(tiny(), folder=folder)
    data = run.setting.data
    part = run_study("shift", run)
    nets = [run.load(ModeMember(k)) for k in range(2)]
    valid, test = data.splits.valid, data.splits.test
    images: dict[str, list[torch.Tensor]] = {}
    for table, batch in run.setting.shifted.batches(CORRUPTED, torch.device("cpu")):
        images.setdefault(table, []).append(batch)

    def predicted(images: torch.Tensor) -> torch.Tensor:
        net = run.setting.net.eval()
        logits = [torch.func.functional_call(net, dict(mode.state), (images,)) for mode in nets]
        return average([one.double().softmax(dim=-1) for one in logits])

    temperature = fit_temperature(predicted(valid.images), valid.labels)
    of_two = {table.title: table.rows["two networks"] for table in part.tables}
    tables = {table: predicted(torch.cat(batches)) for table, batches in images.items()}
    levels = {table: nll(scale(one, temperature), test.labels) for table, one in tables.items()}
    for severity in SEVERITIES:
        wanted = fmean(level for table, level in levels.items() if table.endswith(f"-{severity}"))
        kept = of_two["NLL by severity, digits"][str(severity)].mean
        assert kept == pytest.approx(wanted, abs=2e-4), "half precision costs no more"
    assert of_two["NLL by severity, digits"]["mean"].mean == pytest.approx(fmean(levels.values()), abs=2e-4)
    other = run.setting.shifted.images("inverted")
    tops = [scale(predicted(images), temperature).amax(dim=1) for images in (test.images, other)]
    auroc = roc_auc_score([1] * len(tops[0]) + [0] * len(tops[1]), torch.cat(tops).numpy())
    assert of_two["AUROC against other images, digits"]["inverted"].mean == pytest.approx(float(auroc), abs=1e-3)


@pytest.mark.usefixtures("undrawn")
def test_members_of_several_heads_and_of_other_kinds(folder: RunFolder, tmp_path: Path) -> None:
    before = list(KINDS)
    file = tmp_path / "guess.py"
    file.write_text((Path(__file__).parents[1] / "members" / "guess_recipe.txt").read_text())
    try:
        load_file(file)
        recipe = replace(tiny(), members_file=str(file))
        run = Run(recipe, folder=folder)
        guess = next(member for member in members_of(recipe) if member.name == "guess")
        tables = shifted_tables(run, [ModeMember(0), guess], ["scrambled"])
        assert tables["blur-3"].test["guess"].shape == (2, 60, 10)
        wanted = (torch.eye(10)[[2, 7]] * 3).softmax(dim=-1).mean(dim=0)
        for one in tables.values():
            table = one.probabilities(["guess"])
            torch.testing.assert_close(table, wanted.double().expand_as(table), atol=1e-6, rtol=0)
        table = run_study("shift", run, ["scrambled"]).tables[-1]
        assert table.rows["a guess"]["scrambled"].mean == 0.5, "it is as sure of anything"
    finally:
        KINDS[:] = before


def test_what_is_refused(folder: RunFolder) -> None:
    with pytest.raises(ModebridgeError, match="Expected --ood only with the study shift, but got it with type1"):
        run_study("type1", Run(tiny(), folder=folder), ["inverted"])
