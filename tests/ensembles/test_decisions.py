"""Sets, answers and cascades: independent references, closed forms, and what they promise, by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mapie.classification import SplitConformalClassifier
from scipy.stats import binom
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor, nn
from torch_uncertainty.post_processing import ConformalClsAPS, ConformalClsRAPS

from modebridge.ensembles import AnswerRule, Ensemble, SetRule, cascade_threshold
from modebridge.ensembles.decisions import FREE, PENALTY, THRESHOLDS, class_scores
from modebridge.errors import ModebridgeError
from modebridge.files import load
from modebridge.modes import Mode


def drawn(n: int, seed: int, *, classes: int = 10, scale: float = 6.0, sharpness: float = 1.3) -> tuple[Tensor, Tensor]:
    """Probabilities that are overconfident by a factor, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return (logits * sharpness).softmax(-1), labels


class Fixed(ClassifierMixin, BaseEstimator):
    """A classifier of scikit-learn whose inputs are the probabilities."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> Fixed:
        self.classes_ = np.arange(x.shape[1])
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return x

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x.argmax(1)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("n", [21, 40, 100, 333])
def test_lac_is_that_of_mapie(coverage: float, n: int) -> None:
    (p, y), (new, _) = drawn(n, 0, classes=3), drawn(200, 1, classes=3)
    fixed = Fixed().fit(p.numpy(), y.numpy())
    reference = SplitConformalClassifier(fixed, confidence_level=coverage, conformity_score="lac", prefit=True)
    sets = reference.conformalize(p.numpy(), y.numpy()).predict_set(new.numpy())[1][:, :, 0]
    top = np.eye(3, dtype=bool)[new.argmax(1)]
    assert np.array_equal(SetRule.fit(p, y, coverage, "lac")(new).numpy(), sets | top)


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_scores_are_those_of_torch_uncertainty(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p, _ = drawn(50, 2, classes=20, scale=1.0)
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.ones(*shape))  # its randomization at its end
    raps = ConformalClsRAPS(0.1, penalty=PENALTY, regularization_rank=FREE)
    reference = ConformalClsAPS(0.1) if method == "aps" else raps
    # Theirs is the mass of the more probable classes, ours minus that of the others.
    torch.testing.assert_close(class_scores(p, method) + 1, reference._calculate_all_labels(p), rtol=0, atol=1e-14)


@pytest.mark.parametrize("method", ["aps", "raps", "lac"])
def test_sets_cover_what_they_promise(method: str) -> None:
    """1,000 splits: the mean coverage is in [promise, promise + 1 / (n + 1)], up to four standard errors."""
    new, truth = drawn(2000, 0, scale=3.0)
    covered = []
    for split in range(1000):
        rule = SetRule.fit(*drawn(99, split + 1, scale=3.0), 0.9, method)
        covered.append(float(rule(new).gather(1, truth[:, None]).double().mean()))
    error = 4 * float(np.std(covered)) / 1000**0.5 + 4 * (0.9 * 0.1 / 2000) ** 0.5
    assert 0.9 - error < np.mean(covered) < 0.9 + 1 / 100 + error


def test_every_class_is_covered_if_asked() -> None:
    (p, y), (new, truth) = drawn(4000, 0, scale=2.0), drawn(20_000, 1, scale=2.0)
    p[:, 0], new[:, 0] = p[:, 0] / 5, new[:, 0] / 5  # a class that is neglected
    marginal, each = (SetRule.fit(p, y, 0.9, "lac", per_class=per_class)(new) for per_class in (False, True))
    of_class = truth == 0
    assert float(marginal[of_class, 0].double().mean()) < 0.8
    assert float(each[of_class, 0].double().mean()) > 0.86


@pytest.mark.parametrize("method", ["aps", "raps", "lac"])
def test_ties_do_not_depend_on_the_order_of_classes(method: str) -> None:
    table = torch.tensor([[0.4, 0.2, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25], [1 - 3e-12, 1e-12, 1e-12, 1e-12]])
    scores = class_scores(table, method)
    assert torch.equal(class_scores(table.flip(1), method), scores.flip(1))
    assert all(len(set(row[1:].tolist())) == 1 for row in scores)


def test_ties_and_smallest_sizes() -> None:
    flat = torch.full((9, 4), 0.25)
    rule = SetRule.fit(flat, torch.arange(9) % 4, 0.9, "lac")
    assert rule.limits == pytest.approx([-0.25], rel=1e-4)
    assert rule(flat[:1]).all()
    assert rule(flat[:0]).shape == (0, 4)
    one = torch.ones(1, 1)
    assert SetRule.fit(one, torch.tensor([0]), 0.5)(one).all()
    sure = torch.tensor([[0.9, 0.1]] * 9)
    assert SetRule.fit(sure, torch.zeros(9, dtype=torch.long), 0.9)(sure).tolist() == [[True, False]] * 9


@pytest.mark.parametrize(
    ("n", "options", "sentence"),
    [
        (8, {"coverage": 0.9}, "at least 9 validation images for a coverage of 0.9, but got 8"),
        (0, {"coverage": 0.9}, "but got no sample"),
        (99, {"coverage": 0.9, "per_class": True}, r"at least 9 validation images of class \d for"),
        (99, {"coverage": 1.0}, "coverage to be between 0 and 1, but got 1.0; for 90 percent"),
        (99, {"coverage": 0.9, "method": "best"}, "method to be aps, raps or lac, but got 'best'"),
    ],
)
def test_sets_refused(n: int, options: dict, sentence: str) -> None:
    with pytest.raises(ModebridgeError, match=sentence):
        SetRule.fit(*drawn(n, 0), **options)


def noisy(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """With a few wrong labels, also of confident images."""
    p, y = drawn(n, seed, scale=12.0, sharpness=1.0)
    wrong = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.02
    return p, torch.where(wrong, (y + 1) % 10, y)


def errors_at(threshold: float, p: Tensor, y: Tensor) -> tuple[int, int]:
    answered = p.amax(1) >= threshold
    return int((p.argmax(1) != y)[answered].sum()), int(answered.sum())


def test_answers_by_hand() -> None:
    """The threshold is the lowest of two runs of passed tests, recomputed one by one."""
    p, y = drawn(600, 3)
    rule = AnswerRule.fit(p, y, risk=0.05)
    passing = []
    for start, error in ((math.ceil(math.log(0.049) / math.log(0.95)), 0.049), (300, 0.001)):
        for threshold in THRESHOLDS.tolist():
            wrong, answered = errors_at(threshold, p, y)
            if answered < start:
                continue
            if binom.cdf(wrong, answered, 0.05) > error:
                break
            passing.append(threshold)
    assert rule.threshold == min(passing)
    assert rule.answered == errors_at(rule.threshold, p, y)[1] / 600
    assert rule(p).sum() == rule.answered * 600


@pytest.mark.parametrize("draw", [drawn, noisy])
def test_answers_keep_their_risk(draw: Callable[[int, int], tuple[Tensor, Tensor]]) -> None:
    """The risk is exceeded in at most 5 % of 500 splits, up to three standard errors, and most images answered."""
    new = draw(50_000, 0)
    exceeded, shares = 0, []
    for split in range(500):
        try:
            wrong, answered = errors_at(AnswerRule.fit(*draw(1000, split + 1), risk=0.05).threshold, *new)
        except ModebridgeError:
            wrong = answered = 0
        shares.append(answered / 50_000)
        exceeded += wrong > 0.05 * answered
    assert np.mean(shares) > 0.3
    assert exceeded <= 25 + 3 * (500 * 0.05 * 0.95) ** 0.5


def test_no_threshold() -> None:
    p, y = drawn(300, 0, scale=0.1)
    with pytest.raises(ModebridgeError, match=r"but the 300 validation images \(\d+ wrong\) show none; allow a higher"):
        AnswerRule.fit(p, y, risk=0.01)
    for risk, fix in ((5, "for 5 percent, write 0.05"), (0, "for 5 percent, write 0.05"), (2.0, "percent, write 0.02")):
        with pytest.raises(ModebridgeError, match=f"risk to be between 0 and 1, but got {risk}; .*{fix}"):
            AnswerRule.fit(p, y, risk=risk)
    with pytest.raises(ModebridgeError, match="at least 301 right answers in a row"):
        AnswerRule.fit(torch.tensor([[0.9, 0.1]] * 300), torch.zeros(300, dtype=torch.long), risk=0.01)
    all_right = AnswerRule.fit(torch.tensor([[0.9, 0.1]] * 301), torch.zeros(301, dtype=torch.long), risk=0.01)
    assert (all_right.threshold, all_right.answered) == (0.0, 1.0)


def pair(n: int, seed: int) -> SimpleNamespace:
    """A first network, the mean of two, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    first, second = ((logits + torch.randn(n, 5, generator=generator)).softmax(-1) for _ in range(2))
    return SimpleNamespace(first=first, full=(first + second) / 2, labels=labels)


def test_cascades_keep_their_loss() -> None:
    new = pair(50_000, 0)
    right, exceeded, thresholds = new.full.argmax(1) == new.labels, 0, []
    for split in range(500):
        valid = pair(600, split + 1)
        thresholds.append(cascade_threshold(valid.first, valid.full, valid.labels, max_loss=0.02))
        alone = new.first.amax(1) >= thresholds[-1]
        exceeded += float((alone & right & (new.first.argmax(1) != new.labels)).double().mean()) > 0.02
    assert exceeded <= 25 + 3 * (500 * 0.05 * 0.95) ** 0.5
    assert 0.3 < np.mean(thresholds) < 0.99  # neither everything nor nothing is deferred


def test_a_cascade_needs_images() -> None:
    valid = pair(100, 0)
    with pytest.raises(ModebridgeError, match=r"100 validation images cannot show that \(it takes 1497"):
        cascade_threshold(valid.first, valid.full, valid.labels, max_loss=0.002)


def trained() -> tuple[Ensemble, list[tuple[Tensor, Tensor]]]:
    """Two random networks and data on which they are often wrong."""
    torch.manual_seed(0)
    nets = [nn.Linear(6, 3) for _ in range(2)]
    images = 3 * torch.rand(300, 6)
    labels = torch.multinomial((nets[0](images) + nets[1](images)).softmax(-1), 1)[:, 0]
    modes = [Mode.from_module(net) for net in nets]
    return Ensemble(nets[0], modes), [(images[:200], labels[:200]), (images[200:], labels[200:])]


def test_an_ensemble_decides_by_its_calibrated_probabilities(tmp_path: Path) -> None:
    ensemble, valid = trained()
    images, labels = (torch.cat(parts) for parts in zip(*valid, strict=True))
    with pytest.raises(ModebridgeError, match=r"sets to be fitted, but they are not; call conformal\(valid"):
        ensemble.predict_sets(images)
    assert (ensemble.predict(images) >= 0).all()
    ensemble.calibrate(valid).conformal(valid, 0.8, "lac").abstain(valid, risk=0.25)
    table = ensemble.predict_proba(images)
    assert torch.equal(ensemble.predict_sets(images), SetRule.fit(table, labels, 0.8, "lac")(table))
    abstained = table.amax(1) < AnswerRule.fit(table, labels, 0.25).threshold
    assert 0 < abstained.sum() < 300
    assert torch.equal(ensemble.predict(images), table.argmax(1).masked_fill(abstained, -1))
    ensemble.save(tmp_path / "saved")
    again = load(tmp_path / "saved", net=nn.Linear(6, 3))
    assert (again.sets, again.answers) == (ensemble.sets, ensemble.answers)
    assert torch.equal(again.predict_sets(images), ensemble.predict_sets(images))
    assert torch.equal(ensemble.predict(images[:2] * math.nan), torch.tensor([-1, -1]))
    again.load_state_dict(again.state_dict())
    assert again.sets is again.answers is ensemble.calibrate(valid).sets is None
