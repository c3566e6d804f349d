"""How each kind of object is taken apart for a file, and built again from parts that may be wrong in any way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from modebridge.bridges import Bridge, Heads
from modebridge.curves import Curve
from modebridge.ensembles import AnswerRule, Cascade, Ensemble, SetRule
from modebridge.errors import ModebridgeError
from modebridge.files.adapters import build_adapted, check_base, own_names
from modebridge.files.rebuilding import build, describe, fill
from modebridge.modes import Mode
from modebridge.nets import frozen_copy
from modebridge.trees import below, prefixed
from modebridge.types import Params


@dataclass(frozen=True)
class Parts:
    """An object as tensors and everything else in types of JSON, with the name of its kind in files."""

    config: Mapping[str, Any]
    tensors: Params
    kind: str = ""

    def each(self, prefix: str, count: int) -> list[dict[str, Tensor]]:
        """The tensors below "PREFIX.0" and so on; at most as many as there are tensors, whatever a file asks for."""
        return [below(self.tensors, f"{prefix}.{k}.") for k in range(min(count, len(self.tensors)))]


def _numbered(prefix: str, trees: Iterable[Params]) -> dict[str, Tensor]:
    return {name: tensor for k, tree in enumerate(trees) for name, tensor in prefixed(f"{prefix}.{k}.", tree).items()}


def _mode_parts(mode: Mode) -> Parts:
    tensors = prefixed("params.", mode.params) | prefixed("buffers.", mode.buffers)
    return Parts({"extra": dict(mode.extra)} if mode.extra else {}, tensors)


def _mode(parts: Parts, net: nn.Module | None = None, bodies: object = None) -> Mode:
    mode = Mode(below(parts.tensors, "params."), below(parts.tensors, "buffers."), parts.config.get("extra", {}))
    if net is not None:
        mode.check(net)
    return mode


def _curve_parts(curve: Curve) -> Parts:
    start, end = (_mode_parts(mode) for mode in (curve.start, curve.end))
    tensors = prefixed("start.", start.tensors) | prefixed("end.", end.tensors)
    tensors |= _numbered("pins", curve.pins) | _numbered("statistics", curve.statistics.values())
    return Parts({**start.config, "pins": len(curve.pins), "statistics": list(curve.statistics)}, tensors)


def _curve(parts: Parts, net: nn.Module | None, bodies: object) -> Curve:
    start, end = (_mode(Parts(parts.config, below(parts.tensors, f"{name}.")), net) for name in ("start", "end"))
    pins = tuple(parts.each("pins", parts.config["pins"]))
    known = {float(r): below(parts.tensors, f"statistics.{k}.") for k, r in enumerate(parts.config["statistics"])}
    return Curve(start, end, pins, known)


def _bridge_parts(bridge: Bridge) -> Parts:
    config = {
        "body": describe(bridge.body),
        "class": type(bridge.body).__name__,
        "reads": list(bridge.reads),
        "taps": list(bridge.taps),
        **{name: getattr(bridge, name) for name in ("r", "name", "share", "heads")},
        "base": bridge._base,
        "frozen": [name for name, parameter in bridge.body.named_parameters() if not parameter.requires_grad],
    }
    return Parts(config, bridge.body.state_dict())


def _bridge(parts: Parts, net: object, bodies: list[nn.Module]) -> Bridge:
    config, tensors, what = parts.config, parts.tensors, f"the body of '{parts.config['name']}'"
    if config["body"] is not None:
        body = build(config["body"], tensors)
    elif bodies:
        body = _same_class(bodies.pop(0), config["class"], what)
    else:
        raise ModebridgeError(
            f"Expected a body for '{config['name']}', because its {config['class']} is a custom module of which only "
            "the weights are stored, but got none; pass bodies=[...], one module per such bridge."
        )
    fill(body, tensors, what)
    others = [other for other in body.state_dict() if other not in tensors]
    if others:  # they would keep what the body was built with
        raise ModebridgeError(
            f"Expected {what} to have the tensors of the stored weights, but it also has '{others[0]}'; pass the "
            "architecture that was saved."
        )
    heads = body.heads if isinstance(body, Heads) else config["heads"] if config["body"] is None else 1
    for inner, parameter in body.named_parameters():
        parameter.requires_grad_(inner not in config["frozen"])
    nobody = [Mode({}, {})] * len(config["reads"])
    bridge = Bridge(body, nobody, config["taps"], config["r"], config["name"], config["share"], heads)
    bridge.reads, bridge._base = tuple(config["reads"]), config["base"]
    return bridge.eval()


def _same_class(given: nn.Module, name: str, what: str) -> nn.Module:
    """A copy of a module that the user passes; another class with the same tensors would compute something else."""
    if name not in [cls.__name__ for cls in type(given).__mro__]:
        raise ModebridgeError(
            f"Expected {what} to be of class {name}, as was saved, but got {type(given).__name__}; pass the "
            "architecture that was saved."
        )
    return frozen_copy(given)


def _ensemble_parts(ensemble: Ensemble, net: str | None = None) -> Parts:
    base: nn.Module = ensemble.bases[0]
    bridges = [_bridge_parts(bridge) for bridge in ensemble.bridges if isinstance(bridge, Bridge)]
    tensors = {"temperature": ensemble.temperature, "fitted": ensemble._fitted}
    modes = [_mode_parts(Mode.from_module(network)) for network in ensemble.bases]
    described = describe(base, net)
    # Of networks with an adapter, only that is stored.
    left_out = _base_names(base) if described and "adapter" in described else set()
    tensors |= _numbered("modes", [{n: t for n, t in part.tensors.items() if n not in left_out} for part in modes])
    tensors |= _numbered("bridges", [part.tensors for part in bridges])
    # Buffers that no checkpoint holds: they change with the network's type, and predictions with them.
    state = base.state_dict()
    tensors |= prefixed("constants.", {name: b for name, b in base.named_buffers() if name not in state})
    config = {
        **modes[0].config,
        "net": described,
        "class": type(base).__name__,
        "modes": len(ensemble.bases),
        "bridges": [
            {**part.config, "frozen": [], "inputs": reads} for part, reads in zip(bridges, ensemble._reads, strict=True)
        ],
        "mean": ensemble.mean,
        **_rules_of(ensemble),
    }
    return Parts(config, tensors)


def _rules_of(predictor: Ensemble | Cascade) -> dict[str, Any]:
    return {name: rule and asdict(rule) for name, rule in (("sets", predictor.sets), ("answers", predictor.answers))}


def _set_rules(predictor: Ensemble | Cascade, config: Mapping[str, Any]) -> None:
    predictor.sets = SetRule(**config["sets"]) if config["sets"] else None
    predictor.answers = AnswerRule(**config["answers"]) if config["answers"] else None


def _cascade_parts(cascade: Cascade, net: str | None = None) -> Parts:
    whole = _ensemble_parts(cascade.ensemble, net)
    own = {"threshold": cascade._threshold, **_rules_of(cascade)}
    return Parts({**whole.config, "cascade": own}, {**whole.tensors, "first_temperature": cascade.first_temperature})


def _cascade(parts: Parts, net: nn.Module | None, bodies: list[nn.Module]) -> Cascade:
    own = parts.config["cascade"]
    cascade = Cascade(_ensemble(parts, net, bodies), own["threshold"])
    cascade.first_temperature = _checked(parts.tensors["first_temperature"])
    _set_rules(cascade, own)
    return cascade


def _base_names(net: nn.Module) -> set[str]:
    """The names of the parts of a mode that do not belong to the adapter of its network."""
    own = own_names(net)
    return {name for name in _mode_parts(Mode.from_module(net)).tensors if name.partition(".")[2] not in own}


def _ensemble(parts: Parts, net: nn.Module | None, bodies: list[nn.Module]) -> Ensemble:
    config, what = parts.config, "the network"
    described, stored = config["net"], parts.each("modes", config["modes"])
    adapted = described is not None and "adapter" in described
    if net is not None:
        net = _same_class(net, config["class"], what)
        if adapted:
            check_base(net, described)
    elif described is not None:
        net = frozen_copy(build_adapted(described) if adapted else build(described, stored[0]))
    else:
        raise ModebridgeError(
            f"Expected net, because how to build {config['class']} is not stored with its weights, but got none; pass "
            "net=, a module of the same architecture."
        )
    if adapted:
        shared = _mode_parts(Mode.from_module(net)).tensors
        stored = [{**shared, **tensors} for tensors in stored]
    modes = [_mode(Parts(config, tensors)) for tensors in stored]
    fill(net, modes[0].state, what)
    shapes = {name: buffer.shape for name, buffer in net.named_buffers()}
    constants = below(parts.tensors, "constants.")
    fill(net, {name: tensor for name, tensor in constants.items() if shapes.get(name) == tensor.shape}, what)
    bridges = []
    for k, stored in enumerate(config["bridges"]):
        bridge = _bridge(Parts(stored, below(parts.tensors, f"bridges.{k}.")), net, bodies)
        # By the weights as they are now: `to(torch.bfloat16)` changes hashes, and bridges remember the old ones.
        bridge.reads = tuple(modes[i].id for i in stored["inputs"])
        bridges.append(bridge)
    ensemble = Ensemble(net, modes, bridges, mean=config["mean"])
    for copied, stored in zip(ensemble.bridges, config["bridges"], strict=True):
        vars(copied)["reads"] = tuple(stored["reads"])
    ensemble.temperature, ensemble._fitted = _checked(parts.tensors["temperature"]), parts.tensors["fitted"].view(())
    _set_rules(ensemble, config)
    return ensemble


def _checked(temperature: Tensor) -> Tensor:
    if temperature.dim() or not 0 < float(temperature) < float("inf"):
        raise ModebridgeError(
            f"Expected the stored temperature to be one number above 0, but got {str(temperature.tolist())[:80]}; "
            "calibrate and save it again."
        )
    return temperature


KINDS: dict[str, tuple[type[Any], Callable[..., Parts], Callable[..., Any]]] = {
    "mode": (Mode, _mode_parts, _mode),
    "curve": (Curve, _curve_parts, _curve),
    "bridge": (Bridge, _bridge_parts, _bridge),
    "ensemble": (Ensemble, _ensemble_parts, _ensemble),
    "cascade": (Cascade, _cascade_parts, _cascade),
}
"""Kinds of objects in files: class, how it is taken apart, and how it is built again with the modules that users pass.

Those are a network, and the bodies of bridges in order: the ones that are used leave their list.
"""
