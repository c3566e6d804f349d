"""Our scores on the same probabilities as torchmetrics' and torch-uncertainty's own.

How theirs are defined, where that leaves a choice: torchmetrics' accuracy counts all samples alike (micro); it has no
Brier score and no NLL of classes, so the sum over classes of its mean squared error and the log of its perplexity
stand for them. torch-uncertainty's Brier is summed over classes and its NLL has no floor under the probability (ours:
1e-12). Both ECEs are l1, in 15 equal bins, closed above.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch_uncertainty.metrics import BrierScore, CalibrationError, CategoricalNLL
from torchmetrics import MeanSquaredError
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError
from torchmetrics.text import Perplexity

from modebridge.scoring import accuracy, brier, ece, nll

SIZES = [(n, k, seed) for n in (1, 1000) for k in (2, 10) for seed in range(3)]


def sample(n, k, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator)
    return logits.softmax(1), torch.multinomial((0.7 * logits).softmax(1), 1, generator=generator)[:, 0]


def torchmetrics_scores(p, y):
    k = p.shape[1]
    errors = MeanSquaredError(num_outputs=k)(p, torch.nn.functional.one_hot(y, k).float())
    return {
        accuracy: MulticlassAccuracy(k, average="micro")(p, y),
        nll: math.log(Perplexity()(p.log()[None], y[None])),
        brier: errors.sum(),
        ece: MulticlassCalibrationError(k, n_bins=15, norm="l1")(p, y),
    }


def torch_uncertainty_scores(p, y):
    k = p.shape[1]
    return {
        nll: CategoricalNLL()(p, y),
        brier: BrierScore(num_classes=k)(p, y),
        ece: CalibrationError(task="multiclass", num_bins=15, num_classes=k)(p, y),
    }


@pytest.mark.parametrize(("n", "k", "seed"), SIZES)
@pytest.mark.parametrize("library", [torchmetrics_scores, torch_uncertainty_scores])
def test_scores_are_theirs(library, n, k, seed):
    p, y = sample(n, k, seed)
    for score, theirs in library(p, y).items():
        assert score(p, y) == pytest.approx(float(theirs), abs=1e-5), score.__name__


def test_a_certain_mistake_is_infinite_there_and_floored_here():
    p, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert float(CategoricalNLL()(p, y)) == math.inf
    assert nll(p, y) == pytest.approx(12 * math.log(10))
