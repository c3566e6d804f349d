"""Networks and bodies that work in place: nobody else's numbers change, in whatever order they are asked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import modebridge as mb
from modebridge.bridges import Bridge, curve_target, plan_bridge
from modebridge.curves import start_curve
from modebridge.deploy import EnsembleModule
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import Tapped
from modebridge.objectives import BridgeObjective
from modebridge.scoring import curve_profile, predict
from modebridge.training import fit_curve
from tests.scenarios import fit_bridges, fit_mode, quick


class Net(nn.Module):
    """`way` is how it takes the mean out of its input: all three are the same function."""

    def __init__(self, way: str = "plain") -> None:
        super().__init__()
        self.way = way
        self.stem = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "in place":
            x = x.sub_(0.3)
        elif self.way == "behind":
            x.data.sub_(0.3)
        else:
            x = x - 0.3
        return self.head(torch.relu(self.stem(x)))


class Body(nn.Module):
    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.act = nn.LeakyReLU(0.5, inplace=inplace)  # twice is not once, unlike ReLU
        self.head = nn.Linear(6, 3)

    def forward(self, *features: Tensor) -> Tensor:
        # The first feature is worked on, so that a type II body changes what others read too.
        x = self.act(features[0])
        return self.head(x if len(features) == 1 else x + features[1])


def net_of(way: str = "plain", seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net(way).double()


def modes_of() -> list[Mode]:
    return [Mode.from_module(net_of(seed=seed)) for seed in (1, 2)]


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.rand(6, 4, generator=generator, dtype=torch.float64), torch.arange(6) % 3) for _ in range(count)]


def plans_of(net: nn.Module, inplace: bool) -> dict[str, Bridge]:
    a, b = modes_of()
    curve, plans = start_curve(net, a, b), {}
    for k, kind in enumerate(("I", "II", "I")):
        torch.manual_seed(7 + k)
        body, images = Body(inplace).double(), batches(1)[0][0]
        plans[f"{kind}-{k}"] = plan_bridge(net, curve, images, kind=kind, tap="stem", body=body)
    return plans


def everything(way: str, inplace: bool) -> dict[str, Tensor]:
    """What the library says with such a network and such bodies, from the same numbers."""
    net, (a, b), data = net_of(way), modes_of(), batches()
    bridges = fit_bridges(net, plans_of(net, inplace), data, config=quick(2))
    ensemble = mb.Ensemble(net, [a, b], list(bridges.values())).calibrate(data)
    one, images = EnsembleModule(ensemble, outputs=["members"]), data[0][0]
    curve, mode = fit_curve(net, a, b, data, config=quick(2)), fit_mode(net, data, config=quick(2))
    with torch.no_grad():
        trained = {key: bridge.state_dict() for key, bridge in bridges.items()}
        trained |= {"mode": mode.params, "pin": curve.pins[0]}
        found = {f"{key}/{name}": tensor for key, tensors in trained.items() for name, tensor in tensors.items()}
        for turn in range(2):  # what one call changes, the next would see
            found[f"members {turn}"] = ensemble.members(images)
            found[f"one {turn}"] = one(images)[0]
            found[f"predict {turn}"] = predict(ensemble, data)[0]
        found["profile"] = torch.tensor([point.nll for point in curve_profile(net, curve, data, 3)])
        found["temperature"] = ensemble.temperature
    with torch.inference_mode():
        found["inference"] = ensemble.members(images).clone()
    fresh = batches()
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(data, fresh, strict=True)), "the caller's batches"
    return found


@pytest.fixture(scope="module")
def plain() -> dict[str, Tensor]:
    return everything("plain", False)


@pytest.mark.parametrize(("way", "inplace"), [("in place", False), ("behind", False), ("plain", True)])
def test_in_place_is_the_same_everywhere(plain, way, inplace):
    found = everything(way, inplace)
    for name, tensor in plain.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-12, msg=name)


class Changed(nn.Module):
    """What its stem returned is no longer there when the pass ends."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.act, self.head = nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.stem(x)))


def test_a_feature_that_a_later_layer_changes_is_refused_by_all_who_read_taps():
    net, images = Changed(), torch.rand(3, 4)
    mode = Mode.from_module(net)
    other = Mode({name: tensor + 0.1 for name, tensor in mode.params.items()}, {})
    curve = start_curve(net, mode, other)
    bridge = Bridge(Body(False), [mode], "stem")
    ensemble = mb.Ensemble(net, [mode], [bridge])
    objective = BridgeObjective(net, {"b": Bridge(Body(False), [mode], "stem", target=curve_target(curve))})
    asked = [
        lambda: Tapped(net, ["stem"])(images),
        lambda: objective.prepare((images, torch.zeros(3, dtype=torch.long)), {}),
        lambda: ensemble(images),
    ]
    for ask in asked:
        with pytest.raises(ModebridgeError, match="tap 'stem' to stay unchanged, but a later layer changed it"):
            ask()


def test_traced_programs_are_pure_too():
    """As compiled (here: with the tracer alone, no C++) and as exported; the feature is what the tap returned."""
    images = batches(1)[0][0]
    kept = images.clone()
    with torch.no_grad():
        for net in (net_of("in place"), Changed().double()):
            tapped = Tapped(net, ["stem"])
            state = tapped.state_of(Mode.from_module(net).state)
            compiled = torch.compile(tapped.run, dynamic=False, backend="aot_eager", fullgraph=True)
            for _ in range(2):
                _, features = compiled(state, images)
                assert torch.equal(images, kept)
            shift = 0.3 if isinstance(net, Net) else 0.0
            torch.testing.assert_close(features["stem"], net.stem(images - shift), rtol=0, atol=1e-12)
        body = Body(True).double()
        bridge = Bridge(body, [Mode.from_module(net)], "stem").eval()
        program = torch.export.export(bridge, (features["stem"],))
        before = features["stem"].clone()
        said = program.module()(features["stem"])
        assert torch.equal(features["stem"], before)
        torch.testing.assert_close(said, body(before), rtol=0, atol=1e-12)
