"""Together is one by one, also where networks or bodies differ in what no checkpoint holds; frozen layers stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from modebridge.bridges import plan_bridge
from modebridge.curves import start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import same_architecture
from modebridge.objectives import BridgeObjective
from modebridge.training import fit_curve, fit_modes
from tests.plans import fit_bridges, fit_mode
from tests.scenarios import loader, quick, tiny_net


def test_frozen_parameters_stay_frozen():
    net = tiny_net()
    net.layers[0].requires_grad_(False)
    before, after = Mode.from_module(net), fit_mode(net, loader(), config=quick(1, weight_decay=0.1))
    for name, tensor in before.params.items():
        assert torch.equal(after.params[name], tensor) == name.startswith("layers.0.")


class Scaled(nn.Module):
    """Its answer depends on a plain attribute and on a buffer that is not persistent; one layer can be frozen."""

    def __init__(self, scale: float = 1.0, shift: float = 0.0, inputs: int = 4) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("shift", torch.tensor(shift), persistent=False)
        self.stem = nn.Linear(inputs, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.stem(self.scale * x + self.shift)))


def made(seed: int, **options: float) -> Scaled:
    torch.manual_seed(seed)
    return Scaled(**options).double()  # type: ignore[arg-type]


def batches(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(6, 4, generator=generator, dtype=torch.float64), torch.arange(6) % 3) for _ in range(3)]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


OPTIONS = [{"scale": 1.0}, {"scale": 3.0}, {"scale": 1.0, "shift": 0.5}]


def test_networks_trained_together_are_their_own():
    nets = [made(0, **options) for options in OPTIONS]
    nets[0].stem.requires_grad_(False)
    data = [batches(k) for k in range(3)]
    together = fit_modes(nets, data, config=quick(2))
    for k, (net, mode) in enumerate(zip(nets, together, strict=True)):
        alone = fit_mode(net, data[k], config=quick(2, seed=k))
        assert same(mode.state, alone.state)
    assert not same(together[1].state, together[2].state)
    assert torch.equal(together[0].params["stem.weight"], nets[0].stem.weight)
    assert not torch.equal(together[1].params["stem.weight"], nets[1].stem.weight)


def test_bodies_trained_together_are_their_own():
    net = made(0)
    curve = start_curve(net, Mode.from_module(made(1)), Mode.from_module(made(2)))

    def plan(options):
        torch.manual_seed(9)
        return plan_bridge(net, curve, batches()[0][0], tap="stem", body=Scaled(**options, inputs=6).double())

    plans = {str(k): plan(options) for k, options in enumerate(OPTIONS)}
    together = fit_bridges(net, plans, batches(), config=quick(2))
    for name, options in zip(plans, OPTIONS, strict=True):
        alone = fit_bridges(net, {name: plan(options)}, batches(), config=quick(2))[name]
        assert same(together[name].state_dict(), alone.state_dict())
    assert not same(together["0"].state_dict(), together["1"].state_dict())


def test_one_program_serves_bodies_that_are_alike():
    net = made(0)
    a, b = (Mode.from_module(made(seed)) for seed in (1, 2))
    curve = start_curve(net, a, b)
    bodies = {"one": Scaled(inputs=6), "twin": Scaled(inputs=6), "other": Scaled(2.0, inputs=6)}
    plans = {
        name: plan_bridge(net, curve, batches()[0][0], tap="stem", body=body.double()) for name, body in bodies.items()
    }
    objective = BridgeObjective(net, plans)
    programs = {name: objective.program(name) for name in plans}
    assert programs["one"] is programs["twin"]
    assert programs["one"] is not programs["other"]


@pytest.mark.parametrize(("pins", "pin_start"), [(1, "midpoint"), (2, "midpoint"), (1, "random"), (2, "random")])
def test_a_curve_leaves_frozen_layers_where_its_ends_have_them(pins, pin_start):
    net = made(0)
    net.stem.requires_grad_(False)
    ends = [made(seed) for seed in (1, 2)]
    ends[1].stem.weight.data.copy_(ends[0].stem.weight.data)  # shared by both ends; the bias is not
    a, b = (Mode.from_module(end) for end in ends)
    config = quick(2, weight_decay=1e-2)
    curve = fit_curve(net, a, b, batches(), pins=pins, pin_start=pin_start, config=config)
    for r in (0.1, 0.5, 0.7):
        assert torch.equal(curve.at(r).params["stem.weight"], a.params["stem.weight"])
        line = (1 - r) * a.params["stem.bias"] + r * b.params["stem.bias"]
        torch.testing.assert_close(curve.at(r).params["stem.bias"], line, rtol=0, atol=1e-14)
    middle = (a.params["head.weight"] + b.params["head.weight"]) / 2
    assert not torch.allclose(curve.at(0.5).params["head.weight"], middle)
    assert list(curve.pins[0]) == list(a.params)


def test_a_curve_of_a_network_with_nothing_frozen_is_as_before():
    a, b = (Mode.from_module(made(seed)) for seed in (1, 2))
    free = fit_curve(made(0), a, b, batches(), config=quick(2))
    assert all(not torch.equal(pin, (a.params[name] + b.params[name]) / 2) for name, pin in free.pins[0].items())


def test_a_bridge_leaves_frozen_layers_of_its_body_alone():
    net = made(0)
    curve = start_curve(net, Mode.from_module(made(1)), Mode.from_module(made(2)))
    torch.manual_seed(3)
    body = Scaled(inputs=6).double()
    body.stem.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    plans = {"b": plan_bridge(net, curve, batches()[0][0], tap="stem", body=body)}
    trained = fit_bridges(net, plans, batches(), config=quick(2, weight_decay=1e-2))["b"].body
    assert same(body.state_dict(), before), "the caller's module"
    for name, tensor in trained.state_dict().items():
        assert torch.equal(tensor, before[name]) == name.startswith("stem."), name
    assert {name for name, p in trained.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}
    body.requires_grad_(False)
    with pytest.raises(ModebridgeError, match="Expected Scaled to have trainable parameters, but got requires_grad="):
        fit_bridges(net, plans, batches(), config=quick(2))
    net.requires_grad_(False)
    for fit in (lambda: fit_mode(net, batches()), lambda: fit_curve(net, curve.start, curve.end, batches())):
        with pytest.raises(ModebridgeError, match="Expected Scaled to have trainable parameters"):
            fit()


def test_alike_is_what_decides():
    assert same_architecture(made(0), made(1))
    assert not same_architecture(made(0), made(1, scale=2.0))


def test_one_list_of_batches_serves_all_networks():
    nets, data = [made(0), made(1)], batches()
    for one, other in zip(fit_modes(nets, data, quick(1)), fit_modes(nets, [data, data], quick(1)), strict=True):
        assert one.id == other.id
