"""Parts as ONNX graphs, put together into one: plain, or elastic by `If` and by gathering the unsure images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.deploy.inputs import InputSpec
from modebridge.ensembles.temperature import FLOOR

__all__ = ["Layout", "compose"]

Model = Any
"""An `onnx.ModelProto`; onnx has no types to speak of."""


@dataclass(frozen=True)
class Layout:
    """What the parts are and what the whole gives.

    Args:
        inputs: what the bases take, by name and in their order.
        taps: of each base, in the order in which its part gives the features.
        shapes: of those features, without the batch axis.
        reads: of each bridge, the (base, tap) of every feature that it takes.
        units: the numbers of the bridges that each part computes; elastic, one each.
        classes: K.
        temperatures: of every number of bridges.
        threshold: what is used where the caller gives none.
        members: whether each member's probabilities go out too.
        uncertainty: whether entropy and mutual information go out too.
        elastic: whether `bridges` and `threshold` are inputs.
    """

    inputs: Mapping[str, InputSpec]
    taps: Sequence[Sequence[str]]
    shapes: Sequence[Sequence[tuple[int, ...]]]
    reads: Sequence[Sequence[tuple[int, str]]]
    units: Sequence[tuple[int, ...]]
    classes: int
    temperatures: Temperatures
    threshold: float
    members: bool
    uncertainty: bool
    elastic: bool


def compose(bases: Sequence[Model], bridges: Sequence[Model], layout: Layout) -> Model:
    """One model from the models of all bases (images to logits and features) and bridges (features to logits).

    Elastic, the graph has two more inputs with defaults: `bridges`, how many of them run, and `threshold`, the
    confidence under which the first base's answer is not enough. Every bridge is the branch of an `If` that holds its
    weights (ONNX Runtime blocks a branch's convolutions only if their weights lie in it), on the gathered features of
    the unsure images; a base after the first is the branch of an `If` too.
    """
    from onnx import TensorProto, helper

    build = _Builder()
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(one.type)), ["batch", *one.shape])
        for name, one in layout.inputs.items()
    ]
    if layout.elastic:
        # An initializer of the same name is the input's default: a caller may leave it out.
        inputs.append(helper.make_tensor_value_info("bridges", TensorProto.INT64, []))
        inputs.append(helper.make_tensor_value_info("threshold", TensorProto.FLOAT, []))
        build.constant(np.array(len(layout.reads)), "bridges")
        build.constant(np.array(layout.threshold, np.float32), "threshold")
        tables = _elastic(build, bases, bridges, layout)
    else:
        tables = _plain(build, bases, bridges, layout)
    outputs = []
    kinds: dict[str, tuple[int, list[str | int]]] = {
        "probabilities": (TensorProto.FLOAT, ["batch", layout.classes]),
        "members": (TensorProto.FLOAT, ["batch", len(bases) + len(layout.reads), layout.classes]),
        "entropy": (TensorProto.FLOAT, ["batch"]),
        "mutual_information": (TensorProto.FLOAT, ["batch"]),
        "used": (TensorProto.INT64, ["batch"]),
    }
    for name, (kind, shape) in kinds.items():
        if name in tables:
            build.add("Identity", [tables[name]], name)
            outputs.append(helper.make_tensor_value_info(name, kind, shape))
    graph = helper.make_graph(build.nodes, "modebridge", inputs, outputs, build.initializers)
    opsets: dict[str, int] = {}
    for model in (*bases, *bridges):
        for one in model.opset_import:
            opsets[one.domain] = max(opsets.get(one.domain, 0), one.version)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in opsets.items()],
        ir_version=min(model.ir_version for model in bases),
        producer_name="modebridge",
    )


def _plain(build: _Builder, bases: Sequence[Model], bridges: Sequence[Model], layout: Layout) -> dict[str, str]:
    said: list[str] = []
    features: dict[tuple[int, str], str] = {}
    for k, model in enumerate(bases):
        out, *found = build.part(model, list(layout.inputs), f"base{k}/")
        said.append(build.add("Softmax", [out], axis=-1))
        features |= {(k, tap): name for tap, name in zip(layout.taps[k], found, strict=True)}
    by_number: dict[int, str] = {}
    for numbers, model in zip(layout.units, bridges, strict=True):
        sources = [features[place] for place in layout.reads[numbers[0]]]
        (out,) = build.part(model, sources, f"bridge{numbers[0]}/")
        table = build.add("Softmax", [out], axis=-1)
        for place, j in enumerate(numbers):
            # A group gives (J, B, K): its tables are taken out one by one.
            by_number[j] = build.add("Gather", [table, build.constant(np.array(place))]) if len(numbers) > 1 else table
    said += [by_number[j] for j in sorted(by_number)]
    batch = build.rows(said[0])
    used = build.add("Expand", [build.constant(np.array([len(said)])), batch])
    temperature = build.constant(np.array(layout.temperatures.by_bridges[-1], np.float32))
    return _tables(build, layout, said, used, build.scale(build.mean(said, used), temperature))


def _elastic(build: _Builder, bases: Sequence[Model], bridges: Sequence[Model], layout: Layout) -> dict[str, str]:
    zero, one, minus = (build.constant(np.array(k)) for k in (0, 1, -1))
    out, *found = build.part(bases[0], list(layout.inputs), "base0/")
    first = build.add("Softmax", [out], axis=-1)
    sure = build.scale(first, build.constant(np.array(layout.temperatures.first, np.float32)))
    top = build.add("ReduceMax", [sure, build.constant(np.array([-1]))], keepdims=0)
    places = build.add("NonZero", [build.add("Less", [top, "threshold"])])  # (1, n)
    unsure = build.add("Squeeze", [places, build.constant(np.array([0]))])
    count = build.add("Gather", [build.add("Shape", [unsure]), zero])
    some = build.add("Greater", [count, zero])
    rows = build.add("Unsqueeze", [count, build.constant(np.array([0]))])
    table = build.add("Concat", [rows, build.constant(np.array([layout.classes]))], axis=0)
    features = {
        (0, tap): build.add("Gather", [name, unsure], axis=0) for tap, name in zip(layout.taps[0], found, strict=True)
    }
    said = [build.add("Gather", [first, unsure], axis=0)]
    gathered = [build.add("Gather", [name, unsure], axis=0) for name in layout.inputs] if len(bases) > 1 else []
    for k, model in enumerate(bases[1:], start=1):
        empty = [(0, layout.classes), *[(0, *shape) for shape in layout.shapes[k]]]
        table_of, *found = build.branch(some, model, gathered, f"base{k}/", empty)
        said.append(table_of)
        features |= {(k, tap): name for tap, name in zip(layout.taps[k], found, strict=True)}
    asked = build.add("Clip", ["bridges", zero, build.constant(np.array(len(bridges)))])
    for j, model in enumerate(bridges):
        wanted = build.add("And", [some, build.add("Greater", [asked, build.constant(np.array(j))])])
        sources = [features[place] for place in layout.reads[j]]
        said += build.branch(wanted, model, sources, f"bridge{j}/", [table])
    members = build.add("Add", [asked, build.constant(np.array(len(bases)))])
    used_here = build.add("Expand", [members, rows])
    temperatures = build.constant(np.array(layout.temperatures.by_bridges, np.float32))
    temperature = build.add("Gather", [temperatures, asked], axis=0)
    tempered = build.scale(build.mean(said, used_here), temperature)
    index = build.add("Unsqueeze", [unsure, minus])  # (n, 1)
    batch = build.rows(first)
    used = build.add("ScatterND", [build.add("Expand", [one, batch]), index, used_here])
    answer = build.add("ScatterND", [sure, index, tempered])
    if not (layout.members or layout.uncertainty):
        return {"probabilities": answer, "used": used}
    # Members of all images: the first base's everywhere, the others' where they ran, zeros elsewhere.
    blank = build.add("ConstantOfShape", [build.add("Shape", [first])])
    whole = [first, *[build.add("ScatterND", [blank, index, name]) for name in said[1:]]]
    return _tables(build, layout, whole, used, answer)


def _tables(build: _Builder, layout: Layout, said: Sequence[str], used: str, answer: str) -> dict[str, str]:
    """The outputs by name; `said` are the tables (B, K) of all members, zeros where one did not run."""
    tables = {"probabilities": answer, "used": used}
    if layout.members:
        axis = build.constant(np.array([1]))
        tables["members"] = build.add("Concat", [build.add("Unsqueeze", [name, axis]) for name in said], axis=1)
    if layout.uncertainty:
        tables["entropy"] = build.entropy(answer)
        own = build.add("Sum", [build.entropy(name) for name in said])
        own = build.add("Div", [own, build.add("Cast", [used], to=1)])
        tables["mutual_information"] = build.add("Sub", [build.entropy(build.mean(said, used)), own])
    return tables


class _Builder:
    """Nodes and constants of the graph under construction; every value gets a name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._count = 0

    def constant(self, value: np.ndarray[Any, Any], name: str = "") -> str:
        """A constant, int64 or float32."""
        from onnx import numpy_helper

        name = name or self._name("constant")
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, op: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> str:
        """A node with one output, whose name comes back."""
        from onnx import helper

        name = name or self._name(op.lower())
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"node/{name}", **attributes))
        return name

    def part(self, model: Model, inputs: Sequence[str], prefix: str) -> list[str]:
        """The nodes and weights of a model, reading `inputs`; the names of its outputs come back."""
        graph = _renamed(model, inputs, prefix)
        self.nodes.extend(graph.node)
        self.initializers.extend(graph.initializer)
        return [output.name for output in graph.output]

    def branch(
        self, condition: str, model: Model, inputs: Sequence[str], prefix: str, otherwise: Sequence[str | Sequence[int]]
    ) -> list[str]:
        """A model that runs where the condition holds: its first output's softmax, then its further outputs.

        Args:
            condition: the name of a boolean.
            model: reads `inputs`, which lie outside the branch.
            inputs: names.
            prefix: of every name in it.
            otherwise: the shape of each output where it does not run, as numbers or as the name of a tensor; zeros.
        """
        from onnx import TensorProto, helper, numpy_helper

        graph = _renamed(model, inputs, prefix)
        ranks = [len(output.type.tensor_type.shape.dim) for output in graph.output]
        names = [output.name for output in graph.output]
        soft = f"{prefix}probabilities"
        then_nodes = [*graph.node, helper.make_node("Softmax", [names[0]], [soft], axis=-1)]

        def values(outputs: Sequence[str]) -> list[Any]:
            pairs = zip(outputs, ranks, strict=True)
            return [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * rank) for n, rank in pairs]

        then = helper.make_graph(then_nodes, f"{prefix}run", [], values([soft, *names[1:]]), graph.initializer)
        nodes, constants, blanks = [], [], []
        for k, shape in enumerate(otherwise):
            if not isinstance(shape, str):
                constants.append(numpy_helper.from_array(np.array(shape, np.int64), f"{prefix}shape{k}"))
            source = shape if isinstance(shape, str) else f"{prefix}shape{k}"
            blanks.append(f"{prefix}blank{k}")
            nodes.append(helper.make_node("ConstantOfShape", [source], [blanks[-1]]))
        other = helper.make_graph(nodes, f"{prefix}skip", [], values(blanks), constants)
        outputs = [f"{prefix}out{k}" for k in range(len(names))]
        self.nodes.append(
            helper.make_node("If", [condition], outputs, name=f"{prefix}if", then_branch=then, else_branch=other)
        )
        return outputs

    def rows(self, table: str) -> str:
        """The number of rows of a table, as a vector of one."""
        return self.add("Shape", [table], start=0, end=1)

    def mean(self, tables: Sequence[str], used: str) -> str:
        """The sum of tables (B, K) over the number (B,) that is not zeros."""
        axis = self.constant(np.array([1]))
        share = self.add("Unsqueeze", [self.add("Cast", [used], to=1), axis])
        return self.add("Div", [self.add("Sum", list(tables)), share])

    def scale(self, table: str, temperature: str) -> str:
        """softmax(log(p) / T), as `ensembles.scale`."""
        return self.add("Softmax", [self.add("Div", [self._log(table), temperature])], axis=-1)

    def entropy(self, table: str) -> str:
        """-sum(p log(p)) of each row."""
        terms = self.add("Mul", [table, self._log(table)])
        return self.add("Neg", [self.add("ReduceSum", [terms, self.constant(np.array([-1]))], keepdims=0)])

    def _log(self, table: str) -> str:
        return self.add("Log", [self.add("Add", [table, self.constant(np.array(FLOOR, np.float32))])])

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"


def _renamed(model: Model, inputs: Sequence[str], prefix: str) -> Any:
    """A copy of a model's graph under names of its own, reading the given values."""
    from onnx import compose as compose_lib

    graph = compose_lib.add_prefix(model, prefix).graph
    _swap(graph, {value.name: name for value, name in zip(graph.input, inputs, strict=True)})
    return graph


def _swap(graph: Any, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = names.get(name, name)
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                _swap(inner, names)
