"""The ensemble as an ONNX model: a plain graph, or a cascade with a branch that runs on unsure images only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from modebridge.deploy.inputs import ANY, Spec, output_specs, specs_in
from modebridge.deploy.metadata import KEY
from modebridge.deploy.module import EnsembleModule, Tensors, export_program
from modebridge.errors import ModebridgeError

Model = Any
"""An `onnx.ModelProto`; onnx has no useful type hints."""

LENGTH = "length"
"""The name of the axis of tokens, if it may have any size."""

MOST = 2**31 - 2**20
"""Maximum size of an ONNX file, in bytes."""


@torch.no_grad()
def write_onnx(
    module: EnsembleModule, examples: Sequence[Tensors], meta: Mapping[str, Any], path: Path
) -> Callable[[str], None]:
    """Export the ensemble as ONNX; returns a function that writes it with its metadata."""
    import onnx

    size = sum(tensor.nbytes for tensor in chain(module.parameters(), module.buffers()))
    if size > MOST:
        raise ModebridgeError(
            f"Expected the weights to fit in one ONNX file of 2 GB, but got {size / 2**30:.1f} GB; export to .pt2."
        )
    if meta["threshold"] is None:
        model = _model(module, examples, input_names=list(specs_in(meta)), output_names=meta["outputs"])
        for field, specs in ((model.graph.input, specs_in(meta)), (model.graph.output, output_specs(meta))):
            del field[:]
            field.extend(_values(specs))
    else:
        model = _cascade(module, examples, meta)
    onnx.checker.check_model(model)

    def write(metadata: str) -> None:
        onnx.helper.set_model_props(model, {KEY: metadata})
        path.write_bytes(model.SerializeToString())

    return write


def _model(module: nn.Module, examples: Sequence[Tensors], **options: Any) -> Model:
    from onnx import inliner

    # Not optimized: onnxscript removes the addition of any constant below 1e-8 (rule add_0, onnxscript 0.7), such as
    # those before a logarithm. ONNX Runtime optimizes the graph when it loads it.
    options |= {"dynamo": True, "optimize": False, "verbose": False}
    program = export_program(torch.onnx.export, "torch.onnx", module, examples, **options)
    model = inliner.inline_local_functions(program.model_proto)
    # Remove torch's notes on the origin of each node, which contain paths of the exporting machine.
    for graph in _graphs_in(model.graph):
        _drop_false_biases(graph)
        for part in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
            part.ClearField("metadata_props")
            part.ClearField("doc_string")
    return model


def _drop_false_biases(graph: Any) -> None:
    """Where a 3-D convolution has no bias, onnxscript 0.7 adds one of zeros of a wrong shape (its issue 2931)."""
    made = {name for node in graph.node if node.op_type == "Expand" for name in node.output}
    for node in graph.node:
        axes = [len(one.ints) for one in node.attribute if one.name == "kernel_shape"]
        if node.op_type == "Conv" and axes == [3] and made.intersection(node.input[2:]):
            del node.input[2]


def _values(specs: Mapping[str, Spec], prefix: str = "") -> list[Any]:
    from onnx import helper

    kinds = {name: helper.np_dtype_to_tensor_dtype(np.dtype(spec.type)) for name, spec in specs.items()}
    shapes = {name: [LENGTH if size == ANY else size for size in spec.shape] for name, spec in specs.items()}
    return [helper.make_tensor_value_info(prefix + name, kinds[name], ["batch", *shapes[name]]) for name in specs]


def _cascade(module: EnsembleModule, examples: Sequence[Tensors], meta: Mapping[str, Any]) -> Model:
    """A model with one more input, `threshold`: the confidence of the first base below which all members run.

    The first base runs on all images. If it is unsure of some, the branch of an `If` gathers these, runs the other
    members on them, and puts the outputs of all members in place of those of the first base alone. The branch holds the
    weights, because ONNX Runtime uses its blocked layout for convolutions in a branch only if their weights are in it.
    """
    from onnx import TensorProto, helper, numpy_helper

    node, outputs, inputs = helper.make_node, list(meta["outputs"]), list(specs_in(meta))
    # What the other members read: the logits and features of the first base, and the inputs if there is another base.
    again = bool(len(module.others.bases))
    read = [(*module.first(*[tensor[:1] for tensor in given]), *(given if again else ())) for given in examples]
    models = [_model(module.first, examples), _model(module.alone, [read[0][:1]]), _model(module.others, read)]
    first, given = _renamed(models[0], inputs, "first/")
    alone, tables = _renamed(models[1], given[:1], "alone/")
    unsure = {f"unsure/{name}": name for name in (*given, *(inputs if again else ()))}
    others, updates = _renamed(models[2], list(unsure), "others/")
    choose = [
        node("ReduceMax", [tables[0], "gate/classes"], ["gate/top"], keepdims=0),
        node("ReduceMean", ["gate/top", "gate/places"], ["gate/confidence"], keepdims=0, noop_with_empty_axes=1),
        node("Less", ["gate/confidence", "threshold"], ["gate/below"]),
        node("NonZero", ["gate/below"], ["gate/found"]),  # (1, n)
        node("Transpose", ["gate/found"], ["gate/index"]),  # (n, 1)
        node("Squeeze", ["gate/found", "gate/batch"], ["gate/rows"]),  # (n,)
        node("Size", ["gate/rows"], ["gate/count"]),
        node("Greater", ["gate/count", "gate/zero"], ["gate/some"]),
    ]
    gather = [node("Gather", [name, "gate/rows"], [few], axis=0) for few, name in unsure.items()]
    put = [
        node("ScatterND", [table, "gate/index", update], [f"all/{name}"])
        for name, table, update in zip(outputs, tables, updates, strict=True)
    ]
    keep = [node("Identity", [table], [f"one/{name}"]) for name, table in zip(outputs, tables, strict=True)]
    run = helper.make_graph(
        [*gather, *others.node, *put], "all", [], _values(output_specs(meta), "all/"), others.initializer
    )
    skip = helper.make_graph(keep, "one", [], _values(output_specs(meta), "one/"))
    # An initializer with the name of an input is its default.
    places = np.arange(1, len(meta["places"]) + 1)  # their axes, once the classes are gone
    axes = {"gate/batch": [0], "gate/classes": [1], "gate/places": places.astype(np.int64)}
    constants = {"threshold": np.float32(meta["threshold"]), "gate/zero": 0, **axes}
    graph = helper.make_graph(
        [*first.node, *alone.node, *choose, node("If", ["gate/some"], outputs, then_branch=run, else_branch=skip)],
        "modebridge",
        [*_values(specs_in(meta)), helper.make_tensor_value_info("threshold", TensorProto.FLOAT, [])],
        _values(output_specs(meta)),
        [*first.initializer, *alone.initializer]
        + [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(
        graph,
        opset_imports={one.domain: one for model in models for one in model.opset_import}.values(),
        ir_version=models[0].ir_version,
        producer_name="modebridge",
    )


def _renamed(model: Model, inputs: Sequence[str], prefix: str) -> tuple[Any, list[str]]:
    """A copy of a model's graph with prefixed names that reads the given values, and the names of its outputs."""
    from onnx import compose

    graph = compose.add_prefix(model, prefix).graph
    names = {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    for node in (node for part in _graphs_in(graph) for node in part.node):
        for k, name in enumerate(node.input):
            node.input[k] = names.get(name, name)
    return graph, [output.name for output in graph.output]


def _graphs_in(graph: Any) -> Iterator[Any]:
    """A graph and all graphs in the attributes of its nodes, such as branches."""
    yield graph
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        # Accessing an unset field would set it.
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _graphs_in(inner)
