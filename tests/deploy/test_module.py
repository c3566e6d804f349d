"""One module, and the ways to run it in torch, also with folded batch norms: all say what the library says."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from modebridge.bridges import Bridge
from modebridge.deploy import EnsembleModule, fit_temperatures
from modebridge.deploy.module import fold
from modebridge.deploy.runners import Branches, compile_regions
from modebridge.ensembles import Ensemble, fit_temperature
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import resnet
from tests.deploy.scenes import ensemble, headed, images, stirred
from tests.scenarios import TINY, tiny_net


@pytest.mark.parametrize(
    "make", [lambda: ensemble("frn"), lambda: ensemble("bn"), lambda: ensemble("bn", 1, 0, 0), headed]
)
@torch.no_grad()
def test_it_says_what_the_ensemble_says(make):
    own = make().double()
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    one, branches = EnsembleModule(own, outputs=["probabilities", "members"]), Branches(own, dtype=torch.float64)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in one.modules())
    for count in (0, 1, 5):
        batch = images(count).double()
        answer, members = one(batch)
        torch.testing.assert_close(members.transpose(0, 1), own.members(batch), rtol=0, atol=1e-10)
        for found in (answer, branches(batch)):
            torch.testing.assert_close(found, own(batch), rtol=0, atol=1e-10)
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())
    if len(own) > 1:
        told = Branches(own, dtype=torch.bfloat16)(images(5).bfloat16())
        assert told.dtype == torch.float32
        torch.testing.assert_close(told.double(), own(images(5).double()), rtol=0, atol=0.03)


@torch.no_grad()
def test_threads_do_not_hear_each_other():
    one = EnsembleModule(ensemble())
    batches = [images(3, seed) for seed in range(16)]
    alone = [one(batch)[0] for batch in batches]

    def ask(batch):
        with torch.no_grad():
            return one(batch)[0]

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, batches * 4))
    assert all(torch.equal(told, alone[k % 16]) for k, told in enumerate(together))


@torch.no_grad()
def test_a_tap_before_a_batch_norm_reads_what_it_read():
    """The bridge reads a convolution whose batch norm must then stay."""
    net = stirred(tiny_net(0, "bn"), 0)
    mode = Mode.from_module(net)
    body = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(TINY.widths[1], 3))
    own = Ensemble(net, [mode], [Bridge(body, [mode], "layers.4.conv1", name="x")]).double()
    one, batch = EnsembleModule(own), images(3).double()
    torch.testing.assert_close(one(batch)[0], own(batch), rtol=0, atol=1e-10)
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in one.modules()) == 1


def test_the_other_mean_stays_in_the_library():
    net = tiny_net(0, "bn")
    with pytest.raises(ModebridgeError, match="the only one that files have, but its mean is logarithmic"):
        EnsembleModule(Ensemble(net, [Mode.from_module(net)], mean="logarithmic"))


def test_a_temperature_for_every_number_of_bridges():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (200,), generator=generator)
    logits = 2 * nn.functional.one_hot(labels, 4) + 3 * torch.randn(8, 200, 4, generator=generator)
    members = logits.double().softmax(-1)
    fitted = fit_temperatures(members, labels, [3, 1, 2])
    assert fitted.by_bridges == tuple(fit_temperature(members[:end].mean(0), labels) for end in (2, 5, 6, 8))
    assert fitted.first == fit_temperature(members[0], labels)
    assert fit_temperatures(members[:1], labels, []).by_bridges == (fitted.first,)


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


def test_regions_are_the_largest_without_a_split_inside():
    for net, splits, wanted in (
        (Nested(), [], ["stem", "stages"]),
        (Nested(), ["stages.0"], ["stem", "stages.0", "stages.1"]),
        (Nested(), ["stages.1.0"], ["stem", "stages.0", "stages.1.0", "stages.1.1"]),
        (nn.Linear(2, 2), [], [""]),
    ):
        assert compile_regions(net, splits, backend="eager") == wanted


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_hooks_stay_outside_of_regions():
    torch.manual_seed(0)
    net, heard = Nested(), []
    net.stages[1][0].register_forward_hook(lambda module, inputs, output: heard.append(output))
    x = torch.rand(2, 3)
    said = net(x)
    heard.clear()
    compile_regions(net, ["stages.1.0"], backend="eager")
    torch.testing.assert_close(net(x), said)
    assert [tuple(one.shape) for one in heard] == [(2, 4)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_says_what_the_ensemble_says():
    whole = ensemble("bn", 2, 1, 1)
    torch.testing.assert_close(Branches(whole, compiled=True)(images(5)), whole(images(5)), rtol=0, atol=1e-5)


def norms(net: nn.Module) -> int:
    return sum(isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) for layer in net.modules())


class Shared(nn.Module):
    """One convolution feeds two batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.left, self.right = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.left(y) + 2 * self.right(y)


class Twice(nn.Module):
    """The same pair is called twice, in two orders."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(self.norm(self.conv(x))))


class Branching(nn.Module):
    """Looks at values, so that no tracer follows it; its children can be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > 0 else self.inner(-x)


@pytest.mark.parametrize(
    ("net", "left"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2)), 0),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, affine=False)), 0),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4)), 0),
        (nn.Sequential(nn.Flatten(2), nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2)), 0),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.BatchNorm2d(2)), 1),
        (nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 2, 3)), 1),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False)), 1),
        (Shared(), 2),
        (nn.Sequential(nn.Conv2d(1, 2, 1), Twice()), 1),
        (Branching(), 0),
        (nn.Flatten(), 0),
        (resnet("digits", "bn", seed=0), 0),
    ],
)
@torch.no_grad()
def test_the_same_numbers(net, left):
    net = stirred(copy.deepcopy(net), 1).double()
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    folded = fold(copy.deepcopy(net))
    torch.testing.assert_close(folded(x), net(x), rtol=0, atol=1e-10)
    assert norms(folded) == left
    assert [name for name, _ in folded.named_modules()] == [name for name, _ in net.named_modules()]


@torch.no_grad()
def test_taps_stay_what_they_were():
    net = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3)), nn.BatchNorm2d(2)).eval()
    assert norms(fold(copy.deepcopy(net), keep=["0"])) == 1, "the output of the inner sequence is read"
    assert norms(fold(copy.deepcopy(net), keep=["0.0"])) == 1
    assert norms(fold(copy.deepcopy(net), keep=["1"])) == 0, "a tap on the norm itself reads the same"


def test_norms_in_training_and_hooks_are_left_alone():
    assert norms(fold(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).train())) == 1
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    net[0].register_forward_hook(lambda *_: None)
    assert norms(fold(net)) == 1


def test_tied_weights_are_left_alone():
    net = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)).eval()
    net[2].weight = net[0].weight
    assert norms(fold(net)) == 2
