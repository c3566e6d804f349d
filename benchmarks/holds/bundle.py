"""Export the file of results/cifar10-frn: mode 0 and the bridge with heads that is best on validation images.

    python benchmarks/holds/bundle.py results/cifar10-frn DIR

The file may have 10 MB: the network has 7.4 MB, a bridge 1.1 MB. The choice uses the saved validation logits. The test
images in DIR only score the result, because its bridge is rounded to half precision and that of the logits is not.
tests/test_results_heads.py scores the file itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from heads_frn import HEADS, planned
from safetensors.torch import load_file
from torch import Tensor

from members import read_all
from modebridge.data import ImageSet, Loader, load_modes, load_set
from modebridge.data.datasets import CLASS_NAMES
from modebridge.deploy import Exported, export, fit_temperatures
from modebridge.ensembles import BridgedEnsemble
from modebridge.nets import ResNet, spec_of
from modebridge.runs import RunFolder
from modebridge.scoring import LogitTable
from modebridge.scoring.scores import accuracy, brier, ece, nll

__all__ = ["choose", "measure"]

FILE = "bundle.onnx"
ABOUT = (
    "CIFAR-10, ResNet-32x2 with filter response norm, one mode and a small bridge with three heads, each imitating "
    "another mode; results/cifar10-frn of modebridge"
)


def choose(answers: LogitTable) -> tuple[str, str]:
    """Mode 0 and the bridge with heads that has the lowest calibrated validation NLL beside it."""
    rows = [("mode-0", name) for name in HEADS]
    return min(rows, key=lambda members: nll(answers.calibrated(members, "valid"), answers.valid_labels))


def write(folder: Path, test: ImageSet) -> Exported:
    """Choose members, score them with the saved weights, and write the file."""
    answers = read_all(RunFolder(folder, writes=False))
    members = choose(answers)
    spec = spec_of("cifar10")
    net = ResNet(spec)
    modes = load_modes(net, folder / "weights")
    bridge = planned(members[1], net, modes)
    bridge.load_state_dict(load_file(folder / "bridges" / f"{members[1]}.safetensors"))
    tables = [head.softmax(dim=1) for name in members for head in answers.heads(name, "valid")]
    temperatures = fit_temperatures(tables, answers.valid_labels, 1, heads=[bridge.heads])
    ensemble = BridgedEnsemble(net, modes[:1], [bridge.eval()])
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
