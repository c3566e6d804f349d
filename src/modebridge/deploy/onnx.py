"""The ensemble as an ONNX model: plain, or a cascade in one graph, with `If` and gathered unsure images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modebridge.deploy.inputs import Spec, output_specs, specs_in
from modebridge.deploy.metadata import KEY
from modebridge.deploy.module import EnsembleModule, Temperatures
from modebridge.deploy.pt2 import export_program
from modebridge.ensembles import Output, features_of
from modebridge.ensembles.temperature import FLOOR
from modebridge.errors import ModebridgeError
from modebridge.scoring import ALL

Model = Any
"""An `onnx.ModelProto`; onnx has no useful type hints."""

MOST = 2**31 - 2**20
"""Maximum size of an ONNX file, in bytes."""


@torch.no_grad()
def write_onnx(
    module: EnsembleModule, example: Sequence[Tensor], meta: Mapping[str, Any], path: Path
) -> Callable[[str], None]:
    """Export the ensemble as ONNX; returns a function that writes it with its metadata."""
    import onnx

    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    if size > MOST:
        raise ModebridgeError(
            f"Expected the weights to fit in one ONNX file of 2 GB, but got {size / 2**30:.1f} GB; export to .pt2."
        )
    if meta["elastic"]:
        outputs = module.run_bases(*[tensor[:1] for tensor in example])
        bases = [_model(base, example) for base in module.bases]
        bridges = [_model(bridge, features_of(bridge, reads, outputs)) for bridge, reads in module.reads]
        model = _cascade(bases, bridges, module, outputs, meta)
    else:
        model = _model(module, example, input_names=list(specs_in(meta)), output_names=meta["outputs"])
        for field, specs in ((model.graph.input, specs_in(meta)), (model.graph.output, output_specs(meta))):
            del field[:]
            field.extend(_values(specs))
    onnx.checker.check_model(model)

    def write(metadata: str) -> None:
        onnx.helper.set_model_props(model, {KEY: metadata})
        path.write_bytes(model.SerializeToString())

    return write


def _model(module: nn.Module, example: Sequence[Tensor], **options: Any) -> Model:
    from onnx import inliner

    program = export_program(torch.onnx.export, "torch.onnx", module, example, dynamo=True, verbose=False, **options)
    model = inliner.inline_local_functions(program.model_proto)
    # Remove torch's notes on the origin of each node, which contain paths of the exporting machine.
    for graph in _graphs_in(model.graph):
        for part in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
            part.ClearField("metadata_props")
            part.ClearField("doc_string")
    return model


def _values(specs: Mapping[str, Spec]) -> list[Any]:
    from onnx import helper

    kinds = {name: helper.np_dtype_to_tensor_dtype(np.dtype(spec.type)) for name, spec in specs.items()}
    return [helper.make_tensor_value_info(name, kinds[name], ["batch", *spec.shape]) for name, spec in specs.items()]


def _cascade(
    bases: Sequence[Model],
    bridges: Sequence[Model],
    module: EnsembleModule,
    outputs: Mapping[int, Output],
    meta: Mapping[str, Any],
) -> Model:
    """One model from those of all bases (images to logits and features) and bridges (features to logits).

    It has two more inputs with defaults: `bridges`, the number of bridges to run, and `threshold`, the confidence
    below which further members run. Every bridge, and every base after the first, is a branch of an `If` that runs on
    the gathered unsure images. The branch holds the weights, because ONNX Runtime uses its blocked layout for
    convolutions in a branch only if their weights are in it.
    """
    from onnx import TensorProto, helper

    build, inputs, classes = _Builder(), list(specs_in(meta)), len(meta["classes"])
    temperatures = Temperatures(meta["first_temperature"], meta["temperatures"])
    # An initializer with the name of an input is its default.
    build.constant(len(bridges), "bridges")
    build.constant(np.float32(ALL if meta["threshold"] is None else meta["threshold"]), "threshold")
    zero, one = build.constant(0), build.constant(1)
    out, *at_taps = build.part(bases[0], inputs, "base0/")
    first = build.add("Softmax", [out], axis=-1)
    sure = build.scale(first, build.constant(np.float32(temperatures.first)))
    top = build.add("ReduceMax", [sure, build.constant([-1])], keepdims=0)
    places = build.add("NonZero", [build.add("Less", [top, "threshold"])])  # (1, n)
    unsure = build.add("Squeeze", [places, build.constant([0])])
    rows = build.add("Shape", [unsure])
    some = build.add("Greater", [build.add("Squeeze", [rows]), zero])

    def gather(name: str) -> str:
        return build.add("Gather", [name, unsure], axis=0)

    members = [gather(first)]
    features = {(0, tap): gather(name) for tap, name in zip(module.taps[0], at_taps, strict=True)}
    gathered = [gather(name) for name in inputs] if len(bases) > 1 else []
    for k, model in enumerate(bases[1:], start=1):
        sizes = [(classes,), *[outputs[k][1][tap].shape[1:] for tap in module.taps[k]]]
        probabilities, *at_taps = build.branch(some, model, gathered, f"base{k}/", rows, sizes)
        members.append(probabilities)
        features |= {(k, tap): name for tap, name in zip(module.taps[k], at_taps, strict=True)}
    chosen = build.add("Clip", ["bridges", zero, build.constant(len(bridges))])
    ends = [len(members)]
    for j, (model, (bridge, reads)) in enumerate(zip(bridges, module.reads, strict=True)):
        wanted = build.add("And", [some, build.add("Greater", [chosen, build.constant(j)])])
        sources, heads = [features[reads[k], tap] for k, tap in bridge.places], bridge.heads
        size = (classes,) if heads == 1 else (heads, classes)
        (table,) = build.branch(wanted, model, sources, f"bridge{j}/", rows, [size])
        split = [build.add("Gather", [table, build.constant(k)], axis=1) for k in range(heads)] if heads > 1 else []
        members += split or [table]
        ends.append(len(members))
    used_here = build.add("Expand", [build.add("Gather", [build.constant(ends), chosen]), rows])
    by_bridges = build.constant(np.array(temperatures.by_bridges, np.float32))
    tempered = build.scale(build.mean(members, used_here), build.add("Gather", [by_bridges, chosen], axis=0))
    index = build.add("Unsqueeze", [unsure, build.constant(-1)])  # (n, 1)
    batch = build.add("Shape", [first], start=0, end=1)
    used = build.add("ScatterND", [build.add("Expand", [one, batch]), index, used_here])
    answer = build.add("ScatterND", [sure, index, tempered])
    tables = {"probabilities": answer, "used": used}
    if set(meta["outputs"]) > set(tables):
        # Members for all images: the first base everywhere, the others where they ran, zeros elsewhere.
        blank = build.add("ConstantOfShape", [build.add("Shape", [first])])
        whole = [first, *[build.add("ScatterND", [blank, index, name]) for name in members[1:]]]
        axis = build.constant([1])
        tables["members"] = build.add("Concat", [build.add("Unsqueeze", [name, axis]) for name in whole], axis=1)
        tables["entropy"] = build.entropy(answer)
        total = build.add("ReduceSum", [build.entropy(tables["members"]), axis], keepdims=0)
        each = build.add("Div", [total, build.add("Cast", [used], to=TensorProto.FLOAT)])
        tables["mutual_information"] = build.add("Sub", [build.entropy(build.mean(whole, used)), each])
    for name in meta["outputs"]:
        build.add("Identity", [tables[name]], name)
    scalars = [("bridges", TensorProto.INT64), ("threshold", TensorProto.FLOAT)]
    graph = helper.make_graph(
        build.nodes,
        "modebridge",
        [*_values(specs_in(meta)), *[helper.make_tensor_value_info(name, kind, []) for name, kind in scalars]],
        _values(output_specs(meta)),
        build.initializers,
    )
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


class _Builder:
    """Nodes and constants of a graph under construction; every value gets a name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def constant(self, value: Any, name: str = "") -> str:
        """Add a constant, int64 or float32, and return its name."""
        from onnx import numpy_helper

        name = name or f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, op: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the name of the output."""
        from onnx import helper

        name = name or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"node/{name}", **attributes))
        return name

    def part(self, model: Model, inputs: Sequence[str], prefix: str) -> list[str]:
        """Add the nodes and weights of a model that reads `inputs`, and return the names of its outputs."""
        graph = _renamed(model, inputs, prefix)
        self.nodes.extend(graph.node)
        self.initializers.extend(graph.initializer)
        return [output.name for output in graph.output]

    def branch(
        self,
        condition: str,
        model: Model,
        inputs: Sequence[str],
        prefix: str,
        rows: str,
        sizes: Sequence[Sequence[int]],
    ) -> list[str]:
        """Add a model that runs if a condition holds; returns the softmax of its first output, and its other outputs.

        If it does not run, they are zeros: `rows` is the name of their number of rows, `sizes` are the other sizes.
        """
        from onnx import TensorProto, helper

        graph = _renamed(model, inputs, prefix)
        names = [output.name for output in graph.output]
        soft = [f"{prefix}probabilities", *names[1:]]
        graph.node.append(helper.make_node("Softmax", names[:1], soft[:1], axis=-1))
        blanks = _Builder()
        for k, size in enumerate(sizes):
            shape = helper.make_node("Concat", [rows, f"{prefix}size{k}"], [f"{prefix}shape{k}"], axis=0)
            blanks.constant(np.array(size), f"{prefix}size{k}")
            blanks.nodes += [shape, helper.make_node("ConstantOfShape", [f"{prefix}shape{k}"], [f"{prefix}blank{k}"])]

        def values(outputs: Sequence[str]) -> list[Any]:
            return [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, *size])
                for name, size in zip(outputs, sizes, strict=True)
            ]

        run = helper.make_graph(graph.node, f"{prefix}run", [], values(soft), graph.initializer)
        empty = values([f"{prefix}blank{k}" for k in range(len(sizes))])
        skip = helper.make_graph(blanks.nodes, f"{prefix}skip", [], empty, blanks.initializers)
        outputs = [f"{prefix}out{k}" for k in range(len(names))]
        self.nodes.append(
            helper.make_node("If", [condition], outputs, name=f"{prefix}if", then_branch=run, else_branch=skip)
        )
        return outputs

    def mean(self, tables: Sequence[str], used: str) -> str:
        """The sum of tables (B, K) divided by the number (B,) of tables in use; the others are zeros."""
        share = self.add("Unsqueeze", [self.add("Cast", [used], to=1), self.constant([1])])
        return self.add("Div", [self.add("Sum", list(tables)), share])

    def scale(self, table: str, temperature: str) -> str:
        """softmax(log(p) / T), as in `ensembles.scale`."""
        return self.add("Softmax", [self.add("Div", [self._log(table), temperature])], axis=-1)

    def entropy(self, table: str) -> str:
        """-sum(p log(p)) over the last axis."""
        terms = self.add("Mul", [table, self._log(table)])
        return self.add("Neg", [self.add("ReduceSum", [terms, self.constant([-1])], keepdims=0)])

    def _log(self, table: str) -> str:
        return self.add("Log", [self.add("Add", [table, self.constant(np.float32(FLOOR))])])


def _renamed(model: Model, inputs: Sequence[str], prefix: str) -> Any:
    """A copy of a model's graph with prefixed names that reads the given values."""
    from onnx import compose

    graph = compose.add_prefix(model, prefix).graph
    names = {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    for node in (node for part in _graphs_in(graph) for node in part.node):
        for k, name in enumerate(node.input):
            node.input[k] = names.get(name, name)
    return graph


def _graphs_in(graph: Any) -> Iterator[Any]:
    """A graph and all graphs in the attributes of its nodes, such as branches."""
    yield graph
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        # Accessing an unset field would set it.
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _graphs_in(inner)
