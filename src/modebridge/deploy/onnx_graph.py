"""Parts as ONNX graphs, put together into one: plain, or elastic by `If` and by gathering the unsure images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from modebridge.deploy.elastic_answer import ALL, Place
from modebridge.deploy.inputs import specs_in
from modebridge.deploy.one_module import OneModule
from modebridge.ensembles.temperature import FLOOR

__all__ = ["Model", "compose"]

Model = Any
"""An `onnx.ModelProto`; onnx has no types to speak of."""


def compose(
    bases: Sequence[Model],
    bridges: Sequence[Model],
    module: OneModule,
    shapes: Mapping[Place, Sequence[int]],
    meta: Mapping[str, Any],
) -> Model:
    """One model from the models of all bases (images to logits and features) and bridges (features to logits).

    Elastic, the graph has two more inputs with defaults: `bridges`, how many of them run, and `threshold`, the
    confidence under which the first base's answer is not enough. Every bridge is the branch of an `If` that holds its
    weights (ONNX Runtime blocks a branch's convolutions only if their weights lie in it), on the gathered features of
    the unsure images; a base after the first is the branch of an `If` too.

    Args:
        bases: of `part_models`.
        bridges: the same; elastic, one model a bridge.
        module: whose parts they are.
        shapes: of the features that bridges read, without the batch axis.
        meta: the file's metadata, which says what it is to take and to give.
    """
    from onnx import TensorProto, helper

    build = _Builder()
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(spec.type)), ["batch", *spec.shape]
        )
        for name, spec in specs_in(meta).items()
    ]
    if meta["elastic"]:
        # An initializer of the same name is the input's default: a caller may leave it out.
        inputs.append(helper.make_tensor_value_info("bridges", TensorProto.INT64, []))
        inputs.append(helper.make_tensor_value_info("threshold", TensorProto.FLOAT, []))
        build.constant(np.array(len(module.reads)), "bridges")
        build.constant(np.array(ALL if meta["threshold"] is None else meta["threshold"], np.float32), "threshold")
        tables = _elastic(build, bases, bridges, module, shapes, meta)
    else:
        tables = _plain(build, bases, bridges, module, meta)
    outputs = []
    axes = {"probabilities": [len(meta["classes"])], "members": [len(meta["members"]), len(meta["classes"])]}
    for name in meta["outputs"]:
        build.add("Identity", [tables[name]], name)
        kind = TensorProto.INT64 if name == "used" else TensorProto.FLOAT
        outputs.append(helper.make_tensor_value_info(name, kind, ["batch", *axes.get(name, [])]))
    graph = helper.make_graph(build.nodes, "modebridge", inputs, outputs, build.initializers)
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


def _plain(
    build: _Builder, bases: Sequence[Model], bridges: Sequence[Model], module: OneModule, meta: Mapping[str, Any]
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
            # A group gives (J, B, K): its tables are taken out one by one.
            by_number[j] = build.add("Gather", [table, build.constant(np.array(place))]) if len(numbers) > 1 else table
    members += [by_number[j] for j in sorted(by_number)]
    batch = build.rows(members[0])
    used = build.add("Expand", [build.constant(np.array([len(members)])), batch])
    temperature = build.constant(np.array(module.temperatures.by_bridges[-1], np.float32))
    mean = build.log_mean(members, used) if module.mean == "logarithmic" else build.mean(members, used)
    return _tables(build, meta["outputs"], members, used, build.scale(mean, temperature))


def _elastic(
    build: _Builder,
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
    table = build.add("Concat", [rows, build.constant(np.array([classes]))], axis=0)
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
    asked = build.add("Clip", ["bridges", zero, build.constant(np.array(len(bridges)))])
    for j, model in enumerate(bridges):
        wanted = build.add("And", [some, build.add("Greater", [asked, build.constant(np.array(j))])])
        ran.append(wanted)
        sources = [features[place] for place in module.reads[j]]
        members += build.branch(wanted, model, sources, f"bridge{j}/", [table])
    number = build.add("Add", [asked, build.constant(np.array(len(bases)))])
    used_here = build.add("Expand", [number, rows])
    by_bridges = build.constant(np.array(temperatures.by_bridges, np.float32))
    temperature = build.add("Gather", [by_bridges, asked], axis=0)
    logarithmic = module.mean == "logarithmic"
    mean = build.log_mean(members, used_here, ran) if logarithmic else build.mean(members, used_here)
    tempered = build.scale(mean, temperature)
    index = build.add("Unsqueeze", [unsure, minus])  # (n, 1)
    batch = build.rows(first)
    used = build.add("ScatterND", [build.add("Expand", [one, batch]), index, used_here])
    answer = build.add("ScatterND", [sure, index, tempered])
    if set(meta["outputs"]) == {"probabilities", "used"}:
        return {"probabilities": answer, "used": used}
    # Members of all images: the first base's everywhere, the others' where they ran, zeros elsewhere.
    blank = build.add("ConstantOfShape", [build.add("Shape", [first])])
    whole = [first, *[build.add("ScatterND", [blank, index, name]) for name in members[1:]]]
    return _tables(build, meta["outputs"], whole, used, answer)


def _tables(build: _Builder, outputs: Sequence[str], members: Sequence[str], used: str, answer: str) -> dict[str, str]:
    """The outputs by name; members are tables (B, K), zeros where one did not run."""
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

    def log_mean(self, tables: Sequence[str], used: str, ran: Sequence[str | None] | None = None) -> str:
        """The softmax of the mean log of tables, as `nets.logarithmic_mean`; `ran` says which members may not have run.

        It has the name of a boolean for each of them, and None for those that always run.
        """
        tiny = self.constant(np.array(np.finfo(np.float32).tiny, np.float32))
        logs = [self.add("Log", [self.add("Max", [table, tiny])]) for table in tables]
        for k, flag in enumerate(ran or ()):
            if flag is not None:
                logs[k] = self.add("Mul", [logs[k], self.add("Cast", [flag], to=1)])
        return self.add("Softmax", [self.mean(logs, used)], axis=-1)

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
