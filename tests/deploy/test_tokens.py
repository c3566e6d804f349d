"""Files of networks that read tokens: sequences of any length, cascades, and the server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import modebridge as mb
from modebridge.deploy.serve import ServeConfig, application
from tests.networks import Tokens
from tests.scenarios import quick


def tokens(rows: int, length: int) -> dict[str, Tensor]:
    ids = torch.randint(20, (rows, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids, "attention_mask": (ids > 2).long() | (torch.arange(length) == 0)}


TRAIN = [{**tokens(12, 8), "labels": torch.arange(12) % 3}]


def ensemble(bases: int = 2, **options: Any) -> mb.Ensemble:
    net, modes = Tokens(0), [mb.Mode.from_module(Tokens(seed)) for seed in range(2)]
    options = {"budget": 0.3, "tap": "block", "config": quick(1), **options}
    return mb.Ensemble(net, modes[:bases], [mb.fit_bridge(net, modes, TRAIN, target="labels", **options)])


@pytest.fixture(scope="module")
def fast() -> mb.Ensemble:
    return ensemble()


@pytest.fixture(scope="module")
def onnx(fast: mb.Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return mb.export(fast, tmp_path_factory.mktemp("tokens") / "file.onnx", tokens(12, 8))


@pytest.mark.parametrize(("name", "threshold"), [("onnx", None), ("file.pt2", None), ("cascade.onnx", 0.5)])
def test_any_length(fast: mb.Ensemble, onnx: Any, name: str, threshold: float | None, tmp_path: Path) -> None:
    file = onnx if name == "onnx" else mb.export(fast, tmp_path / name, tokens(12, 8), threshold=threshold)
    assert file.parity < 1e-5
    for length in (1, 5, 30):
        for rows in (1, 3):
            given = tokens(rows, length)
            answer = file(given, threshold=None if threshold is None else 2.0)
            torch.testing.assert_close(torch.from_numpy(answer.probabilities), fast(given), atol=1e-5, rtol=0)
    apart = {**tokens(2, 5), "attention_mask": torch.ones(2, 4, dtype=torch.long)}
    with pytest.raises(mb.ModebridgeError, match="sequences of one length, at least 1, but got 4, 5"):
        file(apart)
    with pytest.raises(mb.ModebridgeError, match="at least 1, but got 0"):
        file(tokens(2, 0))
    with pytest.raises(mb.ModebridgeError, match=r"of shape \(B, any length\)"):
        file({name: tensor[..., None] for name, tensor in tokens(2, 5).items()})


def test_a_network_for_one_length(tmp_path: Path) -> None:
    net = Tokens(0, fixed=8)
    file = mb.export(mb.Ensemble(net, [net]), tmp_path / "file.onnx", tokens(12, 8))
    assert file.meta["inputs"]["input_ids"]["shape"] == [8]
    with pytest.raises(mb.ModebridgeError, match="pad or cut them"):
        file(tokens(2, 7))


def test_the_server_takes_tokens(fast: mb.Ensemble, onnx: Any) -> None:
    from starlette.testclient import TestClient

    rows = [tokens(1, length) for length in (3, 7, 3, 12, 7, 7)]
    with TestClient(application(onnx, ServeConfig(wait_ms=50))) as client:

        def ask(row: dict[str, Tensor]) -> Any:
            return client.post("/predict", json={name: tensor[0].tolist() for name, tensor in row.items()})

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(ask, rows))
        for row, answer in zip(rows, answers, strict=True):
            assert answer.status_code == 200, answer.text
            assert answer.json()["probabilities"] == pytest.approx(fast(row)[0].tolist(), abs=1e-5)
        wrong: list[Any] = [[1, 2], {"input_ids": [1]}, {"input_ids": [[1]], "attention_mask": [[1]]}]
        wrong += [{"input_ids": [0.5], "attention_mask": [1]}, {"input_ids": [1, 2], "attention_mask": [1]}]
        wrong += [{"input_ids": [10**30], "attention_mask": [1]}, {"input_ids": [], "attention_mask": []}]
        for body in wrong:
            answer = client.post("/predict", json=body)
            assert answer.status_code == 400, body
            assert answer.json()["detail"].startswith("Expected ")
        assert client.post("/predict", json={"input_ids": [99], "attention_mask": [1]}).status_code == 400
        assert client.post("/predict", content=b"\xff").status_code == 400
        unknown = {**rows[0], "input_ids": torch.full_like(rows[0]["input_ids"], 99)}
        with ThreadPoolExecutor(6) as pool:  # in one batch with others, which are answered
            codes = [answer.status_code for answer in pool.map(ask, [rows[0], unknown, rows[2]])]
        assert codes == [200, 400, 200]


def test_padding_changes_nothing(tmp_path: Path) -> None:
    """Heads read the tokens that the mask keeps: an answer does not depend on the other sequences of its batch."""
    short = {**tokens(3, 5), "attention_mask": torch.ones(3, 5, dtype=torch.long)}
    longer = {name: torch.nn.functional.pad(tensor, (0, 4)) for name, tensor in short.items()}
    for budget in (0.15, 1.0):  # a perceptron, and token-wise layers before it
        fast = ensemble(bases=1, budget=budget, tap="embed", config=quick(3))
        torch.testing.assert_close(fast.members(longer)[1:], fast.members(short)[1:], atol=1e-6, rtol=0)
    file = mb.export(fast, tmp_path / "padded.onnx", longer)
    torch.testing.assert_close(torch.from_numpy(file(short).probabilities), fast(short), atol=1e-5, rtol=0)
    two = mb.Ensemble(Tokens(0), [Tokens(seed) for seed in range(2)])
    cascade = mb.Cascade(two).calibrate(TRAIN, average_cost=1.5)  # batches are dicts
    assert 1 < mb.evaluate(cascade, TRAIN).cost.relative_flops < 2
