"""Combine the ONNX models of all parts into one graph: plain, or elastic, with `If` and gathered unsure images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from modebridge.deploy.elastic_answer import ALL, Place
from modebridge.deploy.inputs import Spec, output_specs, specs_in
from modebridge.deploy.one_module import OneModule
from modebridge.deploy.onnx_builder import Builder, Model

__all__ = ["compose"]


def compose(
    bases: Sequence[Model],
    bridges: Sequence[Model],
    module: OneModule,
    shapes: Mapping[Place, Sequence[int]],
    meta: Mapping[str, Any],
) -> Model:
    """One model from the models of all bases (images to logits and features) and bridges (features to logits).

    A bridge with several heads is one part that adds all its heads to the members.

    An elastic graph has two more inputs with defaults: `bridges`, the number of bridges to run, and `threshold`, the
    confidence below which further members run. Every bridge, and every base after the first, is a branch of an `If`
    that runs on the gathered unsure images. The branch holds the weights, because ONNX Runtime uses its blocked layout
    for convolutions in a branch only if their weights are in it.

    Args:
        bases: base models from `export_parts`.
        bridges: bridge models from `export_parts`; in an elastic file, one per bridge.
        module: the module that the parts come from.
        shapes: shapes of the features that bridges read, without the batch axis.
        meta: metadata of the file, which defines its inputs and outputs.
    """
    from onnx import TensorProto, helper

    build = Builder()
    inputs = _values(specs_in(meta))
    if meta["elastic"]:
        # An initializer with the name of an input is its default.
        inputs.append(helper.make_tensor_value_info("bridges", TensorProto.INT64, []))
        inputs.append(helper.make_tensor_value_info("threshold", TensorProto.FLOAT, []))
        build.constant(np.array(len(module.reads)), "bridges")
        build.constant(np.array(ALL if meta["threshold"] is None else meta["threshold"], np.float32), "threshold")
        tables = _elastic(build, bases, bridges, module, shapes, meta)
    else:
        tables = _plain(build, bases, bridges, module, meta)
    for name in meta["outputs"]:
        build.add("Identity", [tables[name]], name)
    graph = helper.make_graph(build.nodes, "modebridge", inputs, _values(output_specs(meta)), build.initializers)
    opsets: dict[str, int] = {}
    for model in (*bases, *bridges):
        for opset in model.opset_import:
            opsets[opset.domain] = max(opsets.get(opset.domain, 0), opset.version)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in opsets.items()],
        ir_version=min(model.ir_version for model in bases),
        producer_name="modebridge",
    )


def _values(specs: Mapping[str, Spec]) -> list[Any]:
    from onnx import helper

    kinds = {name: helper.np_dtype_to_tensor_dtype(np.dtype(spec.type)) for name, spec in specs.items()}
    return [helper.make_tensor_value_info(name, kinds[name], ["batch", *spec.shape]) for name, spec in specs.items()]


def _plain(
    build: Builder, bases: Sequence[Model], bridges: Sequence[Model], module: OneModule, meta: Mapping[str, Any]
) -> dict[str, str]:
    members: list[str] = []
    features: dict[Place, str] = {}
    for k, model in enumerate(bases):
        out, *at_taps = build.part(model, list(specs_in(meta)), f"base{k}/")
        members.append(build.add("Softmax", [out], axis=-1))
        features |= {(k, tap): name for tap, name in zip(module.taps[k], at_taps, strict=True)}
    by_number: dict[int, str] = {}
    for numbers, model in zip(module.units, bridges, strict=True):
        sources = [features[place] for place in module.reads[numbers[0]]]
        (out,) = build.part(model, sources, f"bridge{numbers[0]}/")
        table = build.add("Softmax", [out], axis=-1)
        for place, j in enumerate(numbers):
            # A group outputs (J, B, K), which is split into its tables.
            by_number[j] = build.add("Gather", [table, build.constant(np.array(place))]) if len(numbers) > 1 else table
    members += [head for j in sorted(by_number) for head in build.heads(by_number[j], module.heads[j])]
    batch = build.rows(members[0])
    used = build.add("Expand", [build.constant(np.array([len(members)])), batch])
    temperature = build.constant(np.array(module.temperatures.by_bridges[-1], np.float32))
    mean = build.log_mean(members, used) if module.mean == "logarithmic" else build.mean(members, used)
    return _tables(build, meta["outputs"], members, used, build.scale(mean, temperature))


def _elastic(
    build: Builder,
    bases: Sequence[Model],
    bridges: Sequence[Model],
    module: OneModule,
    shapes: Mapping[Place, Sequence[int]],
    meta: Mapping[str, Any],
) -> dict[str, str]:
    inputs, classes, temperatures = list(specs_in(meta)), len(meta["classes"]), module.temperatures
    zero, one, minus = (build.constant(np.array(k)) for k in (0, 1, -1))
    out, *at_taps = build.part(bases[0], inputs, "base0/")
    first = build.add("Softmax", [out], axis=-1)
    sure = build.scale(first, build.constant(np.array(temperatures.first, np.float32)))
    top = build.add("ReduceMax", [sure, build.constant(np.array([-1]))], keepdims=0)
    places = build.add("NonZero", [build.add("Less", [top, "threshold"])])  # (1, n)
    unsure = build.add("Squeeze", [places, build.constant(np.array([0]))])
    count = build.add("Gather", [build.add("Shape", [unsure]), zero])
    some = build.add("Greater", [count, zero])
    rows = build.add("Unsqueeze", [count, build.constant(np.array([0]))])
    features = {
        (0, tap): build.add("Gather", [name, unsure], axis=0) for tap, name in zip(module.taps[0], at_taps, strict=True)
    }
    members = [build.add("Gather", [first, unsure], axis=0)]
    gathered = [build.add("Gather", [name, unsure], axis=0) for name in inputs] if len(bases) > 1 else []
    for k, model in enumerate(bases[1:], start=1):
        empty = [(0, classes), *[(0, *shapes[k, tap]) for tap in module.taps[k]]]
        probabilities, *at_taps = build.branch(some, model, gathered, f"base{k}/", empty)
        members.append(probabilities)
        features |= {(k, tap): name for tap, name in zip(module.taps[k], at_taps, strict=True)}
    ran: list[str | None] = [None] * len(bases)
    chosen = build.add("Clip", ["bridges", zero, build.constant(np.array(len(bridges)))])
    sizes = {heads: [heads, classes] if heads > 1 else [classes] for heads in module.heads}
    blanks = {n: build.add("Concat", [rows, build.constant(np.array(size))], axis=0) for n, size in sizes.items()}
    for j, model in enumerate(bridges):
        wanted = build.add("And", [some, build.add("Greater", [chosen, build.constant(np.array(j))])])
        sources, heads = [features[place] for place in module.reads[j]], module.heads[j]
        (table,) = build.branch(wanted, model, sources, f"bridge{j}/", [blanks[heads]])
        members += build.heads(table, heads)
        ran += [wanted] * heads
    ends = [len(bases) + temperatures.members(j) for j in range(len(bridges) + 1)]
    number = build.add("Gather", [build.constant(np.array(ends)), chosen])
    used_here = build.add("Expand", [number, rows])
    by_bridges = build.constant(np.array(temperatures.by_bridges, np.float32))
    temperature = build.add("Gather", [by_bridges, chosen], axis=0)
    logarithmic = module.mean == "logarithmic"
    mean = build.log_mean(members, used_here, ran) if logarithmic else build.mean(members, used_here)
    tempered = build.scale(mean, temperature)
    index = build.add("Unsqueeze", [unsure, minus])  # (n, 1)
    batch = build.rows(first)
    used = build.add("ScatterND", [build.add("Expand", [one, batch]), index, used_here])
    answer = build.add("ScatterND", [sure, index, tempered])
    if set(meta["outputs"]) == {"probabilities", "used"}:
        return {"probabilities": answer, "used": used}
    # Members for all images: the first base everywhere, the others where they ran, zeros elsewhere.
    blank = build.add("ConstantOfShape", [build.add("Shape", [first])])
    whole = [first, *[build.add("ScatterND", [blank, index, name]) for name in members[1:]]]
    return _tables(build, meta["outputs"], whole, used, answer)


def _tables(build: Builder, outputs: Sequence[str], members: Sequence[str], used: str, answer: str) -> dict[str, str]:
    """The outputs by name; members are tables (B, K), with zeros where a member did not run."""
    tables = {"probabilities": answer, "used": used}
    if "members" in outputs:
        axis = build.constant(np.array([1]))
        tables["members"] = build.add("Concat", [build.add("Unsqueeze", [name, axis]) for name in members], axis=1)
    if "entropy" in outputs:
        tables["entropy"] = build.entropy(answer)
        total = build.add("Sum", [build.entropy(name) for name in members])
        mean = build.add("Div", [total, build.add("Cast", [used], to=1)])
        tables["mutual_information"] = build.add("Sub", [build.entropy(build.mean(members, used)), mean])
    return tables
