"""Multiply-adds against closed forms, of the products that torch's own counter takes for nothing too."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modebridge.nets.flops import counting, invoke
from modebridge.nets.quirks import on_copy

PRODUCTS = {
    "a matrix and a vector": (lambda m, v: m @ v, [(3, 4), (4,)], 12),
    "a vector and a matrix": (lambda v, m: v @ m, [(4,), (4, 5)], 20),
    "a batch of matrices and a vector": (lambda m, v: m @ v, [(2, 3, 4), (4,)], 24),
    "a matrix and a vector, added": (torch.addmv, [(3,), (3, 4), (4,)], 12),
    "a batch of products, summed": (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], 2 * 3 * 4 * 5),
    "two vectors": (torch.dot, [(4,), (4,)], 4),
    "two vectors, by vdot": (torch.vdot, [(4,), (4,)], 4),
    "a linear layer of one vector": (F.linear, [(4,), (5, 4), (5,)], 20),
    "einsum, matrices": (lambda a, b: torch.einsum("ij,jk->ik", a, b), [(3, 4), (4, 5)], 60),
    "einsum, a matrix and a vector": (lambda a, b: torch.einsum("ij,j->i", a, b), [(3, 4), (4,)], 12),
    "einsum, two vectors": (lambda a, b: torch.einsum("i,i->", a, b), [(4,), (4,)], 4),
    "einsum, rows": (lambda a, b: torch.einsum("bi,bi->b", a, b), [(3, 4), (3, 4)], 12),
    # In two steps: the weights with one side, and what comes out with the other.
    "einsum, bilinear": (
        lambda x, w, y: torch.einsum("bi,oij,bj->bo", x, w, y),
        [(2, 3), (5, 3, 4), (2, 4)],
        2 * 5 * 3 * 4 + 2 * 5 * 4,
    ),
    # Four projections and a perceptron of five tokens, two products of attention.
    "attention, fused otherwise": (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        [(1, 5, 8)],
        5 * (4 * 8 * 8 + 2 * 8 * 16) + 2 * 5 * 5 * 8,
    ),
    "a recurrent layer, fused on CPUs": (nn.LSTM(3, 4, 2, bidirectional=True), [(5, 2, 3)], 6080),
}


def flops(module, *inputs):
    def count(copy, given):
        with counting() as counted:
            invoke(copy, given)
        return counted()

    return on_copy(module, inputs, count)


class _Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


class _Looks(_Calls):
    """Looks at its values, so that it must be counted on a real copy."""

    def forward(self, *tensors):
        assert all(float(tensor.sum()) > 0 for tensor in tensors)
        return super().forward(*tensors)


@pytest.mark.parametrize("kind", [_Calls, _Looks])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, kind):
    function, shapes, expected = PRODUCTS[name]
    assert flops(kind(function), *[torch.rand(shape) for shape in shapes]) == expected


def test_recurrent_layers_fused_by_cudnn():
    layer, x, state = nn.LSTM(3, 4).to("meta"), torch.empty(5, 2, 3, device="meta"), torch.empty(1, 2, 4, device="meta")
    rest = (2, 4, 0, 1, False, 0.0, False, False, [], None)
    with torch.no_grad(), counting() as counted:
        torch.ops.aten._cudnn_rnn(x, layer._flat_weights, 4, None, state, state, *rest)
    assert counted() == 5 * 2 * 4 * 4 * (3 + 4)
