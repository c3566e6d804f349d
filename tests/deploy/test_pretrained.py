"""Ensembles as models of transformers: its pipelines and Trainer run on them as on any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import modebridge as mb
from tests.files.test_transformers import bert, vit

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="Trainer needs it")


def test_a_pipeline_of_images(caplog: pytest.LogCaptureFixture) -> None:
    fast = mb.Ensemble(vit(0), [mb.Mode.from_module(vit(seed)) for seed in range(2)])
    fast.temperature.fill_(1.7)
    image = torch.rand(16, 16, 3, generator=torch.Generator().manual_seed(0)).mul(255).byte().numpy()
    from PIL import Image

    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    pipe = transformers.pipeline("image-classification", model=fast.as_transformers(), image_processor=processor)
    scores = {each["label"]: each["score"] for each in pipe(Image.fromarray(image))}
    theirs = fast(dict(processor(Image.fromarray(image), return_tensors="pt")))[0]
    assert [scores[f"LABEL_{k}"] for k in range(3)] == pytest.approx(theirs.tolist(), abs=1e-6)
    assert "not supported" not in caplog.text


@pytest.mark.parametrize("kind", [vit, bert])
def test_trainer_evaluates(kind: type[nn.Module], tmp_path: Path) -> None:
    fast = mb.Ensemble(kind(0), [mb.Mode.from_module(kind(seed)) for seed in range(2)])
    generator = torch.Generator().manual_seed(0)
    if kind is vit:
        rows = [{"pixel_values": torch.rand(3, 16, 16, generator=generator)} for _ in range(7)]
    else:
        rows = [{"input_ids": torch.randint(50, (6,), generator=generator)} for _ in range(7)]
    data = [{**row, "labels": k % 3} for k, row in enumerate(rows)]
    options = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = transformers.Trainer(model=fast.as_transformers(), args=options)
    found = trainer.predict(data)
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    np.testing.assert_allclose(np.exp(found.predictions), fast(batch).numpy(), atol=1e-6)
    loss = torch.nn.functional.nll_loss(fast(batch).log(), torch.arange(7) % 3)
    assert found.metrics["test_loss"] == pytest.approx(float(loss), abs=1e-5)


def test_what_it_is_not_for() -> None:
    own = nn.Linear(2, 3)
    with pytest.raises(mb.ModebridgeError, match="Expected an ensemble of a model of transformers"):
        mb.Ensemble(own, [mb.Mode.from_module(own)]).as_transformers()
    model = mb.Ensemble(bert(0), [mb.Mode.from_module(bert(0))]).as_transformers()
    with pytest.raises(mb.ModebridgeError, match=r"to be saved by Ensemble.save"):
        model.save_pretrained("folder")
    ids = torch.randint(50, (2, 5))
    (logits,) = model(ids, return_dict=False)
    assert torch.equal(logits, model(input_ids=ids).logits)
