"""Adapters of peft as modes: fine-tuned tensors on one base, of which files hold only the name and a hash."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import safetensors.torch
from torch import Tensor, nn

from modebridge import trees
from modebridge.errors import ModebridgeError, quoting, some

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
UNUSED = ("auto_mapping", "base_model_name", "inference_mode", "init_", "megatron", "peft_version", "revision")
"""Beginnings of keys of a config that do not change what a trained adapter computes."""


def has_adapter(net: nn.Module) -> bool:
    return type(net).__module__.startswith("peft.")


def adapter_state(net: Any, folder: Path) -> dict[str, Tensor]:
    """The state of a network with the adapter of a folder instead of its own; the tensors of the base are shared."""
    if not has_adapter(net):
        raise ModebridgeError(
            f"Expected a network with an adapter for '{folder}', but got {type(net).__name__}; pass "
            "peft.PeftModel.from_pretrained(net, folder)."
        )
    if not (folder / WEIGHTS).is_file():
        raise ModebridgeError(
            f"Expected '{folder}' to hold {WEIGHTS}, but it does not; save the adapter with save_pretrained."
        )
    kinds = ValueError, AttributeError, safetensors.SafetensorError
    with quoting(f"'{folder}' to hold an adapter", "save it with save_pretrained", kinds):
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        stored = _function(config)
        tensors = safetensors.torch.load_file(folder / WEIGHTS)
    bases = [str(each.get("base_model_name_or_path") or "") for each in (_config(net), config)]
    if all(bases) and len({Path(base).absolute() for base in bases}) > 1:
        warnings.warn(
            f"The adapter in '{folder}' was trained on '{bases[1]}', but the network's base is '{bases[0]}': it only "
            "works if both have the same weights.",
            stacklevel=5,
        )
    own, names = _function(_config(net)), _names(net)
    # Scales such as lora_alpha are no tensors: with another one the network computes something else.
    other = sorted(key for key in {*own, *stored} if own.get(key) != stored.get(key) and own.get(key, stored.get(key)))
    if other:
        key = other[0]
        raise ModebridgeError(
            f"Expected the adapter in '{folder}' to have {key} {own.get(key)}, as the network does, but got "
            f"{stored.get(key)}; modes differ in tensors only."
        )
    if apart := sorted({*names} ^ {*tensors}):
        raise ModebridgeError(
            f"Expected '{folder}' to hold the tensors of the network's adapter, but {some(apart)} are on one side "
            "only; use adapters of one kind on one base."
        )
    return {**net.state_dict(), **{names[name]: tensor for name, tensor in tensors.items()}}


def own_names(net: Any) -> set[str]:
    """The names of the tensors of a network that belong to its adapter."""
    return {*_names(net).values()}


def describe_adapter(net: Any, model: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A description from which `build_adapted` builds the network again, verified; None if its base has no name.

    `model` describes the base by class and config.
    """
    config = _config(net)
    if model is None or not config.get("base_model_name_or_path"):
        return None
    kept = json.loads(json.dumps(_kept(config), default=_plain))
    base = {**model, "name": str(config["base_model_name_or_path"]), "revision": config.get("revision")}
    description = {"adapter": kept, "base": base, "weights": _base_hash(net), "active": net.active_adapter}
    try:
        build_adapted(description)
    except ModebridgeError:
        return None  # its base is not there, or was changed since
    return description


def build_adapted(description: Mapping[str, Any]) -> nn.Module:
    """The network that a description names: its base from a folder or the Hub, in safetensors, with a new adapter."""
    import peft

    base, adapter, configs = description["base"], description["adapter"], peft.PeftConfig
    cls, make = transformers_class(base["class"]), cast("Any", configs).from_peft_type
    # Other libraries, and a hub, can raise anything.
    expected = f"the base '{base['name']}' of an adapter to be found and built"
    with quoting(expected, "pass net=, the network with an adapter"), quiet():
        config = cls.config_class.from_dict(dict(base["config"]))
        options = {"config": config, "revision": base["revision"] or "main", "use_safetensors": True}
        # A head for another number of classes is replaced by the adapter's; the hash covers all that is used.
        model = cls.from_pretrained(base["name"], ignore_mismatched_sizes=True, **options)
        kept = {key: value for key, value in adapter.items() if not key.startswith(UNUSED)}
        net: nn.Module = peft.get_peft_model(model, make(**kept, inference_mode=True), description["active"])
    check_base(net, description)
    return net


def check_base(net: nn.Module, description: Mapping[str, Any]) -> None:
    if _base_hash(net) != description["weights"]:
        raise ModebridgeError(
            f"Expected the base '{description['base']['name']}' to have the weights that the adapter was saved with, "
            "but it has others; use that version of the base."
        )


def transformers_class(name: object) -> Any:
    """The class of models of transformers with a name; files can name no other class."""
    import transformers

    cls = getattr(transformers, str(name), None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ValueError("a class that is no model of transformers")
    return cls


@contextmanager
def quiet() -> Iterator[None]:
    """Without what other libraries print, log and warn of; exceptions are raised as usual."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    out, err = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    try:
        with warnings.catch_warnings(action="ignore"), out, err:
            yield
    finally:
        logging.disable(before)


def _config(net: Any) -> dict[str, Any]:
    config: dict[str, Any] = net.peft_config[net.active_adapter].to_dict()
    return config


def _function(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config decides what is computed, comparable."""
    return {k: sorted(set(value)) if isinstance(value, list | set) else value for k, value in _kept(config).items()}


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if not key.startswith(UNUSED) and "dropout" not in key}


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, set) else str(value)


def _names(net: Any) -> dict[str, str]:
    """The names of an adapter's tensors in its files, and in the network."""
    import peft

    with quiet():
        own = peft.get_peft_model_state_dict(net, adapter_name=net.active_adapter, save_embedding_layers=False)
    places = {tensor.data_ptr(): name for name, tensor in net.state_dict().items()}
    return {name: places[tensor.data_ptr()] for name, tensor in own.items()}


def _base_hash(net: nn.Module) -> str:
    own = own_names(net)
    # Layers that an adapter replaces are kept beside their replacement, and not used.
    used = {n: t for n, t in net.state_dict().items() if n not in own and ".original_module." not in n}
    return trees.fingerprint(used)
