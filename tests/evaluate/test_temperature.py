"""The fitted temperature against scipy's Nelder-Mead, which the authors use."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize

from modebridge.ensembles import fit_temperature, scale
from modebridge.evaluate import nll


@pytest.mark.parametrize("sharpness", [0.4, 1.0, 3.0])
@pytest.mark.parametrize(("n", "k", "seed"), [(50, 2, 0), (400, 10, 1), (300, 100, 2)])
def test_is_nelder_mead_s(n, k, seed, sharpness):
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator).squeeze(1)
    # A mean of two members, as in an ensemble, too sharp or too flat by a known factor.
    other = logits + 0.3 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    mean = torch.stack([logits * sharpness, other * sharpness]).softmax(dim=-1).mean(dim=0)

    def loss(x):
        return nll(scale(mean, float(x[0])), labels) if x[0] > 0 else math.inf

    known = minimize(loss, [1.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
    found = fit_temperature(mean, labels)
    assert found == pytest.approx(float(known.x[0]), rel=1e-4)
    assert loss([found]) <= known.fun + 1e-12
    assert loss([found]) <= nll(mean, labels) + 1e-9
