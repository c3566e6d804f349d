"""Ways to run an ensemble: all must say what the library says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modebridge import Bridge, Ensemble, Mode, ModebridgeError
from modebridge.bridges import body_like, last_blocks_tap
from modebridge.deploy.torch_runners import Branches, Vmapped, compile_regions
from modebridge.nets import resnet, spec_of


def ensemble(norm="frn", modes=2, ones=2, twos=1):
    spec = spec_of("digits", norm)
    nets = [Mode.from_module(resnet("digits", norm, seed=k)) for k in range(modes)]
    tap = last_blocks_tap(spec)
    bridges = [Bridge(body_like(spec, "I", 2, seed=k), nets[:1], tap) for k in range(ones)]
    bridges += [Bridge(body_like(spec, "II", 2, seed=9 + k), nets[:2], tap) for k in range(twos)]
    found = Ensemble(resnet("digits", norm, seed=0), nets, bridges)
    # Untrained networks are sure of nonsense; tempered, a difference in a logit is one in a probability.
    found.temperature.fill_(3.0)
    return found


@pytest.fixture
def images():
    return torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("norm", ["frn", "bn"])
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_branches_say_what_the_ensemble_says(norm, batch, images):
    whole, some = ensemble(norm).double(), images[:batch].double()
    torch.testing.assert_close(Branches(whole, dtype=torch.float64)(some), whole(some), rtol=0, atol=1e-10)


def test_the_ensemble_is_left_alone(images):
    whole = ensemble()
    before = whole(images)
    Branches(whole, dtype=torch.bfloat16)(images.bfloat16())
    assert torch.equal(whole(images), before)
    assert next(whole.bases[0].parameters()).dtype == torch.float32


def test_bfloat16_is_near(images):
    whole = ensemble()
    answer = Branches(whole, dtype=torch.bfloat16)(images.bfloat16())
    assert answer.dtype == torch.float32
    torch.testing.assert_close(answer, whole(images), rtol=0, atol=0.02)


@pytest.mark.parametrize("norm", ["frn", "bn"])
@pytest.mark.parametrize("modes", [1, 3])
def test_stacked_says_what_the_ensemble_says(norm, modes, images):
    whole, images = ensemble(norm, modes, 0, 0).double(), images.double()
    torch.testing.assert_close(Vmapped(whole, dtype=torch.float64)(images), whole(images), rtol=0, atol=1e-10)


def test_bridges_cannot_be_stacked():
    with pytest.raises(ModebridgeError, match="no bridges to stack modes, but got 3 bridges"):
        Vmapped(ensemble())


class Nested(nn.Module):
    """Stages of blocks, as torchvision has them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.act = nn.ReLU()
        self.stages = nn.Sequential(
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        )

    def forward(self, x):
        return self.stages(self.act(self.stem(x)))


def regions(net, splits):
    return compile_regions(net, splits, backend="eager")


def test_regions_are_the_largest_without_a_split_inside():
    assert regions(Nested(), []) == ["stem", "stages"]
    assert regions(Nested(), ["stages.0"]) == ["stem", "stages.0", "stages.1"]
    assert regions(Nested(), ["stages.1.0"]) == ["stem", "stages.0", "stages.1.0", "stages.1.1"]


def test_a_network_without_parts_is_one_region():
    assert regions(nn.Linear(2, 2), []) == [""]


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_hooks_stay_outside_of_regions():
    torch.manual_seed(0)
    net, heard = Nested(), []
    net.stages[1][0].register_forward_hook(lambda module, inputs, output: heard.append(output))
    x = torch.rand(2, 3)
    said = net(x)
    heard.clear()
    regions(net, ["stages.1.0"])
    torch.testing.assert_close(net(x), said)
    assert len(heard) == 1
    assert heard[0].shape == (2, 4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_says_what_the_ensemble_says(images):
    whole = ensemble("bn", 2, 1, 1)
    torch.testing.assert_close(Branches(whole, compiled=True)(images), whole(images), rtol=0, atol=1e-5)
