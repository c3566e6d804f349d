"""README.md of a stored folder: a model card with the YAML header that the Hugging Face Hub reads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Card", "Metric"]

TAGS = ("modebridge", "bridge-networks", "deep-ensembles", "uncertainty", "calibration")

PAPER = '"Traversing Between Modes in Function Space for Fast Ensembling" (ICML 2023)'

USAGE = {
    "ensemble": "ensemble = mb.load({place}{net})\nprobabilities = ensemble(images)",
    "mode": "mode = mb.load({place})\nnetwork = mode.load(net)  # net: your module of the same architecture",
    "bezier": "curve = mb.load({place})\nmidpoint = curve.at(0.5)",
    "polychain": "curve = mb.load({place})\nmidpoint = curve.at(0.5)",
    "bridge": "bridge = mb.load({place}{net})",
}


@dataclass(frozen=True)
class Metric:
    """One score of the shared object.

    Args:
        type: the name on the hub, such as "accuracy".
        value: the score.
        name: the name to display; defaults to `type`.
    """

    type: str
    value: float
    name: str = ""


@dataclass(frozen=True)
class Card:
    """Content of a model card that the object itself does not have. Everything is optional.

    Args:
        about: a paragraph of description.
        license: license of the weights, as an identifier of the hub ("apache-2.0", "mit").
        pipeline_tag: the task, such as "image-classification".
        datasets: names of the data sets on the hub.
        data: display name of the data set that `metrics` were computed on.
        split: split of that data set.
        metrics: scores.
        sections: pairs of a heading and Markdown text.

    >>> card = Card(license="mit", data="digits", metrics=(Metric("accuracy", 0.9),))
    >>> print(card.text("fast", "mode", "A mode.").splitlines()[2])
    license: "mit"
    """

    about: str = ""
    license: str = ""
    pipeline_tag: str = ""
    datasets: tuple[str, ...] = ()
    data: str = ""
    split: str = "test"
    metrics: tuple[Metric, ...] = ()
    sections: tuple[tuple[str, str], ...] = ()

    def text(self, place: str, kind: str, described: str, *, needs_net: bool = False) -> str:
        """The text of README.md.

        Args:
            place: argument of `modebridge.load`: a name on the hub, or a folder.
            kind: kind of the object.
            described: description of the object.
            needs_net: whether users must pass the network.
        """
        header = {
            "library_name": "modebridge",
            "license": self.license,
            "pipeline_tag": self.pipeline_tag,
            "tags": list(TAGS),
            "datasets": list(self.datasets),
            "model-index": self._model_index(place),
        }
        yaml = "\n".join(_yaml({key: value for key, value in header.items() if value}))
        net = ", net=net" if needs_net else ""
        code = USAGE[kind].format(place=json.dumps(place), net=net)
        loading = f"```python\nimport modebridge as mb\n\n{code}\n```\n\n`pip install 'modebridge[hub]'` installs it."
        if needs_net:
            loading += " `net` is a module of the architecture that was saved: only its weights are stored here."
        license = (
            f"The weights are under `{self.license}`." if self.license else "No license was given for the weights."
        )
        sections = (*self.sections, ("Load it", loading), ("License", f"{license} modebridge itself is Apache-2.0."))
        body = "\n\n".join(f"## {heading}\n\n{text.strip()}" for heading, text in sections)
        title = place.rsplit("/", 1)[-1]
        about = "\n\n".join(text.strip() for text in (self.about, described) if text)
        return f"---\n{yaml}\n---\n\n# {title}\n\n{about}\n\nThe method: {PAPER}.\n\n{body}\n"

    def _model_index(self, place: str) -> list[dict[str, Any]]:
        metrics = [
            {"type": metric.type, "value": metric.value, "name": metric.name or metric.type}
            for metric in self.metrics
            if math.isfinite(metric.value)
        ]
        if not metrics:
            return []
        data = self.data or "unnamed"
        result = {
            "task": {"type": self.pipeline_tag or "other"},
            "dataset": {"type": _slug(self.datasets[0] if self.datasets else data), "name": data, "split": self.split},
            "metrics": metrics,
        }
        return [{"name": place.rsplit("/", 1)[-1], "results": [result]}]


def _slug(name: str) -> str:
    """A name as an identifier of the hub; identifiers stay unchanged.

    >>> _slug("UCI digits"), _slug("uoft-cs/cifar10")
    ('uci-digits', 'uoft-cs/cifar10')
    """
    return name if "/" in name else re.sub(r"\W+", "-", name.lower()).strip("-")


def _yaml(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Lines of YAML; strings and numbers are written as JSON, which is valid YAML."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield f"{indent}{key}:"
            yield from _yaml(item, f"{indent}  ")
        elif isinstance(item, Sequence) and not isinstance(item, str):
            yield f"{indent}{key}:"
            for entry in item:
                if isinstance(entry, Mapping):
                    first, *rest = _yaml(entry, f"{indent}  ")
                    yield f"{indent}- {first.strip()}"
                    yield from rest
                else:
                    yield f"{indent}- {_scalar(entry)}"
        else:
            yield f"{indent}{key}: {_scalar(item)}"


def _scalar(value: object) -> str:
    # YAML reads a surrogate pair of \\u escapes as two characters, and control characters must be escaped.
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff]", lambda match: f"\\u{ord(match[0]):04x}", text)
