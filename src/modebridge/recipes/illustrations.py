"""What the page needs and only the data set and the weights can give: curve profiles and sample images."""

from __future__ import annotations

from functools import partial

import torch

from modebridge import trees
from modebridge.evaluate import Answers, curve_profile
from modebridge.nets import skeleton
from modebridge.recipes.folder import key_of
from modebridge.recipes.members import mode
from modebridge.recipes.workshop import Workshop

__all__ = ["illustrate"]

SAMPLES = 6


def illustrate(workshop: Workshop, answers: Answers, positions: int = 11) -> None:
    """Make them where they are missing.

    Args:
        workshop: makes the curves.
        answers: what the members said, to choose the images by.
        positions: how many networks of each curve are scored.
    """
    _profiles(workshop, positions)
    _samples(workshop, answers)


def _profiles(workshop: Workshop, positions: int) -> None:
    device = workshop.engine.device
    curves = workshop.curves(workshop.recipe.curves())

    def make(i: int, j: int) -> None:
        curve = curves[i, j]
        identity = key_of(curve.start.id, curve.end.id, trees.fingerprint(*curve.pins))
        key = key_of("profile", identity, positions, workshop.feeds.scored_on, workshop.feeds.learned_from)
        if workshop.maker.find("profiles", f"{i}-{j}", key) is not None:
            return
        net = skeleton(workshop.net).to(device)
        train = workshop.feeds.statistics()
        found = curve_profile(net, curve.to(device), workshop.feeds.valid(), positions, train)
        table = torch.tensor([[p.r, p.nll, p.accuracy] for p in found], dtype=torch.float64)
        workshop.maker.keep("profiles", f"{i}-{j}", key, {"points": table}, {"columns": ["r", "nll", "accuracy"]})

    workshop.maker.each([partial(make, i, j) for i, j in curves])


def _samples(workshop: Workshop, answers: Answers) -> None:
    """The test images on which the ends of the first curve disagree most."""
    i, j = workshop.recipe.curves()[0]
    a, b = (answers.probabilities([mode(k).name]) for k in (i, j))
    numbers = (a - b).abs().sum(dim=1).topk(min(SAMPLES, len(a))).indices.sort().values
    key = key_of("samples", numbers.tolist(), workshop.feeds.scored_on)
    if workshop.maker.find("samples", f"{i}-{j}", key) is None:
        images = [workshop.feeds.image(int(number)) for number in numbers]
        shown = [image for image in images if image is not None]
        if shown:
            tensors = {"images": torch.stack(shown), "numbers": numbers}
            workshop.maker.keep("samples", f"{i}-{j}", key, tensors, {})
