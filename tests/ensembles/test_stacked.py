"""A bridged ensemble inside torch-uncertainty's own routine: the same scores as ours."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader
from torch_uncertainty.routines import ClassificationRoutine

from modebridge.bridges import mode_target
from modebridge.curves import start_curve
from modebridge.ensembles import BridgedEnsemble, Stacked, scale
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import Tapped
from modebridge.scoring import evaluate
from modebridge.scoring.scores import nll
from modebridge.training import fit_bridges, plan_bridge
from tests.scenarios import blobs, loader, modes, quick, tiny_net
from tests.their_trainer import pairs, quiet, trainer


@pytest.fixture(scope="module")
def ensemble():
    net, ends = tiny_net(), modes(2)
    curve = start_curve(net, *ends)
    plans = {kind: plan_bridge(net, curve, blobs(4).images, kind=kind) for kind in ("I", "II")}
    bridges = fit_bridges(net, plans, loader(), config=quick(1))
    return BridgedEnsemble(net, ends, list(bridges.values())).calibrate(loader(60, seed=5))


@pytest.mark.parametrize("n", [1, 7])
def test_members_one_below_the_other(ensemble, n):
    images = blobs(n).images
    stacked = ensemble.stacked()
    rows = stacked(images)
    assert rows.shape == (4 * n, 3)
    assert stacked.num_estimators == len(ensemble) == 4
    members = ensemble.members(images)
    for m in range(4):
        torch.testing.assert_close(rows[m * n : (m + 1) * n].softmax(-1), members[m])
    torch.testing.assert_close(rows.logsumexp(-1), torch.zeros(4 * n), atol=1e-6, rtol=0)
    one = ensemble.stacked(calibrated=True)
    assert one.num_estimators == 1
    torch.testing.assert_close(one(images), ensemble(images).log())
    torch.testing.assert_close(one(images).softmax(-1), scale(members.mean(0), ensemble.temperature))


@torch.no_grad()
def test_every_head_of_a_bridge_is_a_member():
    """In the rows, and in the mean that is evaluated."""
    net, ends, data = tiny_net(), modes(2), loader(12)
    targets = [mode_target(ends[1]), "labels", "labels"]
    bridge = plan_bridge(net, ends[0], blobs(4).images, target=targets).bridge
    headed, images = BridgedEnsemble(net, ends[:1], [bridge]), blobs(7).images
    assert headed.stacked().num_estimators == 4
    rows = headed.stacked()(images)
    assert rows.shape == (4 * 7, 3)
    tap = bridge.tap
    logits, features = Tapped(ends[0].load(net), [tap])(images)
    head_logits = [logits, *bridge.eval()(features[tap]).unbind(1)]
    torch.testing.assert_close(rows, torch.cat(head_logits).log_softmax(-1))
    (images, labels), *_ = list(data)
    logits, features = Tapped(ends[0].load(net), [tap])(images)
    mean = (logits.softmax(-1) + bridge(features[tap]).softmax(-1).sum(1)) / 4
    assert evaluate(headed, [(images, labels)]).raw_nll == pytest.approx(nll(mean, labels), abs=1e-6)


def test_no_temperature_of_members_gives_the_calibrated_mean(ensemble):
    """Why calibrated rows are one an image: the mean of tempered members is something else."""
    images = blobs(12).images
    temperature = float(ensemble.temperature)
    assert abs(temperature - 1) > 0.05
    tempered = (ensemble.stacked()(images) / temperature).softmax(-1).view(4, 12, 3).mean(0)
    assert float((tempered - ensemble(images)).abs().max()) > 1e-3


def test_probabilities_that_underflow_stay_finite():
    class Sure(torch.nn.Module):
        def __init__(self, k):
            super().__init__()
            self.logits = torch.nn.Parameter(torch.tensor([500.0, 0.0, k]))

        def forward(self, x):
            return self.logits.expand(len(x), -1)

    pair = BridgedEnsemble(Sure(0.0), [Mode.from_module(Sure(k)) for k in (0.0, 1.0)])
    rows = pair.stacked()(torch.zeros(2, 1))
    assert torch.isfinite(rows).all()
    torch.testing.assert_close(rows.softmax(-1), torch.tensor([1.0, 0, 0]).expand(4, 3), atol=1e-30, rtol=0)


def test_calibrated_rows_need_a_temperature(ensemble):
    plain = BridgedEnsemble(tiny_net(), modes(2))
    with pytest.raises(ModebridgeError, match="to be calibrated, but it has no fitted temperature"):
        plain.stacked(calibrated=True)
    with pytest.raises(ModebridgeError, match="no fitted temperature"):
        Stacked(plain, calibrated=True)


@quiet
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("n", [1, 50])
def test_torch_uncertainty_s_routine_gives_our_scores(ensemble, tmp_path, n, calibrated):
    """Over there: accuracy is micro, Brier is summed over classes, NLL has no floor, ECE is l1 in equal bins."""
    routine = ClassificationRoutine(
        model=ensemble.stacked(calibrated=calibrated),
        num_classes=3,
        is_ensemble=not calibrated,
        num_bins_calibration_error=15,
    )
    data = blobs(n, seed=9)
    (theirs,) = trainer(tmp_path).test(routine, DataLoader(pairs(data), batch_size=16), verbose=False)
    ours = evaluate(ensemble, [(data.images, data.labels)])
    assert theirs["test/cls/Acc"] == pytest.approx(ours.accuracy, abs=1e-5)
    assert theirs["test/cls/NLL"] == pytest.approx(ours.nll if calibrated else ours.raw_nll, abs=1e-5)
    assert theirs["test/cls/Brier"] == pytest.approx(ours.brier if calibrated else ours.raw_brier, abs=1e-5)
    assert theirs["test/cal/ECE"] == pytest.approx(ours.ece if calibrated else ours.raw_ece, abs=1e-5)
    assert ("test/ens_MI" in theirs) == (not calibrated)
