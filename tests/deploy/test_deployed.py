"""Files: what the library says in every way they can be asked, whole or not there, with their metadata inside."""

from __future__ import annotations

import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from modebridge.deploy import ALL, Deployed, OneModule, export
from modebridge.deploy.parity import largest_difference, probe
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.scoring.scores import accuracy, nll
from tests.deploy.conftest import FITTED
from tests.deploy.scenes import ensemble, images, middle, staged_answer
from tests.networks import HuggingFaceStyle
from tests.scenarios import Vectors


@pytest.mark.parametrize("kind", ["elastic", pytest.param("package", marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_every_output_is_the_librarys(own, kind, count, request):
    file = Deployed.load(request.getfixturevalue(kind).path)
    one, batch = OneModule(own, FITTED, folded=False), images(count, seed=5)
    ways = [(None, None), *[(j, None) for j in range(4)], (None, 0.0), (1, ALL)]
    ways += [(None, middle(own, batch, FITTED.first)), (1, middle(own, batch, FITTED.first))] if count > 1 else []
    for bridges, threshold in ways:
        told, wanted = file(batch, bridges=bridges, threshold=threshold), staged_answer(one, batch, bridges, threshold)
        for name in told._fields:
            got = getattr(told, name)
            np.testing.assert_allclose(got, getattr(wanted, name).numpy(), atol=1e-5, err_msg=f"{name} {bridges}")
        assert told.probabilities.dtype == np.float32


@pytest.mark.parametrize("kind", ["elastic", pytest.param("package", marks=pytest.mark.slow)])
def test_the_metadata(own, kind, request):
    done = request.getfixturevalue(kind)
    meta = Deployed.load(done.path).meta
    assert meta == json.loads(json.dumps(done.meta))
    assert meta["members"] == ["mode-0", "mode-1", "I-0", "I-1", "II-10"]
    assert meta["image"] == [1, 8, 8]
    assert meta["normalisation"]["mean"] == [0.3]
    assert meta["temperatures"] == [1.0, 1.1, 1.2, 1.3]
    assert meta["modes"] == [Mode.from_module(base).id for base in own.bases]
    assert meta["parity"]["largest_difference"] == done.parity < 1e-5
    assert done.bytes == done.path.stat().st_size
    assert meta["format"] == 1
    assert meta["cost"]["by_bridges"] == sorted(meta["cost"]["by_bridges"])
    assert meta["cost"]["by_bridges"][0] == 2.0
    assert meta["cost"]["by_bridges"][-1] == meta["cost"]["relative_flops"]
    assert {"torch", "python"} <= set(meta["versions"])
    if kind == "elastic":
        assert (meta["classes"], meta["scores"], meta["about"]) == (["ant", "bee", "cow"], {"accuracy": 0.5}, "a test")


def test_any_client_of_onnx_runtime_can_leave_the_new_inputs_out(elastic, own):
    """And the work of bridges that are not asked for is not done: its profile lists every node that ran."""
    onnx.checker.check_model(onnx.load(elastic.path), full_check=True)
    batch = images(4)

    def convolutions(**feed):
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(elastic.path.parent / "profile")
        session = onnxruntime.InferenceSession(str(elastic.path), options, providers=["CPUExecutionProvider"])
        found = session.run(["probabilities"], {"images": batch.numpy(), **feed})[0]
        with open(session.end_profiling()) as file:  # noqa: PTH123
            ran = Counter(event.get("args", {}).get("op_name") for event in json.load(file))
        return found, ran["Conv"] + ran["FusedConv"]

    told, most = convolutions()
    np.testing.assert_allclose(told, staged_answer(OneModule(own, FITTED), batch).probabilities, atol=1e-5)
    counts = [convolutions(bridges=np.array(j))[1] for j in range(4)]
    assert counts == sorted(set(counts)), "each further bridge has convolutions of its own"
    assert counts[-1] == most
    alone = convolutions(threshold=np.array(0.0, np.float32))[1]
    assert alone < counts[0], "where every image is sure the second base does not run"


def test_no_image_and_threads(elastic):
    file = Deployed.load(elastic.path, threads=1)
    none = file(images(0))
    assert none.probabilities.shape == (0, 3)
    assert none.members.shape == (0, 5, 3)
    assert none.used.dtype == np.int64
    batches = [images(k % 3 + 1, k) for k in range(12)]
    alone = [file(batch).probabilities for batch in batches]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda batch: file(batch).probabilities, batches))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.rand(2, 1, 8, 9), r"images of shape \(B, 1, 8, 8\), but got \(2, 1, 8, 9\)"),
        (torch.rand(1, 8, 8), r"images of shape \(B, 1, 8, 8\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "floats in .0, 1., but got uint8; divide"),
    ],
)
def test_bad_images_are_said(elastic, bad, message):
    with pytest.raises(ModebridgeError, match=message):
        Deployed.load(elastic.path)(bad)


def test_bad_files_are_said(tmp_path, elastic):
    with pytest.raises(ModebridgeError, match="to be a file, but it does not exist"):
        Deployed.load(tmp_path / "no.onnx")
    for name in ("bad.onnx", "bad.pt2"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(ModebridgeError, match="download it again"):
            Deployed.load(tmp_path / name)
    (tmp_path / "bad.txt").write_bytes(b"nothing")
    with pytest.raises(ModebridgeError, match=r"ending in .onnx or .pt2"):
        Deployed.load(tmp_path / "bad.txt")
    model = onnx.load(elastic.path)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "bare.onnx")
    with pytest.raises(ModebridgeError, match="to be written by modebridge"):
        Deployed.load(tmp_path / "bare.onnx")
    onnx.helper.set_model_props(model, {"modebridge": json.dumps({"format": 99})})
    onnx.save(model, tmp_path / "new.onnx")
    with pytest.raises(ModebridgeError, match="format 4 or older, but got 99"):
        Deployed.load(tmp_path / "new.onnx")


def small() -> Ensemble:
    return ensemble(bases=1, ones=2, twos=0)


@pytest.mark.slow
def test_nothing_appears_where_parity_fails(tmp_path):
    path = tmp_path / "fast.pt2"
    path.write_bytes(b"what was there")
    with pytest.raises(ModebridgeError, match=r"within 0 of the library's, but got a difference of .*, so nothing was"):
        export(small(), path, images(2), tolerance=0.0)
    assert [file.name for file in tmp_path.iterdir()] == ["fast.pt2"]
    assert path.read_bytes() == b"what was there"


def test_parity_sees_one_wrong_way_to_ask(own):
    one = OneModule(own, FITTED)

    def ask(batch, bridges, threshold, wrong=None):
        found = staged_answer(one, batch, bridges, threshold).probabilities.numpy()
        return found + (0.01 if wrong is not None and wrong(batch, bridges, threshold) else 0.0)

    batches = probe(images(2), images(5))
    assert {1, 2, 3, 5, 7} <= {len(batch) for batch in batches}
    assert largest_difference(ask, own, FITTED, batches, elastic=True) < 1e-5
    for wrong in (
        lambda batch, bridges, threshold: len(batch) == 1,
        lambda batch, bridges, threshold: bridges == 1,
        lambda batch, bridges, threshold: threshold is not None,
    ):
        found = largest_difference(lambda *a, w=wrong: ask(*a, wrong=w), own, FITTED, batches, elastic=True)
        assert found == pytest.approx(0.01, abs=1e-4)
    nan = largest_difference(lambda *a: ask(*a) * np.nan, own, FITTED, batches, elastic=False)
    assert nan == float("inf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "fast.txt"}, "to end in .onnx or .pt2, but got 'fast.txt'"),
        ({"example": torch.zeros(2, 1, 8, 8, dtype=torch.uint8)}, "batch of float images"),
        ({"example": images(0)}, "example to hold at least one image"),
        ({"classes": ["one"]}, "one name per class, 3 names, but got 1"),
        ({"names": ["one"]}, "one name per mode and bridge, 3 names, but got 1"),
        ({"elastic": False, "threshold": 0.5}, "elastic=True for a threshold"),
        ({"grouped": True}, "elastic=False for grouped bridges"),
        ({"path": "fast.pt2", "int8": images(2)}, "an .onnx file for int8"),
        ({"aot": True}, "a .pt2 file for aot"),
        ({"valid": []}, "valid to have batches"),
    ],
)
def test_bad_wishes_are_said(tmp_path, change, message):
    wishes = {"path": "fast.onnx", "example": images(2)} | change
    with pytest.raises(ModebridgeError, match=message):
        export(small(), tmp_path / wishes.pop("path"), wishes.pop("example"), **wishes)
    assert list(tmp_path.iterdir()) == []


def test_without_onnx_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ModebridgeError, match=r"pip install 'modebridge\[onnx\]'"):
        export(small(), tmp_path / "fast.onnx", images(2))


def test_without_a_compiler_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModebridgeError, match="neither g\\+\\+ nor clang"):
        export(small(), tmp_path / "fast.pt2", images(2), aot=True)


@pytest.mark.slow
@torch.no_grad()
def test_plain_files_with_grouped_bridges(tmp_path):
    own = small()
    labels = torch.arange(30) % 3
    done = export(
        own,
        tmp_path / "a.onnx",
        images(2),
        elastic=False,
        uncertainty=False,
        valid=[(images(30), labels)],
        grouped=True,
    )
    file = Deployed.load(done.path)
    assert done.meta["outputs"] == ["probabilities", "used"]
    told = file(images(5))
    assert told.entropy is None
    assert told.members is None
    assert told.used.tolist() == [3] * 5
    # Not calibrated before: the temperature is the one that `calibrate` would have found.
    own.calibrate([(images(30), labels)])
    assert done.meta["temperature"] == pytest.approx(float(own.temperature), rel=1e-5)
    np.testing.assert_allclose(told.probabilities, own(images(5)), atol=1e-5)
    with pytest.raises(ModebridgeError, match="an elastic file for bridges and threshold"):
        file(images(1), bridges=1)


@pytest.mark.slow
def test_a_plain_package_is_one_program(tmp_path):
    own = small()
    path = export(own, tmp_path / "a.pt2", images(2), elastic=False).path
    program = torch.export.load(path).module()
    with torch.no_grad():
        torch.testing.assert_close(program(images(5)), own.members(images(5)), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_threshold_of_its_own(tmp_path):
    own, batch = small(), images(8)
    threshold = middle(own, batch, 1.3)
    file = Deployed.load(export(own, tmp_path / "a.pt2", images(2), threshold=threshold).path)
    assert sorted(set(file(batch).used.tolist())) == [1, 3]
    assert set(file(batch, threshold=ALL).used.tolist()) == {3}


@pytest.mark.slow
def test_any_module(tmp_path):
    """Vectors instead of images, tied weights, no bridges."""
    nets = [Vectors().eval(), Vectors().eval()]
    own = Ensemble(nets[0], [Mode.from_module(net) for net in nets])
    done = export(own, tmp_path / "a.onnx", torch.rand(3, 4))
    told = Deployed.load(done.path)(torch.rand(5, 4))
    assert told.used.tolist() == [2] * 5
    assert done.meta["bridges"] == 0


@pytest.mark.slow
@torch.no_grad()
def test_int8_says_what_it_costs(tmp_path):
    own = ensemble(bases=1, ones=1, twos=0)
    batch, labels = images(60), torch.arange(60) % 3
    done = export(own, tmp_path / "a.onnx", images(2), int8=images(32, seed=9), check=(batch, labels))
    file = Deployed.load(done.path)
    told = torch.from_numpy(file(batch).probabilities)
    assert done.int8 is not None
    assert (done.int8.accuracy, done.int8.nll) == pytest.approx((accuracy(told, labels), nll(told, labels)), abs=1e-6)
    assert done.int8.fp32_nll == pytest.approx(nll(own(batch), labels), abs=1e-6)
    assert done.int8.agreement == float((told.argmax(-1) == own(batch).argmax(-1)).double().mean())
    assert 1e-5 < done.parity < 0.3
    assert (done.meta["precision"], done.meta["int8"]["images"]) == ("int8", 60)
    kinds = {tensor.data_type for tensor in _weights(onnx.load(done.path).graph)}
    assert onnx.TensorProto.INT8 in kinds


def _weights(graph):
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _weights(attribute.g)


@pytest.mark.slow
def test_compiled_ahead_of_time(tmp_path, own):
    done = export(own, tmp_path / "a.pt2", images(2), aot=True, temperatures=FITTED)
    one = OneModule(own, FITTED)
    for bridges in (0, 3):
        told = Deployed.load(done.path)(images(5), bridges=bridges)
        np.testing.assert_allclose(told.probabilities, staged_answer(one, images(5), bridges).probabilities, atol=1e-5)


@pytest.mark.slow
def test_a_network_that_returns_an_object(tmp_path):
    net = HuggingFaceStyle().eval()
    own = Ensemble(net, [Mode.from_module(net)])
    x = torch.rand(3, 3, 32, 32)
    done = export(own, tmp_path / "h.onnx", example=x[:1].half())
    assert done.parity < 1e-5
    # Nobody knows how its images were normalised, and the file does not pretend to.
    assert "not known" in done.meta["normalisation"]["input"]


def test_batch_norm_over_tokens_is_not_folded(tmp_path):
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(7), nn.Flatten(), nn.Linear(56, 3)).eval()
    own = Ensemble(net, [Mode.from_module(net)])
    assert export(own, tmp_path / "t.onnx", example=torch.rand(2, 7, 6)).parity < 1e-5


def test_neighbours_stay_and_bad_wishes_are_sentences(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    own = Ensemble(net, [Mode.from_module(net)])
    x = torch.rand(2, 1, 2, 2)
    (tmp_path / "f.new.onnx").write_text("mine")
    export(own, tmp_path / "f.onnx", example=x)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["f.new.onnx", "f.onnx"]
    file = Deployed.load(tmp_path / "f.onnx")
    for wrong, words in (
        (lambda: export(own, tmp_path / "g.onnx", example=x * float("nan")), "example to be finite"),
        (lambda: export(own, tmp_path / "g.onnx", example=x, check=torch.rand(2, 1, 3, 3)), "images of check to have"),
        (lambda: file(x, bridges="1"), "bridges to be from 0 to 0, but got 1"),
        (lambda: file(x, threshold=float("nan")), "threshold to be at least 0, but got nan"),
    ):
        with pytest.raises(ModebridgeError, match=words):
            wrong()
    assert not (tmp_path / "g.onnx").exists()
