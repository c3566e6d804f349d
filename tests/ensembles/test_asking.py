"""Asking an ensemble: on threads, inside modules that train, with inputs that are not what it takes."""

from __future__ import annotations

import copy
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from modebridge.bridges import Bridge
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import Tapped, run
from tests.deploy.scenes import ensemble, images
from tests.networks import Tokens
from tests.scenarios import tiny_net


def _on_threads(ask, cases, times=10):
    """What eight threads are told, all of them at once, beside what one thread was told."""

    def asked(case):
        with torch.no_grad():
            return ask(*case)

    alone = [asked(case) for case in cases]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(asked, cases * times))
    return [torch.equal(told, alone[k % len(cases)]) for k, told in enumerate(together)]


def test_threads_get_their_own_answers():
    own = ensemble()
    right = _on_threads(own, [(images(3, seed),) for seed in range(8)])
    assert len(right) == 80
    assert all(right)


def test_threads_run_one_network_at_different_weights():
    nets = [tiny_net(seed, "bn").eval() for seed in range(4)]
    modes, batch = [Mode.from_module(net) for net in nets], images(3)
    bare, tapped = tiny_net(9, "bn").eval(), Tapped(nets[0], ["layers.1"])
    before = Mode.from_module(bare).id

    def feature(answer):
        return answer[1]["layers.1"].flatten(1) + answer[0].sum()

    assert all(_on_threads(lambda mode: run(bare, mode.params, mode.buffers, batch), [(mode,) for mode in modes]))
    states = [(tapped.state_of(mode.state),) for mode in modes]
    assert all(_on_threads(lambda state: feature(tapped.run(state, batch)), states))
    assert Mode.from_module(bare).id == before


@torch.no_grad()
def test_copies_and_networks_taken_out_read_for_themselves():
    own, batch = ensemble(), images(3)
    said = own(batch)
    kept = io.BytesIO()
    torch.save(own, kept)
    kept.seek(0)
    for other in (copy.deepcopy(own), torch.load(kept, weights_only=False)):
        own.bases[0].head.weight.data.neg_()
        assert torch.equal(other(batch), said)
        own.bases[0].head.weight.data.neg_()
    # A base is a network like any other: called by itself, wrapped and tapped again, as a mode of another ensemble.
    base = own.bases[0]
    assert torch.equal(base(batch).softmax(-1), own.members(batch)[0])
    tap = own._taps[0][0]
    torch.testing.assert_close(
        Tapped(nn.Sequential(base), [f"0.{tap}"])(batch)[1][f"0.{tap}"], Tapped(base, [tap])(batch)[1][tap]
    )
    assert not any(module._forward_hooks for module in Ensemble(base, [Mode.from_module(base)]).modules())


class Dropping(nn.Module):
    """Batch norm, dropout as a layer and as a function."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        x = nn.functional.dropout(self.norm(x), 0.5, self.training)
        return self.head(self.drop(x).flatten(1))


def _dropping():
    torch.manual_seed(0)
    net = Dropping().eval()
    mode = Mode.from_module(net)
    body = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3))
    return Ensemble(net, [mode], [Bridge(body, [mode], "norm")])


@torch.no_grad()
def test_it_is_one_graph_to_a_compiler_and_to_an_exporter():
    own, batch = _dropping(), images(3)
    said = own(batch)
    assert torch.equal(torch.compile(own, backend="eager", fullgraph=True)(batch), said)
    assert torch.equal(torch.export.export(own, (batch,)).module()(batch), said)


@torch.no_grad()
def test_training_mode_changes_no_buffer_and_no_answer():
    own, batch = _dropping(), images(4)
    said, before = own(batch), {name: tensor.clone() for name, tensor in own.state_dict().items()}
    whole = nn.ModuleDict({"teacher": own, "student": nn.Dropout(0.1)})
    for turn in (whole.train, own.train, lambda: whole.apply(nn.Module.train), whole.eval):
        turn()
        assert torch.equal(own(batch), said)
    assert whole.train()["student"].training
    assert own.training
    assert not own.eval().training
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())


@torch.no_grad()
def test_a_member_put_in_training_mode_by_itself_is_refused():
    own, batch = _dropping(), images(4)
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    own.bases[0].norm.train()
    with pytest.raises(ModebridgeError, match=r"'bases\.0\.norm' was put in training mode .* call eval\(\)"):
        own(batch)
    own.eval()
    said = own(batch)
    own.bases[0].drop.train()  # Monte Carlo dropout is meant
    assert not torch.equal(own(batch), said)
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())


BATCH = images(3)


@pytest.fixture(scope="module")
def whole():
    return ensemble()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((BATCH * 255).to(torch.uint8), r"to be float tensors, but got torch.uint8; divide uint8 images by 255"),
        ({"images": (BATCH * 255).to(torch.uint8)}, "the images you passed to be float tensors, but got torch.uint8"),
        ((BATCH * 9).long(), "to be float tensors, but got torch.int64"),
        (BATCH > 0.5, "to be float tensors, but got torch.bool"),
        (BATCH.to(torch.complex64), "to be float tensors, but got torch.complex64"),
        (BATCH.double(), r"to be torch.float32, .* got torch.float64; convert them with images.to\(torch.float32\)"),
        (BATCH.expand(-1, 3, -1, -1), r"got \(3, 3, 8, 8\) of torch.float32 and 'Given groups=1, .*'; check their"),
        (BATCH[0], r"got \(1, 8, 8\) of torch.float32 and .* images\[None\]"),
        (BATCH.to("meta"), "to be on cpu, where the ensemble is, but got meta; move them"),
        (BATCH.numpy(), "a tensor or a dict of tensors, but got ndarray; convert arrays with torch.from_numpy"),
        ([*BATCH], "but got list; .* and a loader to `evaluate`"),
        ({"images": BATCH, "flag": True}, "'flag' you passed to be a tensor, but got bool"),
        ({"picture": BATCH}, "unexpected keyword argument 'picture'"),
        ({}, "the inputs you passed to hold images, but got none"),
    ],
)
def test_what_it_cannot_take_is_a_sentence(whole, given, words):
    with pytest.raises(ModebridgeError, match=words):
        whole(given)
    assert whole(BATCH).shape == (3, 3)


@torch.no_grad()
def test_a_row_of_logits_alone_is_refused():
    net = nn.Linear(4, 3)  # takes a vector without a batch axis, and gives one of probabilities
    own = Ensemble(net, [Mode.from_module(net)])
    with pytest.raises(ModebridgeError, match=r"logits to be \(batch, classes\), but got \(3,\) for \(4,\)"):
        own(torch.rand(4))


@pytest.mark.parametrize("norm", ["frn", "bn"])
@torch.no_grad()
def test_no_image_and_images_of_nan(norm):
    own = ensemble(norm)
    assert own(BATCH[:0]).shape == (0, 3)
    broken = BATCH.clone()
    broken[1, 0, 0, 0] = np.nan
    told = own(broken)
    assert told[1].isnan().all()
    torch.testing.assert_close(told[[0, 2]], own(BATCH)[[0, 2]])


@torch.no_grad()
def test_half_precision_images_and_an_error_that_is_not_about_them():
    own = ensemble()
    torch.testing.assert_close(own(BATCH.half()), own(BATCH.half().float()))

    def fails(*_):
        raise torch.OutOfMemoryError("no memory left")

    own.bases[1].register_forward_hook(fails)
    with pytest.raises(torch.OutOfMemoryError):
        own(BATCH)


@torch.no_grad()
def test_tokens_are_whole_numbers():
    net = Tokens().eval()
    own = Ensemble(net, [Mode.from_module(net)])
    ids = torch.arange(10).view(2, 5)
    expected = net(ids).softmax(-1)
    for told in (own(ids), own(ids.int()), own({"input_ids": ids}), own(input_ids=ids, attention_mask=ids >= 0)):
        torch.testing.assert_close(told, expected)
    with pytest.raises(ModebridgeError, match=r"to be float tensors, but got torch\.uint8"):
        own(ids.to(torch.uint8))
    with pytest.raises(ModebridgeError, match="index out of range"):
        own(ids + 20)
