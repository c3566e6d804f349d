"""An ensemble as a model of transformers: for its pipelines and `Trainer.evaluate`."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.ensembles import Ensemble
from modebridge.ensembles.temperature import FLOOR
from modebridge.errors import ModebridgeError


def as_transformers(ensemble: Ensemble) -> Any:
    """A `PreTrainedModel` whose logits are the logarithms of the ensemble's calibrated probabilities.

    It has the config of the ensemble's network (labels, input sizes), shares its weights with the ensemble, and is for
    prediction only. Save the ensemble itself.
    """
    base: Any = ensemble.bases[0]
    net: Any = base.get_base_model() if hasattr(base, "get_base_model") else base  # without the adapter of peft
    if not type(net).__module__.startswith("transformers."):
        raise ModebridgeError(
            f"Expected an ensemble of a model of transformers, but got one of {type(net).__name__}; call it directly, "
            "or export it."
        )
    import transformers
    from transformers.modeling_outputs import ImageClassifierOutput, SequenceClassifierOutput

    images = net.main_input_name == "pixel_values"
    output: Any = ImageClassifierOutput if images else SequenceClassifierOutput

    class Model(transformers.PreTrainedModel):  # type: ignore[no-untyped-call]
        config_class = type(net).config_class
        main_input_name = net.main_input_name

        def __init__(self) -> None:
            config = copy.deepcopy(net.config)
            config._attn_implementation = "eager"  # this class has no attention of its own to choose for
            super().__init__(config)
            self.ensemble = ensemble

        def forward(self, *args: Tensor, labels: Tensor | None = None, **inputs: Any) -> Any:
            given = {**dict(zip(names, args, strict=False)), **inputs}
            probabilities = self.ensemble({name: each for name, each in given.items() if isinstance(each, Tensor)})
            logits = (probabilities + FLOOR).log()
            loss = None if labels is None else F.nll_loss(logits, labels.view(-1))
            whole = output(loss=loss, logits=logits)
            return whole if given.get("return_dict") is not False else whole.to_tuple()

        def save_pretrained(self, *args: object, **options: object) -> None:
            raise ModebridgeError("Expected an ensemble to be saved by Ensemble.save; call save of .ensemble.")

        @property
        def device(self) -> torch.device:
            return self.ensemble.temperature.device

    # Trainer finds by the signature which columns to pass; pipelines find by the class's name whether they fit.
    signature = inspect.signature(type(net).forward)
    names = [name for name in signature.parameters if name != "self"]
    vars(Model)["forward"].__signature__ = signature
    Model.__name__ = Model.__qualname__ = type(net).__name__
    model: nn.Module = Model()
    return model.eval()
