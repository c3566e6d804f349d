"""`align` as it is called: what it finds, what it reads, where it runs, what it tells and what its figures mean."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import modebridge as mb
from modebridge.alignment import align, find_groups, similarity
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from tests.alignment.renumbering import METHODS, Odd, pair, renumbered, seeded
from tests.networks import NETWORKS, made
from tests.scenarios import fit_mode, loader, quick
from tests.test_modes import Scaled

ALIKE = (*NETWORKS, "torchvision densenet", "as VGG", "Hugging Face style", "ours, filter response norm")
PLANTED = [(name, by) for name in ALIKE for by in METHODS]
# Some of its last units are dead on these images: only weights tell them apart.
PLANTED.append(("torchvision mobilenet", "weights"))
LONG = {("timm resnet18", "weights"), ("torchvision resnet18", "weights")}
CASES = [pytest.param(*case, marks=[pytest.mark.slow] * (case in LONG)) for case in PLANTED]


@pytest.mark.parametrize(("name", "by"), CASES)
def test_a_planted_renumbering_is_found_exactly(name, by):
    net = made(name)
    mode = Mode.from_module(net)
    images = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    other = renumbered(mode, find_groups(net, images[:2]))
    result = align(net, mode, other, [(images, torch.zeros(24).long())], by=by, barrier_images=0)
    wrong = [key for key in mode.state if not torch.equal(mode.state[key], result.mode.state[key])]
    assert wrong == []
    assert result.difference < 1e-9
    assert all(match.after >= match.before for match in result.matches)


@pytest.mark.parametrize("by", METHODS)
def test_trained_networks_come_nearer_and_the_barrier_falls(by):
    nets = [
        seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 3)), seed)
        for seed in (0, 1)
    ]
    a, b = (fit_mode(net, loader(96, 16), config=quick(20, weight_decay=1e-3)) for net in nets)
    result = align(nets[0], a, b, loader(96, 16), by=by)
    assert result.quality_after > result.quality_before + 0.1
    assert result.barrier_after <= result.barrier_before
    assert result.mode.id == align(nets[0], a, b, loader(96, 16), by=by, barrier_images=0).mode.id
    assert "outputs are unchanged to" in str(result)
    assert "Barrier" in str(result)


def test_extra_state_is_kept():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Scaled())
    a, data = Mode.from_module(net), [(torch.rand(8, 4), torch.arange(8) % 3)]
    assert align(net, a, a, data, barrier_images=0).mode.extra == a.extra != {}


class Counted(list):
    """Batches that note each pass over them, and how many were read in it."""

    def __iter__(self):
        self.reads = [*getattr(self, "reads", []), 0]
        for item in super().__iter__():
            self.reads[-1] += 1
            yield item


class Small(nn.Module):
    """A shortcut, batch norm over vectors (which one image cannot train), a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)
        self.up, self.down, self.head = nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        return self.head(x + self.down(self.up(x).relu()))


def data(*sizes: int) -> Counted:
    generator = torch.Generator().manual_seed(1)
    return Counted((torch.randn(n, 6, generator=generator), torch.arange(n) % 3) for n in sizes)


@pytest.mark.parametrize(("by", "reads"), [("activations", [8, 10]), ("weights", [8])])
def test_the_data_are_read_once_for_barriers_and_once_for_activations(by, reads):
    train = data(*[20] * 30)
    # Eight batches to look at (and 90 images of them for barriers); ten for 200 images.
    assert mb.align(*pair(Small), train, by=by, images=200, barrier_images=90).barrier_before is not None
    assert train.reads == reads


def test_barriers_are_of_the_images_asked_for():
    net, a, b = pair(Small)
    some = mb.align(net, a, b, data(20, 20, 20), barrier_images=30)
    alone = mb.align(net, a, b, [*data(20, 20)[:1], tuple(part[:10] for part in data(20, 20)[1])], images=10)
    assert some.barrier_before == pytest.approx(alone.barrier_before, rel=1e-12)
    assert mb.align(net, a, b, data(20), barrier_images=0).barrier_before is None
    # Batch norm cannot estimate a variance from one image: such batches are left out.
    for sizes, measured in (((20, 1), True), ((1, 20), True), ((1, 1, 1), False)):
        assert (mb.align(net, a, b, data(*sizes)).barrier_after is not None) == measured


def test_it_runs_on_the_given_device():
    # The meta device has no numbers: that the call gets as far as running there is what can be seen without a GPU.
    with pytest.raises((ModebridgeError, NotImplementedError, RuntimeError), match="meta"):
        mb.align(*pair(Small), data(20, 20), device="meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_runs_on_a_gpu():
    for by in METHODS:
        result = mb.align(*pair(Small), data(20, 20), by=by, device="cuda")
        assert {tensor.device.type for tensor in result.mode.state.values()} == {"cpu"}
        assert result.mode.id == mb.align(*pair(Small), data(20, 20), by=by).mode.id


def test_progress_is_shown_if_asked_for(capsys):
    mb.align(*pair(Small), data(20, 20, 20), images=50, progress=True)
    shown = capsys.readouterr().err
    assert "activations: 100%" in shown
    assert "barriers: 100%" in shown
    mb.align(*pair(Small), data(20), progress=False)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-20, 0.0])
def test_a_mode_is_like_itself_however_small_its_activations(size, by):
    net, a, _ = pair(Small)
    params = {name: tensor.clone() for name, tensor in a.params.items()}
    for name in ("up.weight", "up.bias"):
        params[name][:10] *= size
    mode = Mode(params, a.buffers)
    result = mb.align(net, mode, mode, data(40, 40), by=by, barrier_images=0)
    # Silent units count neither for nor against.
    assert result.quality_before == pytest.approx(1, abs=1e-6)
    assert result.quality_after == pytest.approx(1, abs=1e-6)
    assert result.mode.id == mode.id


def test_activations_are_held_in_chunks_that_fit(monkeypatch):
    whole = align(*pair(Small), data(64, 64), barrier_images=0)
    sizes: list[int] = []
    kind, add = similarity.Correlations, similarity.Correlations.add
    monkeypatch.setattr(kind, "add", lambda self, x, y, part: (sizes.append(len(part)), add(self, x, y, part)))
    # In each network 16, 24 and 16 units leave weights, 16, 24 and 16 enter them.
    monkeypatch.setattr(similarity, "MEMORY", 2 * 10 * 112 * 4)
    assert align(*pair(Small), data(64, 64), barrier_images=0).mode.id == whole.mode.id
    assert (max(sizes), sum(sizes)) == (10, 128)


class Routed(nn.Module):
    """Only some images go to the expert."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.expert, self.others = nn.Linear(6, 1), Odd(), Odd()

    def forward(self, x):
        rows = self.gate(x)[:, 0] > 0
        out = self.others(x)
        out[rows] += self.expert(x[rows])
        return out


def test_an_expert_that_gets_other_images_stays_in_place():
    net, a, b = pair(Routed)
    result = mb.align(net, a, b, data(64, 64))
    assert [match.name for match in result.matches] == ["others.first.weight"]
    assert ("images that the two networks route differently", "expert.first") in result.stopped
    assert torch.equal(result.mode.params["expert.first.bias"], b.params["expert.first.bias"])
    # Where both route alike, everything is found.
    for by in METHODS:
        same = renumbered(a, find_groups(net, data(64)[0][0]))
        assert align(net, a, same, data(64, 64), by=by, barrier_images=0).mode.id == a.id


def test_dict_batches_of_other_lengths_and_of_one():
    class Texts(Odd):
        def forward(self, tokens):
            return super().forward(nn.functional.one_hot(tokens, 6).to(self.last.weight.dtype)).mean(1)

    net = seeded(Texts)
    mode = Mode.from_module(net)
    sizes = ((1, 7), (16, 9), (5, 4))
    train = [{"tokens": torch.randint(6, size), "labels": torch.zeros(size[0]).long()} for size in sizes]
    other = renumbered(mode, find_groups(net, {"tokens": train[0]["tokens"]}))
    assert other.id != mode.id
    assert align(net, mode, other, train, barrier_images=0).mode.id == mode.id


class Complex(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8, dtype=torch.complex64)

    def forward(self, x):
        return self.last(self.first(x.to(torch.complex64)).abs())


class InPlace(Odd):
    """Each network sees the images as they are, not what another one left of them; so does the caller."""

    def forward(self, x):
        return self.last(self.first(x.sub_(0.6).mul_(-3.0)).relu())


class Tied(Odd):
    """The same weights in two layers, and the transpose of others."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.again = nn.Linear(8, 8), nn.Linear(8, 8)
        self.again.weight = self.inner.weight

    def forward(self, x):
        h = self.first(x).relu()
        h = h + self.again((h + self.inner(h)).relu())
        return self.last(h + self.first((h @ self.first.weight).relu()))


@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Odd, torch.bfloat16), (Complex, None), (InPlace, torch.float32), (InPlace, torch.float64), (Tied, torch.float32)],
)
def test_other_dtypes_shared_weights_and_networks_that_work_in_place(kind, dtype, by):
    net = seeded(kind) if dtype is None else seeded(kind).to(dtype)
    train = [(images.to(dtype or torch.float32), labels) for images, labels in data(12, 12)]
    kept = [images.clone() for images, _ in train]
    mode = Mode.from_module(net)
    other = renumbered(mode, find_groups(net, kept[0].clone()))
    assert other.id != mode.id
    result = mb.align(net, mode, other, train, by=by)
    assert result.mode.id == mode.id
    assert result.quality_after > 0.999
    assert result.difference < (1e-6 if dtype in (torch.float32, torch.float64) else 1e-2)
    assert all(torch.equal(images, before) for (images, _), before in zip(train, kept, strict=True))


SPEC = {"first.weight": ("hidden", None), "first.bias": ("hidden",), "last.weight": (None, "hidden")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first.wait": ("hidden", None)}, "'first.wait'; did you mean first.weight"),
        ({"first.bias": ("hidden", None)}, "one entry per dimension of 'first.bias', which has 1, but got 2"),
        ({"last.bias": ("hidden",)}, "one size, but got 8 in 'first.weight' and 3 in 'last.bias'"),
        ({"last.weight": (None, None)}, "same function, but its logits differ by"),
    ],
)
def test_a_spec_by_hand_and_wrong_ones(change, message):
    net = seeded(Odd)
    mode = Mode.from_module(net)
    other = renumbered(mode, find_groups(net, torch.rand(2, 6)))
    assert align(net, mode, other, data(9), by="weights", spec=SPEC).mode.id == mode.id
    with pytest.raises(ModebridgeError, match=message):
        align(net, mode, other, data(9), by="weights", spec={**SPEC, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": SPEC}, "by='weights' with a spec"),
        ({"by": "magic"}, "by to be 'activations' or 'weights', but got 'magic'"),
        ({"data": []}, "data to have batches"),
        ({"images": 0}, "got no image"),
        ({"data": [(torch.rand(4, 2), torch.zeros(4).long())]}, r"Odd to run on the images of data, \(2,\) of"),
        ({"net": nn.Sequential(nn.LazyLinear(8))}, r"'0.weight' has no shape yet; run the network once"),
    ],
)
def test_bad_arguments(change, message):
    net = seeded(Odd)
    mode = Mode.from_module(net)
    with pytest.raises(ModebridgeError, match=message):
        align(**{"net": net, "a": mode, "b": mode, "data": data(9), **change})


def test_nothing_to_align():
    with pytest.raises(ModebridgeError, match="have units that can be permuted, but found none; there is nothing"):
        find_groups(nn.Linear(3, 2), torch.rand(2, 3))
