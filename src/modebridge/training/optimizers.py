"""Any optimizer of torch on views of a step's parameter vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError, quoting
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
        self._peak = 1.0 if config.lr is None else config.lr
        if callable(config.optimizer):
            self._optimizer = _theirs(config.optimizer, list(self._params.values()))
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
        self.built = self._description() if callable(config.optimizer) else ""

    def _description(self) -> str:
        """What a function made, as text that is the same in every process."""
        names = {id(parameter): name for name, parameter in self._params.items()}
        options = [
            (name, [names.get(id(one)) for one in value] if name == "params" else _text(value))
            for group in self._optimizer.param_groups
            for name, value in sorted(group.items())
        ]
        return f"{type(self._optimizer)} {options}"

    def __call__(self, gradients: Params, lr: Tensor | float) -> None:
        """One update; `lr` is the peak of the config times the factor of the schedule."""
        factor = float(lr) / self._peak if self._peak else 0.0
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        for name, parameter in self._params.items():
            parameter.grad = gradients[name]
        _theirs(self._optimizer.step) if self.built else self._optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """What it remembers, by name; numbers become tensors."""
        found: dict[str, Tensor] = {}
        parts = dict(self._optimizer.state_dict()["state"])
        for k, group in enumerate(self._optimizer.param_groups if self.built else ()):
            # Some count their steps here, or adapt the rate.
            parts[f"group{k}"] = {name: value for name, value in group.items() if name not in ("params", "lr")}
        for k, part in parts.items():
            for name, value in part.items():
                if isinstance(value, bool | int | float | Tensor):
                    kind, exact = STATE if isinstance(value, Tensor) else NUMBER, isinstance(value, float)
                    found[f"{kind}/{k}/{name}"] = torch.as_tensor(value, dtype=torch.float64 if exact else None)
        return found

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        state: dict[str, dict[str, object]] = {}
        for name, tensor in saved.items():
            kind, _, rest = name.partition("/")
            if kind in (STATE, NUMBER):
                k, _, key = rest.partition("/")
                state.setdefault(k, {})[key] = tensor.clone() if kind == STATE else tensor.item()
        groups = self._optimizer.state_dict()["param_groups"]
        for number, group in enumerate(groups):
            group |= state.pop(f"group{number}", {})
        self._optimizer.load_state_dict({"state": {int(k): v for k, v in state.items()}, "param_groups": groups})


def _theirs(function: Callable[..., Any], *arguments: object) -> Any:
    """What a function of the user's or of another library's returns; its errors are quoted."""
    expected = "optimizer to make one that takes parameters of any shape and steps without a closure"
    with quoting(expected, "use another one, or correct the function"):
        return function(*arguments)


def _text(value: object) -> str:
    """A value as text without addresses."""
    value = value.tolist() if isinstance(value, Tensor) else value
    plain = value is None or isinstance(value, bool | int | float | str | tuple | list)
    return repr(value) if plain else type(value).__qualname__
