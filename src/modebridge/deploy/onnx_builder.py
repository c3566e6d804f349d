"""Build one ONNX graph from nodes, constants and whole models, with unique value names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from modebridge.ensembles.temperature import FLOOR

__all__ = ["Builder", "Model", "graphs_in"]

Model = Any
"""An `onnx.ModelProto`; onnx has no useful type hints."""


class Builder:
    """Nodes and constants of a graph under construction; every value gets a name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._count = 0

    def constant(self, value: np.ndarray[Any, Any], name: str = "") -> str:
        """Add a constant, int64 or float32, and return its name."""
        from onnx import numpy_helper

        name = name or self._name("constant")
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, op: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the name of the output."""
        from onnx import helper

        name = name or self._name(op.lower())
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"node/{name}", **attributes))
        return name

    def part(self, model: Model, inputs: Sequence[str], prefix: str) -> list[str]:
        """Add the nodes and weights of a model that reads `inputs`, and return the names of its outputs."""
        graph = _renamed(model, inputs, prefix)
        self.nodes.extend(graph.node)
        self.initializers.extend(graph.initializer)
        return [output.name for output in graph.output]

    def branch(
        self, condition: str, model: Model, inputs: Sequence[str], prefix: str, otherwise: Sequence[str | Sequence[int]]
    ) -> list[str]:
        """Add a model that runs if a condition holds; returns the softmax of its first output, and its other outputs.

        Args:
            condition: name of a boolean.
            model: model that reads `inputs`, which are outside the branch.
            inputs: names of values.
            prefix: prefix of every name in the branch.
            otherwise: shapes of the zeros that replace the outputs if the model does not run, as numbers or as the name
                of a tensor.
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

    def heads(self, table: str, count: int) -> list[str]:
        """The (B, K) tables of the heads of a bridge."""
        if count == 1:
            return [table]
        return [self.add("Gather", [table, self.constant(np.array(k))], axis=1) for k in range(count)]

    def rows(self, table: str) -> str:
        """The number of rows of a table, as a vector of length one."""
        return self.add("Shape", [table], start=0, end=1)

    def mean(self, tables: Sequence[str], used: str) -> str:
        """The sum of tables (B, K) divided by the number (B,) of tables in use; the others are zeros."""
        axis = self.constant(np.array([1]))
        share = self.add("Unsqueeze", [self.add("Cast", [used], to=1), axis])
        return self.add("Div", [self.add("Sum", list(tables)), share])

    def log_mean(self, tables: Sequence[str], used: str, ran: Sequence[str | None] | None = None) -> str:
        """The softmax of the mean log of tables, as in `ensembles.average`.

        `ran` has the name of a boolean for each member that may not have run, and None for members that always run.
        """
        tiny = self.constant(np.array(np.finfo(np.float32).tiny, np.float32))
        logs = [self.add("Log", [self.add("Max", [table, tiny])]) for table in tables]
        for k, flag in enumerate(ran or ()):
            if flag is not None:
                logs[k] = self.add("Mul", [logs[k], self.add("Cast", [flag], to=1)])
        return self.add("Softmax", [self.mean(logs, used)], axis=-1)

    def scale(self, table: str, temperature: str) -> str:
        """softmax(log(p) / T), as in `ensembles.scale`."""
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
    """A copy of a model's graph with prefixed names that reads the given values."""
    from onnx import compose as compose_lib

    graph = compose_lib.add_prefix(model, prefix).graph
    names = {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    for node in (node for part in graphs_in(graph) for node in part.node):
        for k, name in enumerate(node.input):
            node.input[k] = names.get(name, name)
    return graph


def graphs_in(graph: Any) -> Iterator[Any]:
    """A graph and all graphs in the attributes of its nodes, such as branches."""
    yield graph
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        # Accessing an unset field would set it.
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from graphs_in(inner)
