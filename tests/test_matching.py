"""CutMix: pixel by pixel as its authors' loop, areas as shares of labels, and nothing else changes by it."""

import math

import numpy as np
import pytest
import torch

import modebridge as mb
from modebridge import matching
from modebridge.curves import start_curve
from modebridge.errors import ModebridgeError
from modebridge.matching import draw_mixing, kl_divergence, label_shares, mixed, mixed_labels, pixel_shares
from modebridge.objectives import ModeObjective
from modebridge.types import IGNORED
from tests.scenarios import EXACT, Vectors, blobs, quick


def of_boxes(boxes, share=1.0):
    """A draw of CutMix: area of the box, and its centre in units of the sides."""
    box = torch.tensor([[math.sqrt(area), top, left] for area, top, left in boxes])
    return {"share": torch.full((len(boxes),), share), "box": box, "partner": torch.arange(len(boxes)).roll(1)}


def cut_by_loops(images, partners, area, top, left):
    """Yun et al.'s rand_bbox, and then one pixel after another; gives the share that the image keeps."""
    mixed = images.copy()
    height, width = images.shape[1:]
    tall, wide = (int(np.float32(math.sqrt(area)) * np.float32(side)) for side in (height, width))
    y, x = int(top * height), int(left * width)
    rows = range(max(y - tall // 2, 0), min(y + tall // 2, height))
    columns = range(max(x - wide // 2, 0), min(x + wide // 2, width))
    for row in rows:
        for column in columns:
            mixed[:, row, column] = partners[:, row, column]
    return mixed, 1 - len(rows) * len(columns) / (height * width)


# In the middle, over each border, whole images, slivers and nothing.
BOXES = [
    *((0.25, 0.5, 0.5), (0.5, 0.0, 0.0), (0.5, 0.99, 0.99), (0.3, 0.01, 0.9), (0.7, 0.4, 0.6)),
    *((1.0, 0.5, 0.5), (1.0, 0.0, 0.9), (0.0, 0.3, 0.3), (0.02, 0.5, 0.5)),
]


@pytest.mark.parametrize("size", [(8, 8), (7, 12), (1, 5), (32, 9)])
def test_pixel_by_pixel(size):
    images = torch.rand(len(BOXES), 3, *size, dtype=EXACT)
    draw, labels = of_boxes(BOXES), torch.arange(len(BOXES)) % 4
    cut, targets = mixed(images, draw), mixed_labels(labels, 4, EXACT, draw, images)
    for k, box in enumerate(BOXES):
        j = int(draw["partner"][k])
        wanted, share = cut_by_loops(images[k].numpy(), images[j].numpy(), *box)
        assert np.array_equal(cut[k].numpy(), wanted), box
        hard = torch.eye(4, dtype=EXACT)
        by_hand = share * hard[labels[k]] + (1 - share) * hard[labels[j]]
        torch.testing.assert_close(targets[k], by_hand, rtol=0, atol=1e-14)
    shares = label_shares(draw, images, EXACT)
    torch.testing.assert_close(pixel_shares(draw, images).double().mean(dim=(1, 2, 3)), shares, rtol=0, atol=1e-14)
    if size == (8, 8):
        # Sides of 4 pixels; a whole image around its middle and off it; nothing, and less than two pixels.
        assert shares[[0, 5, 6, 7, 8]].tolist() == [1 - 16 / 64, 0, 1 - 4 * 5 / 64, 1, 1]


def drawn(size, mixup, cutmix, seed):
    return draw_mixing(size, mixup, cutmix, torch.Generator().manual_seed(seed))


def test_mixup_alone_draws_and_mixes_what_it_did():
    """By the code that was here before CutMix."""
    images = blobs(9).images
    generator = torch.Generator().manual_seed(5)
    seed = int(torch.randint(2**62, (), generator=generator))
    share = torch.from_numpy(np.random.default_rng(seed).beta(0.4, 0.4, 9)).float()
    partner = torch.randperm(9, generator=generator)
    draw = drawn(9, 0.4, 0, 5)
    assert draw.keys() == {"share", "partner"}
    assert torch.equal(draw["share"], share)
    assert torch.equal(draw["partner"], partner)
    shares = share.view(-1, 1, 1, 1)
    assert torch.equal(mixed(images, draw), shares * images + (1 - shares) * images[partner])
    assert draw_mixing(9, 0, 0, generator) == {}


def test_draws_are_either_of_the_two():
    draws = [drawn(50, 0.4, 1.5, seed) for seed in range(200)]
    boxed = [draw for draw in draws if bool(draw["box"][:, 0].any())]
    assert 70 < len(boxed) < 130
    assert all(bool((draw["share"] == 1).all()) for draw in boxed)
    areas = torch.cat([draw["box"][:, 0] for draw in boxed]) ** 2
    assert float(areas.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(areas.var()) == pytest.approx(1 / (4 * (2 * 1.5 + 1)), abs=0.005)
    centres = torch.cat([draw["box"][:, 1:] for draw in draws])
    assert bool(((centres >= 0) & (centres < 1)).all())
    assert torch.histc(centres[:, 0], 10).min() > 850  # 1,000 each
    shares = torch.cat([draw["share"] for draw in draws if not draw["box"][:, 0].any()])
    assert float(shares.var()) == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.005)
    # A batch of mixup is mixup, whatever the centres of its boxes of no size.
    images = torch.rand(50, 1, 8, 8)
    plain = next(draw for draw in draws if not draw["box"][:, 0].any())
    assert torch.equal(pixel_shares(plain, images), plain["share"].view(-1, 1, 1, 1).expand(-1, 1, 8, 8))
    # CutMix alone has no batches of mixup.
    assert all(bool(drawn(5, 0, 1.0, seed)["box"][:, 0].all()) for seed in range(20))
    # Half of them are left as they are for networks that learn labels.
    halves = [draw_mixing(5, 0, 1.0, torch.Generator().manual_seed(seed), half=True) for seed in range(200)]
    cut = [bool(draw["box"][:, 0].any()) for draw in halves]
    assert 70 < sum(cut) < 130
    assert all(
        torch.equal(mixed(images[:5], draw), images[:5]) for draw, one in zip(halves, cut, strict=True) if not one
    )


def test_halves_and_channels_last():
    """Boxes are computed in float32 whatever the images are: shares of pixels of cut images are 0 and 1 exactly."""
    images = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last)
    draw = of_boxes(BOXES[:4])
    cut = mixed(images, draw)
    assert cut.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(mixed(images.bfloat16(), draw), cut.bfloat16())


def test_what_cannot_be_cut_is_said():
    vectors = Vectors()
    data = [(torch.rand(6, 4), torch.arange(6) % 3)]
    teacher = mb.Mode.from_module(vectors)
    line = start_curve(vectors, teacher, mb.Mode.from_module(Vectors()))
    for call in (
        lambda: mb.distill(vectors, [teacher], data, config=quick(1, cutmix=1.0)),
        lambda: mb.fit_bridge(vectors, line, data, config=quick(1, cutmix=1.0)),
    ):
        with pytest.raises(ModebridgeError, match=r"height, width\) of one size, or .*, but got .*4.*; set cutmix=0"):
            call()
    two = {"a": torch.rand(2, 1, 4, 4), "b": torch.rand(2, 1, 5, 5)}
    with pytest.raises(ModebridgeError, match="of one size"):
        pixel_shares(of_boxes(BOXES[:2]), two)


def test_spans_of_tokens_are_exchanged():
    """The same span of ids and masks comes from the partner, and labels follow its length."""
    ids, mask = torch.arange(8 * 20).view(8, 20), torch.rand(8, 20) < 0.8
    draw = drawn(8, 0.0, 1.0, 3)
    new = mixed({"ids": ids, "mask": mask}, draw)
    own = new["ids"] == ids
    assert 0 < own.double().mean() < 1
    assert torch.equal(new["ids"], torch.where(own, ids, ids[draw["partner"]]))
    assert torch.equal(new["mask"], torch.where(own, mask, mask[draw["partner"]]))
    assert (own.int().diff(dim=1).abs().sum(dim=1) <= 2).all(), "one span each"
    shares = label_shares(draw, ids, EXACT)
    kept = pixel_shares(draw, ids)
    torch.testing.assert_close(kept.double().mean(dim=1), shares)
    labels = mixed_labels(torch.arange(8) % 3, 3, EXACT, draw, ids)
    torch.testing.assert_close(labels.sum(dim=1), torch.ones(8, dtype=EXACT))
    many = label_shares(drawn(4000, 0.0, 1.0, 0), torch.zeros(4000, 500, dtype=torch.long), EXACT)
    assert 0.5 < many.mean() < 0.7, "uniform before spans are clipped at the ends"


def test_classes_that_the_target_excludes_contribute_nothing():
    """As a network with masked classes has them: zero probability, and minus infinity as the logit."""
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    loss = kl_divergence(torch.tensor([[0.25, 0.75, 0.0]]), logits)
    assert loss.item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    loss.sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.25, -0.25, 0.0]]))


def test_places_without_a_label_do_not_shrink_the_loss_of_mixed_labels():
    """Each loss is that of the labeled places alone; a draw that mixes nothing makes soft labels of hard ones."""
    images, labels = torch.rand(4, 1, 6, 6), torch.arange(4 * 36).view(4, 6, 6) % 3
    labels[:, :, 3:] = IGNORED
    net, losses = torch.nn.Conv2d(1, 3, 3, padding=1), []
    nothing = {"share": torch.ones(4), "box": torch.zeros(4, 3), "partner": torch.arange(4)}
    for draw in ({}, nothing):
        objective = ModeObjective(net, mb.Mode.from_module(net), mixing=(0.0, 1.0, 3))
        prepared = objective.prepare((images, labels), draw)["mode"]
        losses.append(objective.program("mode")(objective.start()["mode"], prepared))
    logits, target = net(images).movedim(1, -1), prepared["labels"].movedim(1, -1)
    heads, both = torch.stack([target, logits.softmax(-1)], dim=1), torch.stack([logits, logits], dim=1)
    losses.append(matching.DistillationLoss(hard=1.0)(None, target, logits))
    losses += [matching.bridge_loss(target, logits), matching.bridge_loss(heads, both, 2)]
    for loss in losses[1:]:
        torch.testing.assert_close(loss, losses[0])
