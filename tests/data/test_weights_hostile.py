"""Files that hold no numbers of a network, or far more than they seem to: one sentence, before anything is unpacked."""

from __future__ import annotations

import json
import zipfile

import pytest
import torch
from torch import nn

from modebridge.data.weights import load_mode, load_modes, read_state
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))


STATE = net().state_dict()
WEIGHT = STATE["3.weight"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda w: (w * 100).to(torch.int8), "got torch.int8; use the weights as they were trained"),
        (lambda w: w.long(), "got torch.int64"),
        (lambda w: w > 0, "got torch.bool"),
        (lambda w: w.to(torch.complex64), "got torch.complex64"),
        (lambda w: torch.zeros(1).expand(w.shape), r"got \(3, 16\) stored in 4 bytes; .* tensor.contiguous\(\)"),
        (lambda w: w.to_sparse(), "a sparse tensor"),
        (lambda w: w.to_sparse_csr(), "a sparse tensor"),
        (lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), "a quantized tensor"),
        (lambda w: w.to("meta"), "a tensor without values"),
        (lambda _: torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]), "a nested tensor"),
        (lambda _: torch.zeros(1).expand(10**10), r"'3.weight' is \(10000000000,\) in the file"),
    ],
)
def test_tensors_that_are_no_weights(tmp_path, make, words):
    state = {**STATE, "3.weight": make(WEIGHT)}
    file = tmp_path / "x.pt"
    torch.save({"state_dict": state}, file)
    for load in (load_mode, load_modes):
        with pytest.raises(ModebridgeError, match=words) as caught:
            load(net(), file)
        assert f"'{file}'" in str(caught.value)
        assert "'3.weight'" in str(caught.value)
    if "in the file" not in words:
        with pytest.raises(ModebridgeError, match=words):
            Mode.from_state_dict(net(), state)


def test_numbers_that_can_be_meant_are_read(tmp_path):
    """Half precision throughout, counts as well; a wide tensor beside the network that nobody looks at."""
    torch.save(
        {"model": {name: t.half() for name, t in STATE.items()}, "x": torch.ones(1).expand(10**10)}, tmp_path / "x"
    )
    mode = load_mode(net(), tmp_path / "x")
    assert mode.params["3.weight"].dtype == torch.float32
    assert mode.buffers["1.num_batches_tracked"].dtype == torch.int64
    shared = nn.Linear(2, 2)
    shared.weight = nn.Parameter(torch.rand(1).expand(2, 2))  # where the network is made like that, so may the file be
    assert torch.equal(Mode.from_module(shared).params["weight"], shared.weight)


def _zipped(file, contents):
    """The same archive, compressed."""
    plain = file.with_suffix(".plain")
    torch.save(contents, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    plain.unlink()
    return file


def test_a_small_file_that_unpacks_to_a_large_one_is_not_unpacked(tmp_path):
    many = 2**22
    file = _zipped(tmp_path / "x.pt", {"state_dict": STATE, "rest": torch.zeros(many)})
    assert file.stat().st_size < many / 50
    for load in (load_mode, load_modes):
        with pytest.raises(ModebridgeError, match=r"to unpack to at most [\d,]+ bytes, .* but got 16,\d+,\d+ bytes;"):
            load(net(), file)
    # Compression as such is nobody's fault, nor is a large file.
    assert load_mode(net(), _zipped(file, {"state_dict": STATE, "ema": STATE})).id == Mode.from_module(net()).id
    torch.save({"state_dict": STATE, "rest": torch.zeros(2**18)}, file)
    assert load_mode(net(), file).id == Mode.from_module(net()).id


def test_lists_that_name_each_other_end(tmp_path):
    laughs: list[object] = [1]
    for _ in range(6):
        laughs = [laughs] * 1000
    torch.save({"state_dict": STATE, "more": laughs}, tmp_path / "x.pt")
    with pytest.raises(ModebridgeError, match="but got more than 200,000 dicts and lists in it"):
        load_mode(net(), tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("header", "length"),
    [
        ({"a": {"dtype": "F32", "shape": [2**30], "data_offsets": [0, 2**32]}}, None),
        ({"a": {"dtype": "F32", "shape": [2**30], "data_offsets": [0, 4]}}, None),
        ({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 4]}}, None),
        ({"a": 1}, 2**63 - 1),
        ({"a": 1}, 2**40),
    ],
)
def test_headers_that_promise_too_much(tmp_path, header, length):
    text = json.dumps(header).encode()
    file = tmp_path / "x.safetensors"
    file.write_bytes((length or len(text)).to_bytes(8, "little") + text + b"1234")
    with pytest.raises(ModebridgeError, match="but got one that is damaged or truncated"):
        load_mode(net(), file)


def test_an_index_of_itself_and_one_without_end(tmp_path):
    index = tmp_path / "m.index.json"
    index.write_text('{"weight_map": {"a": "m.index.json"}}')
    with pytest.raises(ModebridgeError, match=r"but got 'm\.index\.json', an index"):
        read_state(index)
    index.write_text("[" * 100_000)
    with pytest.raises(ModebridgeError, match="weight_map, but got RecursionError"):
        read_state(index)


def test_what_the_system_does_not_let_us_read(tmp_path):
    for load in (load_mode, load_modes):
        with pytest.raises(ModebridgeError, match="to be readable, but got 'File name too long'"):
            load(net(), tmp_path / ("a" * 300))
