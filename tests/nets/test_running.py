"""Taps and running a module at other parameters."""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import modebridge as mb
from modebridge.errors import ModebridgeError
from modebridge.nets import Tapped, frozen_copy, run
from modebridge.nets.quirks import plain_attention
from tests.scenarios import EXACT, Vectors, tiny_net


def test_tap_and_logits_in_one_pass():
    net = tiny_net(dtype=EXACT).eval()
    calls = []
    net.register_forward_hook(lambda *_: calls.append(1))
    images = torch.rand(2, 1, 8, 8, dtype=EXACT)
    logits, features = Tapped(net, ["layers.1", "layers.2", "layers.1"])(images)
    assert len(calls) == 1
    torch.testing.assert_close(logits, net(images), rtol=0, atol=1e-12)
    x = (images - net.mean) / net.std
    torch.testing.assert_close(features["layers.1"], net.layers[1](net.layers[0](x)), rtol=0, atol=1e-12)
    assert all(not m._forward_hooks for m in net.layers)


def test_run_at_other_parameters_leaves_the_module_alone():
    net, other = tiny_net(0, dtype=EXACT).eval(), tiny_net(1, dtype=EXACT).eval()
    images = torch.rand(2, 1, 8, 8, dtype=EXACT)
    before = net(images)
    torch.testing.assert_close(run(net, dict(other.named_parameters()), {}, images), other(images), rtol=0, atol=1e-12)
    torch.testing.assert_close(net(images), before, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_networks_of_torch_jit_are_refused():
    with pytest.raises(ModebridgeError, match=r"of torch\.jit, .* pass the module that it was made from"):
        frozen_copy(nn.Sequential(torch.jit.trace(nn.Linear(2, 3), torch.rand(1, 2))))


def test_taps_that_cannot_be_read():
    relu, net = nn.ReLU(), Vectors()
    net.spare = nn.Linear(1, 1)
    for module, tap, message in [
        (net, "firsts", "'firsts'; did you mean first"),
        (net, "", "submodule"),
        (net, "spare", "never called"),
        (nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu), "1", "run once"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            Tapped(module, [tap])(torch.rand(1, 4))


@pytest.mark.parametrize("nothing", [None, (), {}, "words", (None, 1)])
def test_a_tap_must_return_a_tensor(nothing):
    class Odd(nn.Module):
        def forward(self, x):
            return nothing

    class Second(nn.Sequential):
        def forward(self, x):
            return (self[0](x), self[1](x))[1]

    net = Second(Odd(), nn.Identity())
    with pytest.raises(ModebridgeError, match="output of tap '0' to be a tensor or to start with one"):
        Tapped(net, ["0"])(torch.rand(1, 2))


def test_logits_in_dicts_and_objects():
    class Wrapped(nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.wrap = wrap

        def forward(self, x):
            return self.wrap(x)

    x = torch.rand(1, 2)
    for wrap in (lambda x: {"logits": x}, lambda x: SimpleNamespace(loss=None, logits=x), lambda x: x):
        assert torch.equal(run(Wrapped(wrap), {}, {}, x), x)
    for wrap in (lambda x: {"scores": x}, lambda x: SimpleNamespace(logits=None), lambda x: (x, x)):
        with pytest.raises(ModebridgeError, match="to be a tensor or to hold one as 'logits', but got"):
            run(Wrapped(wrap).eval(), {}, {}, x)
    with pytest.raises(ModebridgeError, match=r"at least two classes, but got 1, .* return two, torch\.cat"):
        run(Wrapped(lambda x: x[:, :1]), {}, {}, x)
    # Auxiliary heads answer in training mode only, behind the main one.
    assert torch.equal(run(Wrapped(lambda x: (x, 2 * x)).train(), {}, {}, x), x)


def test_threads_leave_torch_s_switches_as_they_were():
    """The second goes in while the first is inside, and comes out after it."""
    inside, left = threading.Event(), threading.Event()

    def second():
        with plain_attention():
            inside.set()
            left.wait(5)

    with plain_attention():
        thread = threading.Thread(target=second)
        thread.start()
        assert not inside.wait(0.2)
    left.set()
    thread.join()
    assert inside.is_set()
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.filterwarnings("ignore")  # these networks are not trained
def test_layers_of_torchs_encoder_can_be_read_with_a_padding_mask() -> None:
    """In evaluation it passes nested tensors from layer to layer, without padding; ours are padded with zeros."""

    class Texts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            read = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
            return self.head(read.mean(dim=1))

    net, mask = Texts().eval(), torch.arange(6) < torch.tensor([[6], [4], [2]])
    batch = {"input_ids": torch.arange(18).view(3, 6) % 9, "attention_mask": mask.long()}
    with torch.no_grad():
        _, features = Tapped(net, ["encoder.layers.1"])(batch)
    (feature,) = features.values()
    assert feature.shape == (3, 6, 8)
    assert torch.equal(feature.abs().sum(dim=-1) > 0, mask)
    train, modes = [{**batch, "labels": torch.arange(3)}], [net, Texts()]
    bridge = mb.fit_bridge(net, modes, train, mb.TrainConfig(epochs=1, progress=False), tap="encoder.layers.1")
    assert mb.Ensemble(net, modes[:1], [bridge])(batch).shape == (3, 3)
