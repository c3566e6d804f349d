"""Files of networks that read tokens: sequences of any length, cascades, and the server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import modebridge as mb
from modebridge.deploy.serve import ServeConfig, application


class Reader(nn.Module):
    """Embeddings with attention; with `fixed`, a network for one length only."""

    def __init__(self, seed: int, fixed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(20, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.place = nn.Parameter(torch.randn(fixed, 8)) if fixed else None
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        embedded = self.embed(input_ids)
        embedded = embedded if self.place is None else embedded + self.place
        seen = attention_mask[..., None].to(embedded.dtype)
        return self.head((self.block(embedded) * seen).sum(dim=1) / seen.sum(dim=1))


def tokens(rows: int, length: int) -> dict[str, Tensor]:
    ids = torch.randint(20, (rows, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids, "attention_mask": (ids > 2).long() | (torch.arange(length) == 0)}


def ensemble(fixed: int = 0) -> mb.Ensemble:
    net = Reader(0, fixed)
    modes = [mb.Mode.from_module(Reader(seed, fixed)) for seed in range(2)]
    train = [{**tokens(12, 8), "labels": torch.arange(12) % 3}]
    config = mb.TrainConfig(epochs=1)
    bridge = mb.fit_bridge(net, modes, train, budget=0.3, target="labels", tap="block", config=config)
    return mb.Ensemble(net, modes, [bridge])


@pytest.mark.parametrize(
    ("name", "threshold"),
    [("file.onnx", None), ("file.pt2", None), ("cascade.onnx", 0.5)],
    ids=["onnx", "pt2", "cascade"],
)
def test_any_length(name: str, threshold: float | None, tmp_path: Path) -> None:
    fast = ensemble()
    file = mb.export(fast, tmp_path / name, tokens(12, 8), threshold=threshold)
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
    fast = ensemble(fixed=8)
    file = mb.export(fast, tmp_path / "file.onnx", tokens(12, 8))
    assert file.meta["inputs"]["input_ids"]["shape"] == [8]
    with pytest.raises(mb.ModebridgeError, match="pad or cut them"):
        file(tokens(2, 7))


def test_the_server_takes_tokens(tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    fast = ensemble()
    file = mb.export(fast, tmp_path / "file.onnx", tokens(12, 8))
    rows = [tokens(1, length) for length in (3, 7, 3, 12, 7, 7)]
    with TestClient(application(file, ServeConfig(wait_ms=50))) as client:

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
