"""A BatchEnsemble is M networks with weights W * (s r^T), trained as the paper does."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modebridge.baselines import BatchEnsemble, RankOne
from modebridge.baselines.baseline import replaced
from modebridge.errors import ModebridgeError
from modebridge.nets import SameConv2d, resnet
from modebridge.seeds import generator
from modebridge.training import TrainConfig
from tests.scenarios import fit_mode


def explicit(rank_one, m):
    """The layer of one member, with its own weight W * (s r^T)."""
    layer = copy.deepcopy(rank_one.layer)
    # The dense weight of all groups has r on its columns; of each group only its own columns are left.
    groups, outputs = getattr(layer, "groups", 1), len(layer.weight)
    outer = torch.outer(rank_one.s[m], rank_one.r[m])
    mask = torch.stack([outer[o].view(groups, -1)[o // (outputs // groups)] for o in range(outputs)])
    layer.weight.data = layer.weight.detach() * mask.view(*mask.shape, *[1] * (layer.weight.dim() - 2)).detach()
    if rank_one.bias is not None:
        layer.bias = nn.Parameter((rank_one.bias[m] if rank_one.bias.dim() == 2 else rank_one.bias).detach().clone())
    return layer


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 7), (5,)),
        (nn.Linear(5, 7, bias=False), (4, 5)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 7, 7)),
        (nn.Conv1d(4, 6, 3, groups=2, bias=False), (4, 8)),
        (SameConv2d(4, 6, 3, stride=2), (4, 8, 8)),
    ],
)
@pytest.mark.parametrize("bias_each", [False, True])
def test_a_layer_equals_explicit_layers(layer, shape, bias_each):
    members, layer = 3, copy.deepcopy(layer).double()
    rank_one = RankOne(layer, members, generator(0), bias_each=bias_each)
    assert torch.equal(rank_one.layer.weight, layer.weight)
    if rank_one.bias is not None:
        nn.init.normal_(rank_one.bias, generator=generator(1))
    x = torch.randn(members * 2, *shape, dtype=torch.float64, generator=generator(2))
    for m, (rows, given) in enumerate(zip(rank_one(x).chunk(members), x.chunk(members), strict=True)):
        torch.testing.assert_close(rows, explicit(rank_one, m)(given), rtol=1e-12, atol=1e-12)


def test_vectors_are_drawn_around_one():
    rank_one = RankOne(nn.Linear(2000, 1000), 4, generator(0))
    for vectors in (rank_one.r.detach(), rank_one.s.detach()):
        assert float(vectors.mean()) == pytest.approx(1, abs=0.03)
        assert float(vectors.std()) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("norm", ["bn", "frn"])
@torch.no_grad()
def test_a_network_equals_explicit_networks(norm):
    net = resnet("digits", norm, seed=0).double()
    images = torch.rand(5, 1, 8, 8, dtype=torch.float64, generator=generator(0))
    baseline = BatchEnsemble(net, 3, example=images, generator=generator(0)).eval()
    for layer in baseline.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(generator=generator(1))
            layer.running_var.uniform_(0.5, 2, generator=generator(2))
    baseline.net.head.bias.normal_(generator=generator(3))
    for m, logits in enumerate(baseline(images).chunk(3)):
        layers = {name: explicit(one, m) for name, one in baseline.net.named_modules() if isinstance(one, RankOne)}
        alone = replaced(baseline.net, layers).eval()
        assert [name for name, _ in alone.named_parameters()] == [name for name, _ in net.named_parameters()]
        torch.testing.assert_close(logits, alone(images), rtol=1e-10, atol=1e-10)
    assert baseline.net.head.bias.shape == (3, 10), "each member has a bias of its own there"
    assert baseline.net.layers[1].conv1.bias.shape == (16,), "and one of all elsewhere"


def test_training_is_torchs_own_sgd_with_two_paces():
    net = nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 3))
    batches = [(torch.randn(8, 4, generator=generator(k)), torch.arange(8) % 3) for k in range(3)]
    baseline = BatchEnsemble(net, 2, example=batches[0][0], generator=generator(0))
    config = TrainConfig(epochs=2, lr=0.2, momentum=0.9, weight_decay=0.01)
    trained = fit_mode(baseline, batches, config=config)
    vectors = [p for name, p in baseline.named_parameters() if name.endswith((".r", ".s"))]
    others = [p for name, p in baseline.named_parameters() if not name.endswith((".r", ".s"))]
    assert len(vectors) == 4
    groups = [{"params": others}, {"params": vectors, "weight_decay": 0.0}]
    sgd = torch.optim.SGD(groups, lr=0.2, momentum=0.9, weight_decay=0.01)
    for epoch in range(2):
        for group, share in zip(sgd.param_groups, (1.0, 0.5), strict=True):
            group["lr"] = share * config.lr * config.factor(epoch)
        for images, labels in batches:
            sgd.zero_grad()
            first, second = baseline(images).chunk(2)
            ((F.cross_entropy(first, labels) + F.cross_entropy(second, labels)) / 2).backward()
            sgd.step()
    for name, parameter in baseline.named_parameters():
        torch.testing.assert_close(trained.params[name], parameter.detach(), rtol=1e-5, atol=1e-6)


class Centred(nn.Module):
    """Looks at the whole batch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        y = self.first(x)
        return self.last(y - y.mean(0))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Centred(), "mixes the images of a batch"),
        (nn.TransformerEncoderLayer(4, 2, batch_first=True), "nn.MultiheadAttention"),
        (nn.Flatten(), "but got none"),
    ],
)
def test_what_cannot_be_one_is_refused(net, message):
    shape = (2, 5, 4) if isinstance(net, nn.TransformerEncoderLayer) else (2, 3)
    with pytest.raises(ModebridgeError, match=message):
        BatchEnsemble(net, 2, example=torch.rand(shape))
    with pytest.raises(ModebridgeError, match="2 to 64 members, but got 1;"):
        BatchEnsemble(net, 1, example=torch.rand(shape))
