"""Any optimizer of torch on views of a step's parameter vector."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError
from modebridge.training.config import TrainConfig
from modebridge.types import Params

STATE, NUMBER = "optimizer", "optimizer-number"


class TorchOptimizer:
    """Updates parameters, which share their memory with the vector, by a gradient.

    Args:
        params: views of the vector, by name.
        config: resolved options: "adamw", or a function that makes the optimizer.
        pace: factors on the learning rate and weight decay of some parameters, for "adamw" only.
    """

    def __init__(self, params: Params, config: TrainConfig, pace: Mapping[str, tuple[float, float]]) -> None:
        self._params = {name: nn.Parameter(tensor) for name, tensor in params.items()}
        self._peak = config.lr or 0.0
        if callable(config.optimizer):
            self._optimizer = config.optimizer(list(self._params.values()))
            if not isinstance(self._optimizer, torch.optim.Optimizer):
                raise ModebridgeError(
                    f"Expected optimizer to return a torch.optim.Optimizer, but got {type(self._optimizer).__name__}; "
                    "return one, such as torch.optim.AdamW(parameters, lr=1e-3)."
                )
        else:
            groups: dict[tuple[float, float], list[nn.Parameter]] = {}
            for name, parameter in self._params.items():
                rate, decay = pace.get(name, (1.0, 1.0))
                decay = decay * config.weight_decay if parameter.dim() > 1 else 0.0
                groups.setdefault((rate * self._peak, decay), []).append(parameter)
            parts = [{"params": some, "lr": rate, "weight_decay": decay} for (rate, decay), some in groups.items()]
            self._optimizer = torch.optim.AdamW(parts, lr=self._peak)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]

    def __call__(self, gradients: Params, lr: Tensor | float) -> None:
        """One update; `lr` is the peak of the config times the factor of the schedule."""
        factor = float(lr) / self._peak if self._peak else 0.0
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        for name, parameter in self._params.items():
            parameter.grad = gradients[name]
        self._optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """What it remembers, by name; numbers become tensors."""
        found: dict[str, Tensor] = {}
        for k, state in self._optimizer.state_dict()["state"].items():
            for name, value in state.items():
                kind = STATE if isinstance(value, Tensor) else NUMBER
                found[f"{kind}/{k}/{name}"] = torch.as_tensor(value)
        return found

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        state: dict[int, dict[str, object]] = {}
        for name, tensor in saved.items():
            kind, _, rest = name.partition("/")
            if kind in (STATE, NUMBER):
                k, _, key = rest.partition("/")
                state.setdefault(int(k), {})[key] = tensor.clone() if kind == STATE else tensor.item()
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
