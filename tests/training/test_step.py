"""One step by hand, and networks that draw by themselves: the same alone, together, stopped or on any thread."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from modebridge.curves import start_curve
from modebridge.objectives import CurveObjective
from modebridge.training import Checkpoints, Engine, TrainConfig, fit_modes
from modebridge.training.step import FlatLayout, Step, make_forward, sgd_
from tests.scenarios import EXACT, fit_mode, loader, modes, on_threads, quick, tiny_net
from tests.training.test_progress import FITS, Fragile, StopError, batches, noisy, two_bridges, two_modes


def test_the_authors_nesterov_steps_along_gradient_plus_buffer():
    flat, momentum = torch.tensor([1.0]), torch.tensor([2.0])
    sgd_(flat, momentum, torch.tensor([0.5]), 0.1, TrainConfig(epochs=1, nesterov="authors"))
    assert float(momentum) == pytest.approx(0.9 * 2.0 + 0.5)
    assert float(flat) == pytest.approx(1.0 - 0.1 * (0.5 + 2.3))


@pytest.mark.slow
def test_compiled_losses_are_the_same():
    """Traced whole, without a break, and run by the tracer itself: what a GPU compiles is what a CPU computes."""
    net, (a, b) = tiny_net(0, "bn", EXACT), modes(2, "bn", EXACT)
    for pins in (1, 2):
        curve = start_curve(net, a, b, pins=pins)
        objective = CurveObjective(net, curve, loader(dtype=EXACT))
        state = objective.start()["curve"]
        layout = FlatLayout(state.params)
        forward = make_forward(objective.program("curve"), layout)
        traced = torch.compile(forward, backend="eager", fullgraph=True)
        steps = [Step(state, layout, f, quick(), Engine()) for f in (forward, traced)]
        batch = next(iter(loader(dtype=EXACT)))
        prepared = objective.prepare(batch, objective.draw(8, torch.Generator().manual_seed(0)))["curve"]
        for _ in range(2):
            one, two = (step(prepared, 0.1) for step in steps)
            torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fit", FITS)
def test_the_seed_decides_and_nothing_else(fit):
    torch.manual_seed(1)
    first = fit(seed=3)
    torch.manual_seed(2)
    torch.rand(7)
    assert fit(seed=3) == first
    assert set(fit(seed=4)).isdisjoint(first)


def test_together_is_one_by_one():
    together = two_modes()
    for k in range(2):
        assert fit_mode(noisy(k), Fragile(batches(k)), config=quick(seed=k)).id == together[k]
    apart = [two_bridges(names=[name], epochs=6)[0] for name in ("one", "two")]
    assert apart == two_bridges(epochs=6), "each of them its own best epoch"


def test_threads_do_not_disturb_each_other():
    whole, nets = two_modes(), [noisy(k) for k in range(2)]  # made here: building them draws

    def job():
        loaders = [Fragile(batches(k)) for k in range(2)]
        return [mode.id for mode in fit_modes(nets, loaders, config=quick())]

    assert on_threads(job, 4) == [whole] * 4


def test_noise_that_begins_in_a_later_epoch_is_seen():
    class Later(nn.Module):
        """Drops nothing in its first epoch (four steps), as schedules of stochastic depth do."""

        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = nn.Linear(4, 3), [0]

        def forward(self, x: Tensor) -> Tensor:
            self.calls[0] += self.training
            return self.linear(nn.functional.dropout(x, 0.5) if self.calls[0] > 4 else x)

    found = []
    for seed in (1, 2):
        torch.manual_seed(0)
        net = Later()
        torch.manual_seed(seed)
        found.append(fit_mode(net, batches(), config=quick(3)).id)
    assert found[0] == found[1]


def test_validation_draws_from_the_seed_too_and_the_callers_generator_is_left_alone():
    found = []
    for seed in (1, 2):
        net = noisy(0, always=True)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(fit_mode(net, batches(), config=replace(quick(4), keep="best"), valid=batches(1)).id)
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu(compiled, tmp_path):
    """The same promises, eager and compiled in one graph with other networks, and alone."""
    base = quick(3, device="cuda", precision="fp32", compile=compiled)

    def fit(which, lives=-1, checkpoints=None):
        data = [Fragile(batches(k), lives) for k in which]
        nets = [noisy(k) for k in which]
        before = torch.cuda.get_rng_state()  # after the networks: drawing their weights moves it
        found = fit_modes(nets, data, config=replace(base, checkpoints=checkpoints), seeds=list(which))
        assert torch.equal(torch.cuda.get_rng_state(), before)
        return [mode.params for mode in found]

    whole = fit([0, 1])
    torch.rand(3, device="cuda")
    with pytest.raises(StopError):
        fit([0, 1], 6, Checkpoints(tmp_path / "c", every=0.0))
    others = [fit([0, 1]), [*fit([0]), *fit([1])], fit([0, 1], -1, Checkpoints(tmp_path / "c", every=0.0))]
    for other in others:
        for mine, theirs in zip(whole, other, strict=True):
            for name, tensor in mine.items():
                torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=1e-6)
    plain = fit_modes([noisy(0)], [batches(0)], config=base, seeds=[5])[0].params
    assert not torch.allclose(plain["head.weight"], whole[0]["head.weight"], atol=1e-4), "the seed is used"
