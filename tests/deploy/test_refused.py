"""Ties, and what cannot be exported: no false refusal, and the true ones name the user's own module."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from modebridge.deploy import OneModule, Temperatures, export
from modebridge.deploy.parity import largest_difference, probe
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from tests.deploy.scenes import images, staged_answer, tied


@pytest.mark.slow
def test_equal_confidences_are_no_reason_to_refuse(tmp_path):
    own = tied()
    with torch.no_grad():
        members = own.members(images(7, seed=1))
    assert members[0].amax(-1).diff().abs().max() < 1e-6
    assert (members[1] - members[0]).abs().max() > 0.05, "a wrong way would be seen"
    assert export(own, tmp_path / "a.onnx", images(7), temperatures=Temperatures(1.3, (1.0, 1.0))).parity < 1e-5


def test_a_wrong_answer_is_seen_among_ties():
    own, fitted = tied(), Temperatures.same(1.0, 1)
    one = OneModule(own, fitted)
    batches = probe(images(4))

    def ask(batch, bridges, threshold, how=lambda found: found):
        # Rounding may send any of them either way.
        sure = 0.0 if threshold is None else threshold + 1e-6 * (-1) ** len(batch)
        found = staged_answer(one, batch, bridges, None if threshold is None else sure)
        return how(found.probabilities.numpy()) if threshold is not None else found.probabilities.numpy()

    assert largest_difference(ask, own, fitted, batches, elastic=True) < 1e-5
    for how in (lambda found: found + 0.01, lambda found: found[::-1].copy() + 0.01):
        assert largest_difference(lambda *a, h=how: ask(*a, how=h), own, fitted, batches, elastic=True) > 0.009


class Looks(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x


class Bessel(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Leaves(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() * 2)


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.gate = nn.Sequential(nn.ReLU(), inner)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.gate(self.first(x)))


@pytest.mark.parametrize(
    ("inner", "suffix", "elastic", "words"),
    [
        (Looks, "onnx", True, "a branch or a number that depends on the values in a tensor"),
        (Looks, "pt2", False, "a branch or a number that depends on the values in a tensor"),
        pytest.param(
            Bessel, "onnx", True, "the operation prims.bessel_j0, which ONNX does not have", marks=pytest.mark.slow
        ),
        (Leaves, "pt2", True, "'.numpy() is not supported for tensor subclasses.'"),
    ],
)
def test_the_users_module_is_named(tmp_path, capfd, inner, suffix, elastic, words):
    net = Outer(inner()).eval()
    own = Ensemble(net, [Mode.from_module(net)])
    with pytest.raises(ModebridgeError) as caught:
        export(own, tmp_path / f"a.{suffix}", torch.rand(2, 4), elastic=elastic)
    message = str(caught.value)
    assert message.startswith(f"Expected Outer to be exportable by torch.{'onnx' if suffix == 'onnx' else 'export'}, ")
    assert f"but got {words} in its submodule 'gate.1' ({inner.__name__}), test_refused.py:" in message
    assert "\x1b" not in message
    assert "\n" not in message
    assert len(message) < 400
    captured = capfd.readouterr()
    assert captured.out + captured.err == "", "no screen of graph either"
    assert list(tmp_path.iterdir()) == []


def test_a_bridge_is_named_too(tmp_path):
    own = tied()
    own.bridges[0].body = nn.Sequential(own.bridges[0].body, Looks())
    words = r"Expected Sequential to be exportable by torch.export, .* in its submodule '1' \(Looks\)"
    with pytest.raises(ModebridgeError, match=words):
        export(own, tmp_path / "a.pt2", images(2))


def test_batches_of_one_size_only(tmp_path):
    net = nn.Sequential(nn.Unflatten(0, (2, -1)), nn.Flatten(0, 1), nn.Linear(4, 3)).eval()
    own = Ensemble(net, [Mode.from_module(net)])
    with pytest.raises(ModebridgeError, match=r"Sequential to run on one row of the example, .*accepts any batch size"):
        export(own, tmp_path / "a.pt2", torch.rand(2, 4))


WITHOUT = """
import sys

class Absent:
    "Finds nothing where the named packages are, as if they had never been installed."

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Absent())
import modebridge.runs.store
# Where a run folder is read, which takes long; it must not come to that.
modebridge.runs.store.RunFolder.__init__ = None
from modebridge.cli import main
sys.argv = ["modebridge", *{arguments!r}]
main()
"""


@pytest.mark.slow
def test_without_the_extra_the_program_says_so_first(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    arguments = ["export", str(tmp_path), str(tmp_path / "fast.onnx")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names=["onnx", "onnxscript", "onnxruntime"], arguments=arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(
        "modebridge: Expected onnx, onnxscript, onnxruntime for .onnx files, but got 'No module"
    )
    assert done.stderr.endswith("pip install 'modebridge[onnx]'.\n")
    assert done.stderr.count("\n") == 1
