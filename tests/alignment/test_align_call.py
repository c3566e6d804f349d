"""`align` as it is called: what it reads, where it runs, what it tells and what its figures mean."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import modebridge as mb
from modebridge.alignment import align, by_activations, find_groups
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.scoring import nll


class Counted(list):
    """Batches that count how often they are read, and how many of them."""

    reads = 0
    batches = 0

    def __iter__(self):
        self.reads += 1
        for item in super().__iter__():
            self.batches += 1
            yield item


class Small(nn.Module):
    """A shortcut, batch norm over vectors (which one image cannot train), a ReLU."""

    def __init__(self, seed: int = 0, size: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)
        self.up, self.down, self.head = nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 3)
        with torch.no_grad():
            self.up.weight.mul_(size)
            self.up.bias.mul_(size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        return self.head(x + self.down(self.up(x).relu()))


def data(*sizes: int) -> Counted:
    generator = torch.Generator().manual_seed(1)
    return Counted((torch.randn(n, 6, generator=generator), torch.arange(n) % 3) for n in sizes)


def modes(**options) -> tuple[nn.Module, Mode, Mode]:
    nets = [Small(seed, **options).eval() for seed in (0, 1)]
    return nets[0], Mode.from_module(nets[0]), Mode.from_module(nets[1])


@pytest.mark.parametrize(("by", "reads"), [("activations", 2), ("weights", 1)])
def test_the_data_are_read_once_for_barriers_and_once_for_activations(by, reads):
    train = data(*[20] * 30)
    result = mb.align(*modes(), train, by=by, images=200, barrier_images=90)
    assert result.barrier_before is not None
    assert train.reads == reads
    # Eight batches to look at (and 90 images of them for barriers); ten for 200 images.
    assert train.batches == 8 + 10 * (by == "activations")


def test_barriers_are_of_the_images_asked_for():
    net, a, b = modes()
    some = mb.align(net, a, b, data(20, 20, 20), barrier_images=30)
    alone = mb.align(net, a, b, [*data(20, 20)[:1], tuple(part[:10] for part in data(20, 20)[1])], images=10)
    assert some.barrier_before == pytest.approx(alone.barrier_before, rel=1e-12)
    assert mb.align(net, a, b, data(20), barrier_images=0).barrier_before is None


def test_a_last_batch_of_one_image():
    net, a, b = modes()
    for sizes in ((20, 1), (1, 20), (20, 1, 20), (1, 1, 1)):
        result = mb.align(net, a, b, data(*sizes))
        assert result.barrier_after is not None
    # Cut to one image by the cap, too.
    assert mb.align(net, a, b, data(20, 20), barrier_images=21).barrier_after is not None


def test_it_runs_on_the_given_device():
    net, a, b = modes()
    # The meta device has no numbers: that the call gets as far as running there is what can be seen without a GPU.
    with pytest.raises((ModebridgeError, NotImplementedError, RuntimeError), match="meta"):
        mb.align(net, a, b, data(20, 20), device="meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_runs_on_a_gpu():
    net, a, b = modes()
    for by in ("activations", "weights"):
        result = mb.align(net, a, b, data(20, 20), by=by, device="cuda")
        assert {tensor.device.type for tensor in result.mode.state.values()} == {"cpu"}
        assert result.mode.id == mb.align(net, a, b, data(20, 20), by=by).mode.id


def test_progress_is_shown_if_asked_for(capsys):
    mb.align(*modes(), data(20, 20, 20), images=50, progress=True)
    shown = capsys.readouterr().err
    assert "activations: 100%" in shown
    assert "barriers: 100%" in shown
    mb.align(*modes(), data(20), progress=False)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-20])
def test_a_mode_is_like_itself_however_small_its_activations(size):
    net, a, _ = modes(size=size)
    result = mb.align(net, a, a, data(40, 40), barrier_images=0)
    assert result.quality_before == pytest.approx(1, abs=1e-6)
    assert result.quality_after == pytest.approx(1, abs=1e-6)
    assert result.mode.id == a.id


def test_silent_units_count_neither_for_nor_against():
    net, a, _ = modes()
    params = {name: tensor.clone() for name, tensor in a.params.items()}
    params["up.weight"][:10], params["up.bias"][:10] = 0.0, -1.0
    mode = Mode(params, a.buffers)
    for by in ("activations", "weights"):
        assert mb.align(net, mode, mode, data(40), by=by, barrier_images=0).quality_after == pytest.approx(1, abs=1e-6)


def test_activations_are_held_in_chunks_that_fit(monkeypatch):
    net, a, b = modes()
    whole = align(net, a, b, data(64, 64), barrier_images=0)
    sizes: list[int] = []
    add = by_activations.Correlations.add
    monkeypatch.setattr(
        by_activations.Correlations, "add", lambda self, x, y, part: (sizes.append(len(part)), add(self, x, y, part))
    )
    held = by_activations.Correlations(find_groups(net, data(4)[0][0])).size(net, data(2)[0][0]) // 2
    monkeypatch.setattr(by_activations, "MEMORY", 10 * held)
    chunked = align(net, a, b, data(64, 64), barrier_images=0)
    assert max(sizes) == 10
    assert sum(sizes) == 128
    assert chunked.mode.id == whole.mode.id


def test_evaluate_of_a_half_precision_network():
    net, a, b = modes()
    half = Small().eval().bfloat16()
    halves = [Mode.from_state_dict(half, mode.state) for mode in (a, b)]
    images = [(x.bfloat16(), labels) for x, labels in data(200)]
    scores = mb.evaluate(mb.Ensemble(half, halves).calibrate(images), images)
    exact = mb.evaluate(mb.Ensemble(net, [a, b]).calibrate(data(200)), data(200))
    assert scores.raw_nll == pytest.approx(exact.raw_nll, abs=0.01)
    assert scores.nll == pytest.approx(exact.nll, abs=0.01)
    with pytest.raises(ModebridgeError, match=r"to be torch\.bfloat16, .* but got torch\.float32"):
        mb.evaluate(mb.Ensemble(half, halves), data(20))
    # A table that came in bfloat16 is judged by that precision; logits are still refused.
    rows = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = torch.arange(50) % 40
    assert abs(nll(rows.softmax(-1), labels) - 4) < 1
    with pytest.raises(ModebridgeError, match="pass probabilities, not logits"):
        nll(rows.abs(), labels)
