"""Checks of data and networks before training: a last batch of one image, training mode, weights that run away."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import pytest
import torch
import torchvision.models
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from modebridge.curves import start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.training import TrainConfig, fit_bridge, fit_curve
from tests.scenarios import fit_mode, loader, modes, quick, tiny_net


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "to have batches, but got none"),
        ((pair for pair in []), "more than once"),
        ([torch.zeros(2, 1, 8, 8)], r"to yield \(images, labels\)"),
        ([(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2).long())], "divide uint8 images by 255"),
        ([(torch.full((2, 1, 8, 8), float("nan")), torch.zeros(2).long())], "NaN or Inf"),
        ([(torch.full((2, 1, 8, 8), float("inf")), torch.zeros(2).long())], "NaN or Inf"),
        ([(torch.zeros(2, 1, 8, 8), torch.zeros(3).long())], "3 for 2"),
        ([(torch.zeros(2, 1, 8, 8), torch.zeros(2))], "to be integers"),
        ([(torch.zeros(2, 1, 8, 8), [0, 1])], "to be integers"),
        ([{"images": torch.zeros(2, 1, 8, 8)}], "to hold labels under one of labels, label"),
        ([(torch.zeros(2, 3, 8, 8), torch.zeros(2).long())], r"to run on the images of train, but got \(3, 8, 8\)"),
        ([(torch.zeros(2, 1, 8, 8).double(), torch.zeros(2).long())], "check their shape and type"),
        ([(torch.zeros(2, 1, 8, 8), torch.tensor([0, 3]))], r"in \[0, 3\), but got 0 to 3"),
        ([(torch.zeros(2, 1, 8, 8), torch.tensor([0, -1]))], r"in \[0, 3\), but got -1 to 0"),
    ],
)
def test_bad_data_is_refused_before_training(data, message):
    refused(message, data)


def every_fit(data, config, **options):
    net, (a, b) = tiny_net(), modes(2)
    return (
        lambda: fit_mode(net, data, config=config, **options),
        lambda: fit_curve(net, a, b, data, config=config, **options),
        lambda: fit_bridge(net, start_curve(net, a, b), data, target="labels", config=config, **options),
    )


def refused(message, data, keep="last", **options):
    began: list[object] = []
    for fit in every_fit(data, replace(quick(callbacks=(began.append,)), keep=keep), **options):
        with pytest.raises(ModebridgeError, match=message):
            fit()
    assert not began


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, y: (x, y + 9), r"labels of train to be in \[0, 3\)"),
        (lambda x, y: (x * float("nan"), y), "images of train to be finite"),
        (lambda x, y: (x, y[:-1]), "as many labels as images in train"),
        (lambda x, y: {"x": x}, "dicts of train to hold labels"),
    ],
)
def test_bad_data_in_a_later_batch_is_the_same_sentence(spoil, message):
    """In a list it is found before training, in a loader when it is drawn."""
    good = next(iter(loader()))
    refused(message, [good, spoil(*good)])
    refused(message, DataLoader([good, spoil(*good)], batch_size=None))


@pytest.mark.parametrize(
    ("valid", "message"),
    [
        ([], "valid to have batches, but got none"),
        (iter([]), "valid to be iterable more than once"),
        ([(torch.zeros(2, 1, 8, 8), torch.tensor([0, 7]))], r"labels of valid to be in \[0, 3\)"),
        ([(torch.full((2, 1, 8, 8), float("nan")), torch.tensor([0, 1]))], "images of valid to be finite"),
    ],
)
def test_bad_validation_data_is_refused_before_training(valid, message):
    refused(message, loader(), keep="best", valid=valid)


def test_labels_of_any_whole_type_will_do():
    small = [(images, labels.int()) for images, labels in loader()]
    mode, _, _ = (fit() for fit in every_fit(small, quick(1)))
    assert mode.id == fit_mode(tiny_net(), list(loader()), config=quick(1)).id
    with pytest.raises(ModebridgeError, match="r to be in"):
        fit_curve(tiny_net(), *modes(2), loader(), r=-1)


def normed(seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    """Batch norm on vectors: nothing to learn from one image."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(dropout), nn.ReLU(), nn.Linear(6, 3))


def vectors(n: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.rand(n, 4, generator=generator), torch.arange(n) % 3)


def listed(n: int, size: int = 4) -> list:
    images, labels = vectors(n).tensors
    return list(zip(images.split(size), labels.split(size), strict=True))


LEFT_OUT = "A batch of 1 image in train is skipped: batch norm needs at least 2"


def test_a_last_batch_of_one_image_is_left_out():
    with pytest.warns(UserWarning, match=LEFT_OUT):
        got = fit_mode(normed(), listed(9), config=quick(2))
    assert got.id == fit_mode(normed(), listed(9)[:2], config=quick(2)).id
    with pytest.warns(UserWarning, match=LEFT_OUT):
        got = fit_mode(normed(), DataLoader(vectors(9), 4), config=quick(2))
    assert got.id == fit_mode(normed(), DataLoader(vectors(9), 4, drop_last=True), config=quick(2)).id
    a, b = (Mode.from_module(normed(seed)) for seed in (1, 2))
    with pytest.warns(UserWarning, match=LEFT_OUT):
        curve = fit_curve(normed(), a, b, listed(9), config=quick(1))
    assert curve.at(0.5).id == fit_curve(normed(), a, b, listed(9)[:2], config=quick(1)).at(0.5).id
    # A bridge that has no batch norm learns from every image; only the midpoint's statistics do without the last.
    with pytest.warns(UserWarning, match=LEFT_OUT):
        fit_bridge(normed(), start_curve(normed(), a, b), listed(9), config=quick(1))
    own = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.warns(UserWarning, match=LEFT_OUT):
        bridge = fit_bridge(normed(), curve, listed(9), body=own, config=quick(1, mixup=0))
    other = fit_bridge(normed(), curve, listed(9)[:2], body=own, config=quick(1, mixup=0))
    assert torch.equal(bridge.body[0].weight, other.body[0].weight)


def test_batches_of_one_image_are_refused_where_there_are_no_others():
    with pytest.raises(ModebridgeError, match=r"at least 2 images for batch norm to learn from, but got 1; increase"):
        fit_mode(normed(), DataLoader(vectors(5), 1), config=quick(1))


def test_one_image_is_enough_where_it_has_many_places():
    """Batch norm on maps learns from one image, and so does a network without it: their batches of one stay."""
    torch.manual_seed(0)
    for net in (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)), nn.Linear(4, 3)):
        images = torch.rand(5, 1, 4, 4) if isinstance(net, nn.Sequential) else torch.rand(5, 4)
        data = [(images[:4], torch.arange(4) % 3), (images[4:], torch.tensor([1]))]
        assert fit_mode(net, data, config=quick(1)).id != fit_mode(net, data[:1], config=quick(1)).id


def test_looking_ahead_draws_nothing():
    """Not from torch's own generator, and from the loader's no more than one look at the first batch takes."""

    class Looking(nn.Sequential):
        def forward(self, x):  # at values, which the meta device does not have
            return super().forward(x) if x.sum() > 0 else None

    for net in (normed(dropout=0.5), Looking(*normed(dropout=0.5))):
        torch.manual_seed(3)
        before = torch.get_rng_state()
        fit_mode(net, listed(8), config=quick(0))
        assert torch.equal(torch.get_rng_state(), before)
    generator, same = (torch.Generator().manual_seed(4) for _ in range(2))
    fit_mode(normed(), DataLoader(vectors(8), 4, shuffle=True, generator=generator), config=quick(0))
    next(iter(DataLoader(vectors(8), 4, shuffle=True, generator=same)))
    assert torch.equal(generator.get_state(), same.get_state())


class Auxiliary(nn.Module):
    """In training mode the logits and those of a head on the way, which needs images of a certain size."""

    def __init__(self, kind=tuple, window: int = 2) -> None:
        super().__init__()
        self.kind, self.window = kind, window
        self.features = nn.Conv2d(1, 4, 3)
        self.side = nn.Linear(4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.features(x).relu()
        logits = self.head(x.mean((2, 3)))
        if not self.training:
            return logits
        side = self.side(nn.functional.max_pool2d(x, self.window).mean((2, 3)))
        return self.kind([logits, side]) if self.kind in (tuple, list) else self.kind(logits, side)


def maps(n: int = 8, side: int = 6) -> list:
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(n, 1, side, side, generator=generator), torch.arange(n) % 3)]


@pytest.mark.parametrize("kind", [tuple, list, torchvision.models.GoogLeNetOutputs])
def test_the_main_logits_of_training_mode_are_learned_from(kind):
    torch.manual_seed(0)
    theirs = kind is torchvision.models.GoogLeNetOutputs
    net = Auxiliary((lambda logits, side: kind(logits, side, side)) if theirs else kind)
    plain = copy.deepcopy(net)
    plain.kind = lambda logits, side: logits
    mode = fit_mode(net, maps(), config=quick(2))
    assert mode.id == fit_mode(plain, maps(), config=quick(2)).id
    assert torch.equal(mode.params["side.weight"], net.side.weight), "the other head has no part in the loss"
    other = Mode({name: tensor + 0.1 for name, tensor in mode.params.items()}, {})
    assert torch.isfinite(fit_curve(net, mode, other, maps(), config=quick(1)).pins[0]["head.weight"]).all()


def test_training_mode_is_looked_at_before_training():
    with pytest.raises(ModebridgeError, match=r"run in training mode on images as in train, \(1, 6, 6\) .*aux_logits"):
        fit_mode(Auxiliary(window=9), maps(), config=quick(1))
    with pytest.raises(ModebridgeError, match=r"first in training mode too, but got \(1, 3, 1, 1\)"):
        fit_mode(Auxiliary(lambda logits, side: (logits[:, :, None, None], side)), maps(), config=quick(1))
    with pytest.raises(ModebridgeError, match="but got NoneType; wrap the network in a module that returns its logits"):
        fit_mode(Auxiliary(lambda logits, side: None), maps(), config=quick(1))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.ones(4, 3, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(self.mix.dtype) @ self.mix).real


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.LazyLinear(3)), r"'0\.weight' has no shape yet; run the network once on a batch"),
        (nn.Sequential(nn.Linear(4, 3), nn.LazyBatchNorm1d()), r"'1\.weight' has no shape yet"),
        (Complex(), r"real numbers, but 'mix' of Complex is torch\.complex64"),
    ],
)
def test_parameters_that_are_not_numbers_yet_or_not_real(net, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own about lazy modules
        with pytest.raises(ModebridgeError, match=message):
            fit_mode(net, listed(8), config=quick(1))
        mode = Mode.from_module(nn.Linear(4, 3))
        with pytest.raises(ModebridgeError, match=message):
            fit_curve(net, mode, mode, listed(8), config=quick(1))


@pytest.mark.parametrize("fit", ["mode", "curve", "bridge"])
def test_training_that_runs_away_and_stays_finite_is_said(fit):
    torch.manual_seed(0)
    net, wild = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), TrainConfig(epochs=3, lr=1e6)
    a, b = (Mode.from_module(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))) for _ in range(2))
    fits = {
        "mode": lambda config: fit_mode(net, listed(8), config=config),
        "curve": lambda config: fit_curve(net, a, b, listed(8), config=config),
        "bridge": lambda config: fit_bridge(net, start_curve(net, a, b), listed(8), tap="1", config=config),
    }
    with pytest.warns(UserWarning, match=rf"of '{fit}' grew .* times, .*: training diverged; lower .* \(lr=1e\+06\)"):
        fits[fit](wild)
    fits[fit](quick(3))  # a warning would be an error here


def test_weights_that_run_away_where_the_loss_does_not_show_it():
    # Weights in front of batch norm can be of any length, and the loss does not show it.
    net = normed()
    for frozen in (net[4], net[1]):
        frozen.requires_grad_(False)
    with pytest.warns(UserWarning, match=r"The norm of the weights of 'mode' grew .* times, from .* diverged"):
        fit_mode(net, listed(8), config=TrainConfig(epochs=2, lr=1e6))
