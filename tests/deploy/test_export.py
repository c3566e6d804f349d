"""Files: what the library says in every way they can be asked, whole or not there, with their metadata inside."""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch
import torchvision
from torch import nn
from typer.testing import CliRunner

from modebridge.bridges import Bridge, VectorBody
from modebridge.cli.app import app
from modebridge.deploy import Calibration, DeployedEnsemble, export
from modebridge.deploy.export import Library, probe
from modebridge.ensembles import AnswerRule, Ensemble, SetRule, fit_temperature
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.scoring import evaluate
from tests.deploy.conftest import ALL_OUTPUTS, FITTED
from tests.deploy.scenes import by_hand, check_says_what_the_library_says, ensemble, headed, images, stirred, tied
from tests.test_modes import Scaled


def alone(net: nn.Module) -> Ensemble:
    return Ensemble(net.eval(), [Mode.from_module(net)])


@pytest.mark.parametrize("kind", ["cascade", "package"])
@pytest.mark.parametrize("count", [1, 9])
def test_every_output_is_the_librarys(own, kind, count, request):
    check_says_what_the_library_says(request.getfixturevalue(kind), own, images(count, seed=5), FITTED)


@pytest.mark.parametrize(
    ("suffix", "threshold"), [(".onnx", 2.0), (".onnx", None), pytest.param(".pt2", None, marks=pytest.mark.slow)]
)
def test_bridges_with_several_heads_and_taps(tmp_path, suffix, threshold):
    own, fitted = headed(), Calibration(0.9, 1.2)
    options = {"valid": fitted, "threshold": threshold, "outputs": ALL_OUTPUTS, "info": {"names": "abcd"}}
    file = export(own, tmp_path / f"heads{suffix}", images(1), **options)
    check_says_what_the_library_says(file, own, images(9, seed=5), fitted)
    meta = file.meta
    assert meta["members"] == ["a", "b", "c/0", "c/1", "c/2", "d"]
    assert (meta["bases"], meta["bridges"], meta["heads"], meta["taps"]) == (2, 2, [3, 1], ["0 + 2", "2"])
    # A body's last layer has all its heads; the unit is the base's 9 * 16 * 3 + 27 * 4 * 4 + 16 * 4.
    assert meta["cost"]["relative_flops"] == pytest.approx(2 + (14 * 5 + 5 * 12 + 4 * 5 + 5 * 4) / 928)


def test_files_without_a_threshold_always_run_all_members(tmp_path):
    own, labels = headed(), torch.arange(60) % 4
    valid = [(images(60), labels)]
    file = export(own, tmp_path / "a.onnx", images(2), outputs=(), valid=valid)
    session = onnxruntime.InferenceSession(str(file.path), providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_inputs()] == ["images"]
    assert [one.name for one in session.get_outputs()] == ["probabilities", "used"] == file.meta["outputs"]
    told = file(images(5))
    assert (told.entropy, told.members, told.used.tolist()) == (None, None, [6] * 5)
    # Not calibrated before: the temperature is the one that `calibrate` would have found.
    own.calibrate(valid)
    assert file.meta["temperature"] == pytest.approx(float(own.temperature), rel=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(told.probabilities, own(images(5)), atol=1e-5)
    with pytest.raises(ModebridgeError, match=r"a cascade for a threshold, but '.*a\.onnx' always runs all members"):
        file(images(1), threshold=0.5)
    # Of a calibrated ensemble, all members keep its own temperature.
    own.temperature.fill_(1.7)
    with torch.no_grad():
        tables = own.members(images(60))
    found = export(own, tmp_path / "b.pt2", images(2), valid=valid).meta
    assert found["temperature"] == pytest.approx(1.7)
    assert found["first_temperature"] == pytest.approx(fit_temperature(tables[0], labels), rel=1e-5)


def test_the_metadata(own, cascade, package):
    for file in (cascade, package):
        meta = DeployedEnsemble.load(file.path).meta
        assert meta == file.meta
        assert meta["members"] == ["mode-0", "mode-1", "I-0", "I-1", "II-10"]
        assert meta["image"] == [1, 8, 8]
        assert (meta["first_temperature"], meta["temperature"]) == FITTED[:2]
        assert (SetRule(**meta["sets"]), AnswerRule(**meta["answers"])) == FITTED[2:]
        assert meta["modes"] == [Mode.from_module(base).id for base in own.bases]
        assert meta["parity"]["largest_difference"] == file.parity < 1e-5
        assert 2.0 < meta["cost"]["relative_flops"] < 3.0
        assert {"torch", "python", "modebridge"} <= set(meta["versions"])
    meta = cascade.meta
    assert (meta["classes"], meta["scores"], meta["about"]) == (["ant", "bee", "cow"], {"accuracy": 0.5}, "a test")


def test_pixels_of_another_range_are_said_and_stored(own, tmp_path):
    with pytest.warns(UserWarning, match="go from -1 to 2, but `predict` and `serve` pass pixels from 0 to 1"):
        file = export(own, tmp_path / "a.onnx", torch.linspace(-1, 2, 128).view(2, 1, 8, 8))
    assert file.meta["pixels"] == [-1, 2]
    said = CliRunner().invoke(app, ["predict", str(file.path), "--examples"])
    assert "Images go from -1 to 2" in said.stderr
    assert export(own, tmp_path / "b.onnx", images(2), info={"pixels": (0, 255)}).meta["pixels"] == [0, 255]


def test_pixels_far_outside_of_the_range_are_doubted_once(little_onnx):
    file = DeployedEnsemble.load(little_onnx)
    with warnings.catch_warnings(action="error"):
        file(images(2) * 1.9)
        file(images(0))
    with pytest.warns(UserWarning, match=r"from 0 to \d+, but those of the networks from 0 to 1: scale them") as told:
        [file(images(2) * 255) for _ in range(2)]
    assert len(told) == 1


def test_any_client_of_onnx_runtime_can_leave_the_threshold_out(cascade, own):
    """And members that are not needed do not run: the profile lists every node that did, and no batch norm is left."""
    model = onnx.load(cascade.path)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["images", "threshold"]
    assert [value.name for value in model.graph.output] == ["probabilities", *ALL_OUTPUTS, "sets", "answered", "used"]
    batch = images(4)

    def convolutions(**feed):
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(cascade.path.parent / "profile")
        session = onnxruntime.InferenceSession(str(cascade.path), options, providers=["CPUExecutionProvider"])
        found = session.run(["probabilities"], {"images": batch.numpy(), **feed})[0]
        with open(session.end_profiling()) as file:  # noqa: PTH123
            ran = Counter(event.get("args", {}).get("op_name") for event in json.load(file))
        assert ran["BatchNormalization"] == 0
        return found, ran["Conv"] + ran["FusedConv"]

    told, most = convolutions()
    np.testing.assert_allclose(told, by_hand(own, batch, FITTED).probabilities, atol=1e-5)
    told, least = convolutions(threshold=np.array(0.0, np.float32))
    np.testing.assert_allclose(told, by_hand(own, batch, FITTED, 0.0).probabilities, atol=1e-5)
    assert 0 < least < most / 2


def test_no_image_and_threads(cascade):
    file = DeployedEnsemble.load(cascade.path, threads=1)
    none = file(images(0))
    assert (none.probabilities.shape, none.members.shape, none.used.dtype) == ((0, 3), (0, 5, 3), np.int64)
    batches = [images(k % 3 + 1, k) for k in range(12)]
    alone = [file(batch).probabilities for batch in batches]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda batch: file(batch.numpy()).probabilities, batches))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_bad_questions_are_said(cascade):
    for bad, threshold, message in (
        (torch.rand(2, 1, 8, 9), None, r"images of shape \(B, 1, 8, 8\), but got \(2, 1, 8, 9\)"),
        (torch.rand(1, 8, 8), None, r"images of shape \(B, 1, 8, 8\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), None, "floats in .0, 1., but got uint8; divide"),
        (images(1), float("nan"), "threshold to be at least 0, but got nan"),
    ):
        with pytest.raises(ModebridgeError, match=message):
            cascade(bad, threshold=threshold)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "fast.txt"}, "a file ending in .onnx or .pt2, but got '.*fast.txt'"),
        ({"example": torch.zeros(2, 1, 8, 8, dtype=torch.uint8)}, "images of example to be float32, int64"),
        ({"example": images(0)}, "example to hold at least one image"),
        ({"example": images(1) * float("nan")}, "example to be finite"),
        ({"classes": ["one"]}, "one name per class, 10 names, but got 1"),
        ({"info": {"names": ["one"]}}, "one name per mode and bridge, 2 names, but got 1"),
        ({"info": {"score": {}}}, "info to have names, .*, but got 'score'; did you mean scores"),
        ({"info": {"scores": {"nll": torch.ones(1)}}}, "to store in '.*fast.onnx', but got 'Object of type Tensor"),
        ({"info": {"scores": {"accuracy": float("nan")}}}, "Expected finite numbers, .* to store in '.*fast.onnx'"),
        ({"outputs": ["entropies"]}, "extra outputs, but got 'entropies'; did you mean entropy"),
        ({"path": "fast.pt2", "threshold": 0.5}, "a threshold .* in an .onnx file"),
        ({"threshold": float("nan")}, "a threshold of at least 0"),
        ({"valid": []}, "valid to have batches"),
        ({"valid": Calibration(1.0, 0.0)}, "temperatures to be positive, but got"),
        ({"path": "fast.pt2", "tolerance": 0.0}, r"within 0 of the library's, but got a difference of .*, so nothing"),
    ],
)
def test_bad_wishes_are_said_and_nothing_appears(tmp_path, change, message):
    wishes = {"path": "fast.onnx", "example": images(2)} | change
    path = tmp_path / wishes.pop("path")
    path.write_bytes(b"what was there")
    with pytest.raises(ModebridgeError, match=message):
        export(tied(), path, wishes.pop("example"), **wishes)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"what was there"


def test_without_the_extras_one_sentence(tmp_path, monkeypatch):
    """First of all: not even the run folder is looked at."""
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ModebridgeError, match=r"onnxscript is not installed; .*pip install -e '\.\[onnx\]'"):
        export(tied(), tmp_path / "fast.onnx", images(2))
    for name in ("modebridge.deploy.serve", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    for words, extra in ((["export", "nowhere", "fast.onnx"], "onnx"), (["serve", "nowhere.onnx"], "serve")):
        result = CliRunner().invoke(app, words)
        assert str(result.exception).endswith(f"pip install -e '.[{extra}]'.")


def test_parity_sees_one_wrong_way_to_ask(own):
    real, random = probe(images(70), own)
    assert ([len(batch) for batch in real], [len(batch) for batch in random]) == ([64, 1, 6], [7, 1])
    for error, wanted in (
        (lambda batch, threshold: 0.0, 0.0),
        (lambda batch, threshold: 0.01 * (len(batch) == 1), 0.01),
        (lambda batch, threshold: 0.01 * (threshold < 1), 0.01),
        (lambda batch, threshold: np.nan, float("inf")),
    ):
        found = Library(own, FITTED, cascade=True).difference(
            lambda *a, e=error: by_hand(own, a[0], FITTED, a[1])[0] + e(*a), real + random
        )
        assert found == pytest.approx(wanted, abs=1e-5)


class Cancels(nn.Module):
    def forward(self, x):
        return (x * 1000 + x) - x * 1000


def test_a_file_may_differ_as_float32_does():
    """A network whose probabilities are rounded to about 1e-5, on images of order one."""
    torch.manual_seed(0)
    own, many = alone(nn.Sequential(Cancels(), nn.Linear(8, 3))), torch.rand(64, 8)

    def check(batch, strict):
        library = Library(own, Calibration(1, 1), cascade=False)
        return library.check(lambda *a: own(a[0]).numpy() + 3e-5, [batch], 1e-5, strict=strict)

    assert check(many, strict=False) == pytest.approx(3e-5, abs=1e-6)
    for batch, strict in ((many, True), (many * 1e-3, False)):
        with pytest.raises(ModebridgeError, match=r"within 1e-05 of .* of 3e-05, .* in Python pass a larger tolerance"):
            check(batch, strict)


def test_a_random_network_is_named(tmp_path):
    class Always(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.5, training=True)

    with pytest.raises(ModebridgeError, match=r"two runs of the library differ too, .* random in the network"):
        export(alone(nn.Sequential(Always(), nn.Linear(8, 3))), tmp_path / "a.onnx", torch.rand(64, 8))


def test_equal_confidences_are_no_reason_to_refuse(tmp_path):
    """Rounding may send any of them either way; a wrong answer is seen among them all the same."""
    own, fitted = tied(), Calibration(1.3, 1.0)
    with torch.no_grad():
        members = own.members(images(7, seed=1))
    assert members[0].amax(-1).diff().abs().max() < 1e-6
    assert (members[1] - members[0]).abs().max() > 0.05, "a wrong way would be seen"
    assert export(own, tmp_path / "a.onnx", images(7), valid=fitted, threshold=0.5).parity < 1e-5

    def ask(batch, threshold, wrong=0.0):
        return by_hand(own, batch, fitted, threshold + 1e-6 * (-1) ** len(batch))[0] + wrong

    batches = [batch for some in probe(images(4), own) for batch in some]
    library = Library(own, fitted, cascade=True)
    assert library.difference(ask, batches) < 1e-5
    assert library.difference(lambda *a: ask(*a, wrong=0.01), batches) > 0.009


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_probabilities_that_are_nearly_zero(tmp_path, threshold):
    """The small constant before a logarithm must not be optimized away: without it, entropies are NaN."""
    net = nn.Linear(4, 3, bias=False)
    net.weight.data = 300 * torch.eye(3, 4)
    file = export(alone(net), tmp_path / "a.onnx", torch.eye(4)[:3], threshold=threshold, valid=Calibration(11, 11))
    assert np.isfinite(file(torch.eye(4)).entropy).all()
    floor = 1e-12 ** (1 / 11)
    wanted = np.array([1, floor, floor]) / (1 + 2 * floor)
    np.testing.assert_allclose(file(torch.eye(4)).probabilities[:, 0], [*wanted, 1 / 3], rtol=1e-4)


def test_convolutions_without_a_bias(tmp_path):
    """torch.onnx gives them one, which in 3-D has a wrong shape."""
    own = alone(nn.Sequential(nn.Conv3d(1, 4, 3, padding=1, bias=False), nn.ReLU(), nn.Conv3d(4, 3, 1)))
    file, x = export(own, tmp_path / "net.onnx", torch.rand(2, 1, 4, 5, 6)), torch.rand(3, 1, 4, 5, 6)
    np.testing.assert_allclose(file(x).probabilities, own(x).numpy(), atol=1e-6)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_normalization_as_a_layer(tmp_path, suffix):
    """As the README recommends; torchvision's first version of it branches on a value."""
    normalize = torchvision.transforms.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    own = alone(nn.Sequential(normalize, nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)))
    file, x = export(own, tmp_path / f"net{suffix}", torch.rand(2, 3, 6, 6)), torch.rand(3, 3, 6, 6)
    np.testing.assert_allclose(file(x).probabilities, own(x).numpy(), atol=1e-6)


def test_a_network_with_state_that_is_no_tensor(tmp_path):
    nets = [Scaled().eval() for _ in range(2)]
    own = Ensemble(nets[0], [Mode.from_module(net) for net in nets])
    file, batch = export(own, tmp_path / "a.pt2", torch.rand(2, 4)), torch.ones(3, 4)
    np.testing.assert_allclose(file(batch).probabilities, own.predict_proba(batch), atol=1e-5)


class Looks(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Leaves(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() * 2)


class Reads(nn.Module):
    """A transformer by hand, with a class token; in evaluation mode torch would run it as one operation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.zeros(1, 1, 8))
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, x):
        return self.layers(torch.cat([self.first.expand(len(x), -1, -1), x], 1))[:, 0]


def test_a_transformer_by_hand(tmp_path):
    own = alone(Reads())
    assert export(own, tmp_path / "a.onnx", torch.rand(2, 4, 8)).parity < 1e-5
    assert torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ModebridgeError, match=r"use x\.shape\[0\] instead of len\(x\)"):
        export(own, tmp_path / "a.pt2", torch.rand(2, 4, 8))


@pytest.mark.parametrize(("inner", "suffix"), [(Looks, "onnx"), (Looks, "pt2"), (Leaves, "pt2")])
def test_what_cannot_be_exported_is_one_sentence(tmp_path, capfd, inner, suffix):
    with pytest.raises(ModebridgeError) as caught:
        export(alone(nn.Sequential(nn.Linear(4, 3), inner())), tmp_path / f"a.{suffix}", torch.rand(2, 4))
    exporter = "torch.onnx" if suffix == "onnx" else "torch.export"
    message = str(caught.value)
    assert message.startswith(f"Expected the ensemble to be exportable by {exporter}, but got '")
    assert ("data-dependent" in message) == (inner is Looks)
    assert message.isprintable()
    captured = capfd.readouterr()
    assert captured.out + captured.err == "", "no screen of graph either"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "tap", "width"),
    [
        (lambda: torchvision.models.resnet18(num_classes=5), "layer3", 256),
        (lambda: timm.create_model("resnet18", num_classes=5), "layer3", 256),
        (lambda: timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=32), "blocks.3", 192),
    ],
)
def test_networks_of_others(tmp_path, make, tap, width):
    torch.manual_seed(0)
    net = stirred(make(), 0)
    mode = Mode.from_module(net)
    layout = "map" if width == 256 else "tokens"
    own = Ensemble(net, [mode], [Bridge(VectorBody(width, 8, 5, layout=layout), [mode], tap)])
    for name in ("a.onnx", "a.pt2"):
        file, batch = export(own, tmp_path / name, torch.rand(2, 3, 32, 32)), torch.ones(3, 3, 32, 32)
        np.testing.assert_allclose(file(batch).probabilities, own.predict_proba(batch), atol=1e-5)


@pytest.mark.parametrize(
    ("suffix", "threshold", "method"), [(".onnx", None, "aps"), (".onnx", 0.7, "raps"), (".pt2", None, "lac")]
)
def test_decisions_are_in_the_file(tmp_path, suffix, threshold, method):
    own, number = ensemble(ones=1, twos=0), torch.arange(150)
    parts = images(150, seed=3), images(150, seed=4)
    valid = [(part, own.predict(part).where(number % 4 > 0, number % 3)) for part in parts]  # some labels are wrong
    own.calibrate(valid).conformal(valid, 0.8, method, per_class=True).abstain(valid, risk=0.5)
    if threshold is not None:
        with pytest.raises(ModebridgeError, match="held-out data to fit the sets and answers of a cascade"):
            export(own, tmp_path / "fast.onnx", images(2), threshold=threshold)
    file = export(own, tmp_path / f"fast{suffix}", images(64), threshold=threshold, valid=valid if threshold else None)
    batch = images(40, seed=5)
    table = torch.from_numpy(file.predict_proba(batch)).double()
    rules = SetRule(**file.meta["sets"]), AnswerRule(**file.meta["answers"])
    assert (rules == (own.sets, own.answers)) == (threshold is None)
    assert np.array_equal(file.predict_sets(batch), rules[0](table))
    assert np.array_equal(file.predict(batch), table.argmax(1).where(rules[1](table), -1))
    record = file.records(batch)[0]
    assert record["set"] == [str(k) for k in range(3) if file.predict_sets(batch)[0, k]]
    assert file.predict_sets(batch[:0]).shape == (0, 3)
    if threshold is None:
        assert np.array_equal(file.predict_sets(batch), own.predict_sets(batch))
        assert np.array_equal(file.predict(batch), own.predict(batch))
    sizes = [file.predict_sets(part).sum(1).mean() for part, _ in valid]
    assert evaluate(file, valid).set_size == pytest.approx(sum(sizes) / 2)


def test_a_file_without_sets_says_so(little_onnx):
    file = DeployedEnsemble.load(little_onnx)
    with pytest.raises(ModebridgeError, match="has none; call `conformal"):
        file.predict_sets(images(1))
    assert file.predict(images(5)).min() >= 0


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_sets_of_classes_that_are_equally_unlikely(tmp_path, method):
    """Confident networks, wrong labels: a temperature lifts many classes from the floor to the same probability."""
    torch.manual_seed(0)
    net = nn.Linear(6, 20)
    net.weight.data.mul_(200)
    batch = torch.rand(300, 6)
    labels = net(batch).argmax(1).where(torch.rand(300) < 0.92, torch.randint(20, (300,)))
    own = alone(net).calibrate([(batch, labels)]).conformal([(batch, labels)], 0.95, method)
    file = export(own, tmp_path / "tied.onnx", batch[:64])
    new = torch.rand(500, 6)
    assert np.array_equal(file.predict_sets(new), own.predict_sets(new))
    assert torch.equal(own.predict_sets(new[:1]), own.predict_sets(new)[:1])
    assert own.predict_sets(new).sum(1).unique().numel() > 1
