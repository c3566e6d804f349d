"""Export the file of results/cifar10-frn: mode 0 and the two small bridges that are best on validation images.

    python benchmarks/holds/bundle.py results/cifar10-frn DIR

Two bridges, because the file may have 10 MB, and a network has 7.4 MB and a small bridge 1.1 MB. The choice uses the
saved validation logits. The test images in DIR only score the result, because its bridges are rounded to half
precision and those of the logits are not. tests/test_results.py scores the file itself.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from members import read_all
from modebridge.bridges import Bridge, body_like, last_blocks_tap
from modebridge.data import ImageSet, Loader, load_mode, load_set
from modebridge.data.datasets import CLASS_NAMES
from modebridge.deploy import Exported, export, fit_temperatures
from modebridge.ensembles import BridgedEnsemble, scale
from modebridge.evaluate import Answers
from modebridge.evaluate.scores import accuracy, brier, ece, nll
from modebridge.nets import ResNet, spec_of
from modebridge.runs import RunFolder

__all__ = ["choose", "measure"]

FILE = "bundle.onnx"
ABOUT = (
    "CIFAR-10, ResNet-32x2 with filter response norm, one mode and two small bridges, one imitating another mode, one "
    "the midpoint of a curve; results/cifar10-frn of modebridge"
)


def choose(answers: Answers) -> tuple[str, ...]:
    """Mode 0 and the pair of small bridges with the lowest calibrated validation NLL together, the better one first."""
    on_one = [name for name, cost in answers.costs.items() if cost.reads == ("mode-0",) and "small" in name]
    by_nll = {
        members: _valid_nll(answers, members) for count in (1, 2) for members in itertools.combinations(on_one, count)
    }
    first, second = min((members for members in by_nll if len(members) == 2), key=by_nll.__getitem__)
    return ("mode-0", first, second) if by_nll[first,] <= by_nll[second,] else ("mode-0", second, first)


def _valid_nll(answers: Answers, bridges: tuple[str, ...]) -> float:
    members = ("mode-0", *bridges)
    probabilities = torch.stack([answers.valid[name].softmax(dim=1) for name in members]).mean(dim=0)
    return nll(scale(probabilities, answers.temperature(members)), answers.valid_labels)


def write(folder: Path, test: ImageSet) -> Exported:
    """Choose members, score them with the saved weights, and write the file."""
    answers = read_all(RunFolder(folder, writes=False))
    members = choose(answers)
    spec = spec_of("cifar10")
    net = ResNet(spec)
    mode = load_mode(net, folder / "weights" / "mode-0.safetensors")
    bridges = []
    for name in members[1:]:
        bridge = Bridge(body_like(spec, "I", 2), [mode], last_blocks_tap(spec), 0.5 if name[0] == "I" else None, name)
        bridge.load_state_dict(load_file(folder / "bridges" / f"{name}.safetensors"))
        bridges.append(bridge.eval())
    tables = [answers.valid[name].softmax(dim=1) for name in members]
    temperatures = fit_temperatures(tables, answers.valid_labels, 1)
    ensemble = BridgedEnsemble(net, [mode], bridges)
    ensemble.temperature.fill_(temperatures.by_bridges[-1])
    ensemble._fitted.fill_(True)
    flops, params = answers.cost(members)
    with torch.no_grad():
        scores = measure(ensemble, test)
    return export(
        ensemble,
        folder / FILE,
        torch.rand(4, *spec.image, generator=torch.Generator().manual_seed(0)),
        classes=CLASS_NAMES["cifar10"],
        names=members,
        scores={"split": "test", "images": len(test), **scores, "relative_flops": flops, "relative_params": params},
        about=ABOUT,
        temperatures=temperatures,
    )


def measure(predict: Callable[[Tensor], Tensor], images: ImageSet) -> dict[str, float]:
    """Scores of calibrated probabilities on images."""
    probabilities, labels = torch.cat([predict(batch) for batch, _ in Loader(images, 250)]), images.labels
    scores: dict[str, Callable[[Tensor, Tensor], float]] = {
        "accuracy": accuracy,
        "nll": nll,
        "ece": ece,
        "brier": brier,
    }
    return {name: score(probabilities, labels) for name, score in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path, help="folder of CIFAR-10")
    given = parser.parse_args()
    test = load_set("cifar10", given.data).test
    assert isinstance(test, ImageSet)
    exported = write(given.folder, test)
    print(f"{' + '.join(exported.meta['members'])}: {exported.bytes / 1e6:.2f} MB, {exported.meta['scores']}")


if __name__ == "__main__":
    main()
