"""One contract for every curve, then what is special to each."""

import math
from functools import partial

import pytest
import scipy.stats
import torch
import torchvision.models
from hypothesis import given, settings, strategies as st
from torch.func import jacrev

from modebridge import trees
from modebridge.curves import Curve, bernstein, start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import initialise, run
from modebridge.objectives import CurveObjective
from modebridge.training import fit_curve
from tests.scenarios import EXACT, Vectors, blobs, loader, modes, on_threads, quick, tiny_net

PINS = (0, 1, 2, 5)
POSITIONS = [0.0, 0.1, 1 / 3, 0.5, 0.77, 1.0]


def random_tree(generator, dtype=torch.float64):
    return {
        "w": torch.randn(3, 2, generator=generator, dtype=dtype),
        "b": torch.randn(1, generator=generator, dtype=dtype),
    }


@pytest.fixture(params=PINS)
def curve(request):
    generator = torch.Generator().manual_seed(0)
    start, end = (Mode(random_tree(generator), {}) for _ in range(2))
    return Curve(start, end, tuple(random_tree(generator) for _ in range(request.param)))


def test_hits_its_ends_exactly(curve):
    for name in ("w", "b"):
        assert torch.equal(curve.point(0.0)[name], curve.start.params[name])
        assert torch.equal(curve.point(1.0)[name], curve.end.params[name])
    assert curve.at(0.0) is curve.start
    assert curve.at(1.0) is curve.end


def test_weights_sum_to_one(curve):
    for r in POSITIONS:
        assert math.isclose(sum(curve.weights(r)), 1.0, rel_tol=1e-12)


@pytest.mark.parametrize("r", [0.13, 0.41, 0.77])
def test_autodiff_by_r_is_the_difference_quotient(curve, r):
    h = 1e-6
    for name, tangent in jacrev(curve.point)(torch.tensor(r, dtype=torch.float64)).items():
        quotient = (curve.point(r + h)[name] - curve.point(r - h)[name]) / (2 * h)
        torch.testing.assert_close(tangent, quotient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("r", [-0.1, 1.0001, float("nan"), float("inf"), None, "0.5"])
def test_r_outside_is_refused(curve, r):
    for call in (curve.point, curve.at):
        with pytest.raises(ModebridgeError, match=r"r to be in \[0, 1\]"):
            call(r)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 8), st.floats(1e-6, 1) | st.just(0.0))
def test_bernstein_is_the_binomial_distribution(degree, r):
    assert bernstein(degree, r) == pytest.approx(scipy.stats.binom.pmf(range(degree + 1), degree, r), abs=1e-9)


def test_midpoint_start_is_the_straight_line():
    net, (a, b) = tiny_net(dtype=EXACT), modes(2, dtype=EXACT)
    curve = start_curve(net, a, b, pins=2)
    for r in (0.25, 0.5):
        expected = trees.combine([1 - r, r], [a.params, b.params])
        for name, tensor in curve.point(r).items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-12)


def test_random_start_is_the_same_on_any_thread():
    net, (a, b) = tiny_net(), modes(2)
    pins = on_threads(lambda: start_curve(net, a, b, pin_start="random").pins[0], 8)
    assert len({trees.fingerprint(pin) for pin in pins}) == 1


def test_random_start_reaches_every_parameter():
    """Class token, position embedding and attention's own projection have no `reset_parameters`."""
    torch.manual_seed(0)
    build = partial(torchvision.models.VisionTransformer, 16, 8, 1, 2, 16, 24, num_classes=3)
    net, other, new = build(), Mode.from_module(build()), build()
    with torch.no_grad():
        for parameter in net.parameters():  # as after training: nothing is at its start
            parameter.add_(0.1 * torch.randn_like(parameter))
    mode = Mode.from_module(net)
    one, same, next_seed = (start_curve(net, mode, other, pin_start="random", seed=s).pins[0] for s in (0, 0, 1))
    for name, own in net.named_parameters():
        assert not (one[name] == own).any(), name
        assert torch.equal(one[name], same[name])
        if own.dim() > 1:
            assert not torch.equal(one[name], next_seed[name]), name
            assert 0.2 < float(one[name].std() / own.detach().std()) < 8, name
    # A token that is still at zero is drawn too; a norm starts at one, as it always does.
    assert not new.class_token.any()
    fresh = start_curve(new, Mode.from_module(new), other, pin_start="random").pins[0]
    assert 0.01 < float(fresh["class_token"].std()) < 0.04
    assert bool((fresh["encoder.ln.weight"] == 1).all())


@pytest.mark.parametrize("norm", ["frn", "bn"])
def test_random_start_of_the_papers_networks_is_a_new_network(norm):
    """To the last bit: what is drawn for other networks must not move the draws of these."""
    a, b = modes(2, norm)
    pin = start_curve(tiny_net(5, norm), a, b, pin_start="random", seed=7).pins[0]
    again = tiny_net(6, norm)
    initialise(again, torch.Generator().manual_seed(7))
    assert trees.fingerprint(pin) == trees.fingerprint(dict(again.named_parameters()))


def test_bad_curves():
    net, (a, b) = tiny_net(), modes(2)
    for ends, options, message in [
        ((a, b), {"pin_start": "zero"}, "'midpoint' or 'random'"),
        ((a, b), {"pins": 0}, "pins to be at least 1"),
        ((a, a), {}, "the same weights twice"),
        ((a, Mode.from_module(Vectors())), {}, "the same architecture"),
        ((a, Mode({k: t.double() for k, t in b.params.items()}, {})), {}, r"float32 and torch\.float64"),
        ((net, b), {}, r"to get modes, but got ResNet; create one with Mode\.from_module"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            start_curve(net, *ends, **options)


def test_r_is_uniform():
    net, (a, b) = tiny_net(), modes(2)
    objective = CurveObjective(net, start_curve(net, a, b), loader())
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([objective.draw(8, generator)["r"] for _ in range(2000)])
    assert float(draws.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(draws.var()) == pytest.approx(1 / 12, abs=0.005)


def test_loss_at_r_and_gradient_in_the_pin_by_the_chain_rule():
    """d loss / d pin = 2 r (1 - r) * d loss / d theta, the weight of the pin in the point."""
    net, (a, b) = tiny_net(dtype=EXACT), modes(2, dtype=EXACT)
    curve = start_curve(net, a, b)
    objective = CurveObjective(net, curve, loader(dtype=EXACT))
    states, batch, r = objective.start(), next(iter(loader(dtype=EXACT))), 0.3
    for tensor in states["curve"].params.values():
        tensor.requires_grad_()
    prepared = objective.prepare(batch, {"r": torch.tensor(r, dtype=EXACT)})["curve"]
    loss = objective.program("curve")(states["curve"], prepared)
    point = {k: v.detach().clone().requires_grad_() for k, v in curve.point(r).items()}
    by_hand = torch.nn.functional.cross_entropy(run(net.train(), point, {}, batch[0]), batch[1])
    torch.testing.assert_close(loss, by_hand, rtol=0, atol=1e-12)
    loss.backward()
    by_hand.backward()
    for name, tensor in point.items():
        found = states["curve"].params[f"0:{name}"].grad
        torch.testing.assert_close(found, 2 * r * (1 - r) * tensor.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pins", [1, 2])
def test_training_moves_the_pins_and_nothing_else(pins):
    net, (a, b) = tiny_net(), modes(2)
    ids = a.id, b.id
    fitted = fit_curve(net, a, b, loader(), pins=pins, config=quick(3))
    begun = start_curve(net, a, b, pins=pins)
    assert (trees.fingerprint(a.params, a.buffers), trees.fingerprint(b.params, b.buffers)) == ids
    assert trees.fingerprint(*fitted.pins) != trees.fingerprint(*begun.pins)
    assert not any(t.requires_grad for pin in fitted.pins for t in pin.values())


def test_batch_norm_midpoint_has_its_own_statistics():
    net, (a, b) = tiny_net(0, "bn"), modes(2, "bn")
    raw = start_curve(net, a, b)
    with pytest.raises(ModebridgeError, match=r"statistics to be known at r = 0\.5"):
        raw.at(0.5)
    curve = raw.with_statistics(net, 0.5, loader())
    for r in (0.0, 0.5, 1.0):  # the ends keep their own, and others are estimated once
        assert curve.with_statistics(net, r, []) is curve
    key = "layers.1.norm1.running_mean"
    assert not torch.equal(curve.at(0.5).buffers[key], a.buffers[key])


def test_validation_is_the_error_at_the_midpoint():
    net, (a, b) = tiny_net(), modes(2)
    objective = CurveObjective(net, start_curve(net, a, b), loader())
    states, held_out = objective.start(), blobs(24, seed=1)
    middle = objective.result(states).at(0.5).load(net)
    wrong = (middle(held_out.images).argmax(-1) != held_out.labels).float().mean()
    assert objective.validate(states, loader(seed=1)) == {"curve": pytest.approx(float(wrong))}
