"""Int8 quantisation for CPUs: convolutions and matrix products, calibrated on real images; and its effect on scores."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from modebridge.batches import size_of, take_rows
from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.deploy.one_module import OneModule
from modebridge.deploy.onnx_builder import Model
from modebridge.deploy.parity import expected
from modebridge.deploy.torch_exporters import in_order, quiet
from modebridge.ensembles import Ensemble
from modebridge.errors import plural
from modebridge.scoring.scores import accuracy, nll
from modebridge.types import Batch, Inputs

if TYPE_CHECKING:
    from modebridge.deploy.deployed import Deployed

__all__ = ["Int8Cost", "compare", "quantised"]

QUANTISED = ["Conv", "Gemm", "MatMul"]


@dataclass(frozen=True)
class Int8Cost:
    """Scores of an int8 file and of the library in fp32 on the same labelled images."""

    images: int
    accuracy: float
    nll: float
    fp32_accuracy: float
    fp32_nll: float
    agreement: float
    """The share of images with the same top class in both."""

    def as_dict(self) -> dict[str, float]:
        """As plain data, for the metadata of the file."""
        return asdict(self)

    @property
    def sentence(self) -> str:
        """A summary in one sentence."""
        return (
            f"int8 on {plural(self.images, 'image')}: accuracy {100 * self.accuracy:.2f} % (fp32 "
            f"{100 * self.fp32_accuracy:.2f} %), NLL {self.nll:.4f} (fp32 {self.fp32_nll:.4f}), same class for "
            f"{100 * self.agreement:.2f} %."
        )


@torch.no_grad()
def quantised(
    module: OneModule, bases: Sequence[Model], bridges: Sequence[Model], images: Inputs
) -> tuple[list[Model], list[Model]]:
    """The parts with int8 weights (per channel) and activations, each calibrated on its own inputs.

    Args:
        module: the ensemble, to compute the features that bridges read.
        bases: ONNX models of the bases.
        bridges: ONNX models of the bridges.
        images: (N, ...) calibration images; a few hundred are enough.
    """
    _, features = module.run_bases(images)
    fed = [[features[place] for place in module.reads[numbers[0]]] for numbers in module.units]
    return [_quantise(model, in_order(images)) for model in bases], [
        _quantise(model, inputs) for model, inputs in zip(bridges, fed, strict=True)
    ]


def _quantise(model: Model, inputs: Sequence[Tensor], batch: int = 32) -> Model:
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [value.name for value in model.graph.input]
    arrays = dict(zip(names, [tensor.contiguous().numpy() for tensor in inputs], strict=True))
    starts = range(0, len(inputs[0]), batch)
    batches = iter([{name: array[start : start + batch] for name, array in arrays.items()} for start in starts])

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Mapping[str, Any] | None:
            return next(batches, None)

    # The quantiser logs to the root logger, whose name is empty.
    with tempfile.TemporaryDirectory() as folder, quiet([""]):
        plain, ready, done = (str(Path(folder) / name) for name in ("plain.onnx", "ready.onnx", "done.onnx"))
        onnx.save(model, plain)
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        quantize_static(
            ready,
            done,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=QUANTISED,
        )
        return onnx.load(done)


@torch.no_grad()
def compare(ensemble: Ensemble, temperatures: Temperatures, file: Deployed, pair: Batch) -> Int8Cost:
    """Scores of a file and of the library on labelled images, in batches of 64."""
    images, labels = pair
    parts = [take_rows(images, slice(k, k + 64)) for k in range(0, size_of(images), 64)]
    bases, mean = len(ensemble.bases), ensemble.mean
    before = torch.cat([expected(ensemble.members(part), bases, temperatures, mean=mean) for part in parts])
    after = torch.cat([torch.from_numpy(file(part).probabilities) for part in parts])
    return Int8Cost(
        images=size_of(images),
        accuracy=accuracy(after, labels),
        nll=nll(after, labels),
        fp32_accuracy=accuracy(before, labels),
        fp32_nll=nll(before, labels),
        agreement=float((before.argmax(-1) == after.argmax(-1)).double().mean()),
    )
