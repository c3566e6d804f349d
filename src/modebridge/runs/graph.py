"""The graph of a run: what to make, from what, in which order, and what of it exists; built without loading weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modebridge.members import Node, Setting, key_of, nodes_behind
from modebridge.runs.store import RunFolder


@dataclass(frozen=True)
class Job:
    """Nodes of one step that are made together; can be pickled and sent to another process."""

    nodes: tuple[Node, ...]
    parents: tuple[str, ...]
    """The places of all parents."""
    key: str
    """A hash of everything that they are made from."""

    @property
    def kind(self) -> type[Node]:
        return type(self.nodes[0])

    @property
    def title(self) -> str:
        """Its name for users, such as "curves 0-1"."""
        first = self.nodes[0].label
        return f"{self.kind.folder} {first if len(self.nodes) == 1 else f'{len(self.nodes)}-from-{first}'}"

    def saved_as(self, way: str) -> str:
        """The name of its checkpoint's file; a position is only valid for the same way to run steps (`Engine.way`)."""
        return f"{self.title.replace(' ', '-')}-{key_of(way, self.key)[:12]}"


class Graph:
    """Some nodes and everything that they need, parents before their children.

    Args:
        nodes: the nodes to make.
        setting: determines their ingredients.
        given: keys of nodes that are not made here, by place; they have no parents.
        device: the type of device that they are made on; None for that of this process.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        setting: Setting,
        given: Mapping[str, str] | None = None,
        device: str | None = None,
    ) -> None:
        self._setting, self._device = setting, device
        self.nodes: dict[str, Node] = {}
        self.keys = dict(given or {})
        """A hash of everything that a node is made from, including its parents' keys."""
        self.parents: dict[str, tuple[str, ...]] = {}
        for node in nodes_behind(nodes, setting.recipe, self.keys):
            place, known = node.place, node.place in self.keys
            self.nodes[place] = node
            self.parents[place] = () if known else tuple(parent.place for parent in node.parents(setting.recipe))
            if not known:
                above = [self.keys[parent] for parent in self.parents[place]]
                self.keys[place] = key_of(node.folder, node.name, sorted(node.ingredients(setting).items()), *above)

    def exists(self, node: Node, store: RunFolder) -> bool:
        """Whether the store has a node, made from the same ingredients and from its parents as they are now."""
        meta = store.meta(node.place)
        if meta.get("key") != self.keys[node.place]:
            return False
        # The same recipe gives other bits on another machine: a parent that was made again there is a new parent.
        made_from = meta.get("inputs", {})
        now = {place: store.meta(place).get("bits") for place in self.parents[node.place]}
        return all(bits is None or made_from.get(place) == bits for place, bits in now.items())

    def waves(self) -> Iterator[list[Node]]:
        """The nodes in groups of one step that are made one after another; nodes of a group do not need each other.

        A step waits until all of it can be made, so that all bridges are trained in one pass, and all members predict
        in one.
        """
        left = dict(self.nodes)
        while left:
            ready = [node for node in left.values() if not any(parent in left for parent in self.parents[node.place])]
            waiting = {node.step() for node in left.values() if node not in ready}
            steps = dict.fromkeys(node.step() for node in ready)
            step = next((step for step in steps if step not in waiting), next(iter(steps)))
            wave = [node for node in ready if node.step() == step]
            for node in wave:
                del left[node.place]
            yield wave

    def jobs(self, nodes: Sequence[Node]) -> list[Job]:
        if not nodes:
            return []
        on_gpu = (self._device or self._setting.engine.device.type) == "cuda"
        several = self._setting.recipe.together if on_gpu else 1
        size = {"one": 1, "several": several, "all": len(nodes)}[nodes[0].together]
        jobs = []
        for group in (nodes[k : k + size] for k in range(0, len(nodes), size)):
            parents = dict.fromkeys(parent for node in group for parent in self.parents[node.place])
            jobs.append(Job(tuple(group), tuple(parents), key_of(*(self.keys[node.place] for node in group))))
        return jobs

    def steps(self, store: RunFolder, given: Collection[str] = ()) -> list[dict[str, Any]]:
        """What each wave will do, as plain data: the names of what exists or is passed in, and of what will be made."""
        steps = []
        for wave in self.waves():
            missing = [node for node in wave if node.place not in given and not self.exists(node, store)]
            steps.append(
                {
                    "name": wave[0].step(),
                    "folder": wave[0].folder,
                    "there": [node.label for node in wave if node not in missing],
                    "missing": [[node.label for node in job.nodes] for job in self.jobs(missing)],
                    "epochs": wave[0].training(self._setting.recipe).epochs,
                }
            )
        return steps
