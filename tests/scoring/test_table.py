"""Any combination or cascade from kept logits: the same scores as by hand; thresholds from validation alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from modebridge.ensembles import ALL
from modebridge.errors import ModebridgeError
from modebridge.scoring import LogitTable, MemberCost, Row, dee

TWO = ["mode-0", "mode-1"]
BRIDGED = ["mode-0", "I-0-1-small"]


def table(n: int = 300, seed: int = 0, heads: int = 1) -> LogitTable:
    """Three modes whose mistakes are their own, bridges, and a network on a curve, which is only a target."""
    costs = {name: MemberCost(100.0, 1000) for name in ("mode-0", "mode-1", "mode-2")}
    costs["curve-0-1"] = MemberCost(100.0, 1000, usable=False)
    costs["I-0-1-small"] = MemberCost(5.0, 80, ("mode-0",))
    costs["II-0-1-small"] = MemberCost(6.0, 100, ("mode-0", "mode-1"))
    generator = torch.Generator().manual_seed(seed)
    found = drawn(costs, 4, n, 1.6, generator, heads)
    for logits in (found.valid, found.test):
        noise = torch.randn(logits["mode-0"].shape, generator=generator)
        logits["I-0-1-small"] = logits["mode-0"] + 0.4 * noise
    return found


def drawn(
    costs: dict[str, MemberCost], classes: int, n: int, noise: float, generator: torch.Generator, heads: int = 1
) -> LogitTable:
    """Logits of members, each wrong in its own way."""
    shape = (n, classes) if heads == 1 else (heads, n, classes)
    labels = [torch.randint(classes, (n,), generator=generator) for _ in range(2)]
    logits = [
        {name: 2 * F.one_hot(truth, classes) + noise * torch.randn(shape, generator=generator) for name in costs}
        for truth in labels
    ]
    return LogitTable(*logits, *labels, costs)


def test_costs_count_what_runs() -> None:
    found = table()

    def relative(*members: str) -> tuple[float, float]:
        cost = found.cost(members)
        return cost.relative_flops, cost.relative_params

    assert relative("mode-0") == (1, 1)
    assert relative("mode-0", "I-0-1-small") == (1.05, 1.08)
    # A mode that is read runs even where its own prediction is not used.
    assert relative("I-0-1-small") == (1.05, 1.08)
    assert relative("mode-0", "II-0-1-small") == (2.06, 2.1)
    only = replace(found, costs={"I-0-1-small": found.costs["I-0-1-small"]})
    with pytest.raises(ModebridgeError, match="include a mode as unit of cost"):
        only.cost(["I-0-1-small"])


def test_scores_by_hand() -> None:
    found = table()
    scored = found.score(BRIDGED, intervals=True)
    mean = (found.test["mode-0"].double().softmax(1) + found.test["I-0-1-small"].double().softmax(1)) / 2
    labels = found.test_labels
    assert scored.n == 300
    assert scored.accuracy == pytest.approx(float((mean.argmax(1) == labels).double().mean()))
    assert scored.raw_nll == pytest.approx(float(-mean[torch.arange(len(labels)), labels].log().mean()), abs=1e-9)
    assert scored.temperature is not None
    tempered = (mean.log() / scored.temperature).softmax(1)
    assert scored.nll == pytest.approx(float(-tempered[torch.arange(len(labels)), labels].log().mean()), abs=1e-8)
    assert scored.intervals["nll"][0] < scored.nll < scored.intervals["nll"][1]
    assert found.score(BRIDGED).intervals == {}
    with pytest.raises(ModebridgeError, match="did you mean mode-"):
        found.score(["mode-9"])
    with pytest.raises(ModebridgeError, match="to have members"):
        found.score([])


@pytest.mark.parametrize("heads", [1, 2])
def test_the_ends_of_a_cascade_are_the_first_member_and_all_of_them(heads: int) -> None:
    found = table(heads=heads)
    one, two = found.score(TWO[:1]), found.score(TWO)
    nobody, everybody = (found.score(TWO, threshold=threshold) for threshold in (0.0, ALL))
    for end, same in ((nobody, one), (everybody, two)):
        for name in ("accuracy", "nll", "ece", "brier", "raw_nll", "raw_ece", "raw_brier"):
            assert getattr(end, name) == getattr(same, name)
        assert end.cost.relative_flops == same.cost.relative_flops
    assert (nobody.deferred_share, everybody.deferred_share) == (0.0, 1.0)
    # Whether or not the second ever runs, its weights have to be there.
    assert nobody.cost.relative_params == everybody.cost.relative_params == 2.0
    assert torch.equal(found.calibrated(TWO, threshold=0.0), found.calibrated(TWO[:1]))


def test_a_cascade_by_hand() -> None:
    found = table()
    members = ["mode-0", "mode-1", "I-0-1-small"]
    threshold = found.threshold(members, 1.4)
    scored = found.score(members, threshold=threshold, intervals=True)
    alone, whole = found.calibrated(members[:1]), found.calibrated(members)
    unsure = [k for k in range(len(alone)) if float(alone[k].max()) < threshold]
    assert 0.1 < scored.deferred_share == len(unsure) / len(alone) < 0.9
    # 1 + share x (the cost of the rest), of the test images that really needed it.
    assert scored.cost.relative_flops == pytest.approx(1 + len(unsure) / len(alone) * 1.05, abs=1e-12)
    by_hand = [(whole if k in unsure else alone)[k] for k in range(len(alone))]
    losses = [-math.log(float(row[label]) + 1e-12) for row, label in zip(by_hand, found.test_labels, strict=True)]
    assert scored.nll == pytest.approx(sum(losses) / len(losses), abs=1e-12)
    right = [int(row.argmax()) == int(label) for row, label in zip(by_hand, found.test_labels, strict=True)]
    assert scored.accuracy == sum(right) / len(right)


def test_a_threshold_is_of_validation_data_alone_and_keeps_to_its_cost_there() -> None:
    found = table()
    elsewhere = found.on({k: v.flip(0) * 7 for k, v in found.test.items()}, found.test_labels)
    costs = (1.0, 1.1, 1.25, 1.5, 1.9, 2.0)
    thresholds = [found.threshold(TWO, cost) for cost in costs]
    assert thresholds == [elsewhere.threshold(TWO, cost) for cost in costs] == sorted(thresholds)
    assert thresholds[-1] == ALL
    top = found.calibrated(TWO[:1], "valid").amax(dim=-1)
    shares = [float((top < threshold).double().mean()) for threshold in thresholds]
    assert shares == pytest.approx([0.0, 0.1, 0.25, 0.5, 0.9, 1.0], abs=1 / len(top))
    with pytest.raises(ModebridgeError, match=r"that of the first network, but got 0\.9"):
        found.threshold(TWO, 0.9)


def test_one_member_and_one_image() -> None:
    found = table()
    alone = found.score(TWO[:1], threshold=found.threshold(TWO[:1], 1.2))
    assert (alone.nll, alone.cost.relative_flops) == (found.score(TWO[:1]).nll, 1.0)
    tiny = table(n=1)
    with pytest.warns(UserWarning, match="the temperature stays 1"):
        scored = tiny.score(TWO, threshold=tiny.threshold(TWO, 1.5))
    assert scored.cost.relative_flops == 1 + scored.deferred_share


def test_rows_are_compared_with_deep_ensembles() -> None:
    found = table(n=2000)
    rows = [
        Row("DE-1", ("mode-0",), "deep ensemble", role="one"),
        Row("DE-2", tuple(TWO), "deep ensemble", role="two"),
        Row("DE-1 + 1 bridge I", tuple(BRIDGED), "bridges", role="bridge"),
        Row("DE-2 cascade", tuple(TWO), "cascade", average_cost=1.3),
    ]
    one, two, bridge, cascade = (row.scores for row in found.score_rows(rows))
    levels = [one.nll, two.nll]
    assert [scored.dee for scored in (one, two, bridge)] == [1.0, 2.0, dee(bridge.nll, levels)]
    assert cascade == replace(
        found.score(TWO, threshold=found.threshold(TWO, 1.3), intervals=True),
        dee=cascade.dee,
        intervals=cascade.intervals,
    )
    assert one.cost.relative_flops < cascade.cost.relative_flops < 1.5
    assert "gain" not in one.intervals
    assert two.intervals["gain"][0] < one.nll - two.nll < two.intervals["gain"][1]
    # Paired: the same images for both rows, so the interval is much shorter than those of the rows on their own.
    width = bridge.intervals["gain"][1] - bridge.intervals["gain"][0]
    assert width < 0.3 * (bridge.intervals["nll"][1] - bridge.intervals["nll"][0])
    assert [("closed" in scored.intervals) for scored in (one, two, bridge, cascade)] == [False, False, True, True]
    frequency = found.test_labels.bincount() / 2000
    assert found.guess_nll == pytest.approx(float(-(frequency * frequency.log()).sum()))
