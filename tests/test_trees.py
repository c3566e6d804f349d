"""Tree arithmetic by name."""

import torch

from modebridge import trees


def tree(*values):
    return {f"p{k}": torch.tensor(v) for k, v in enumerate(values)}


def test_combine_is_linear_and_by_name():
    a, b = tree([1.0, 2.0], 3.0), dict(reversed(tree([10.0, 20.0], 30.0).items()))
    out = trees.combine([2.0, 0.5], [a, b])
    assert out["p0"].tolist() == [7.0, 14.0]
    assert out["p1"].item() == 21.0


def test_combine_with_weights_zero_and_one_is_exact_even_beside_infinities():
    a, b = tree([0.1, 0.2]), tree([float("inf"), float("nan")])
    assert trees.combine([1.0, 0.0], [a, b])["p0"] is a["p0"]


def test_norm_and_size_of_empty_and_one():
    assert float(trees.norm({})) == 0.0
    assert trees.size({}) == 0
    assert float(trees.norm(tree([3.0, 4.0]))) == 5.0


def test_fingerprint_sees_bytes_names_and_types_only():
    a = tree([1.0, 2.0], 3.0)
    assert trees.fingerprint(a) == trees.fingerprint(dict(reversed(a.items())))
    assert trees.fingerprint(a) != trees.fingerprint({**a, "p1": torch.tensor(3.0 + 1e-6)})
    assert trees.fingerprint(a) != trees.fingerprint({**a, "p1": torch.tensor(3.0, dtype=torch.float64)})
    assert trees.fingerprint({}, a) != trees.fingerprint(a, {})
