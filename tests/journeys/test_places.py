"""Networks that classify every place: pixels as rows of a classifier, and networks of others from modes to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.segmentation.deeplabv3 import DeepLabHead, DeepLabV3

import modebridge as mb
from modebridge.bridges import VectorBody, mode_target, plan_bridge
from modebridge.deploy.serve import ServeConfig, application
from modebridge.matching import draw_mixing, mixed, mixed_labels
from modebridge.scoring.dense import PlaceSums
from modebridge.training import fit_many
from modebridge.types import IGNORED
from tests.scenarios import EXACT, quick

CLASSES = 3


class PixelNet(nn.Module):
    """A perceptron on every pixel, so that an image is a batch of pixels; or on rows."""

    def __init__(self, seed: int, dense: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.hidden, self.head, self.dense = nn.Linear(2, 5), nn.Linear(5, CLASSES), dense
        self.features = nn.Identity()
        self.to(EXACT)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(x.movedim(1, -1) if self.dense else x).tanh()
        x = self.features(x.movedim(-1, 1) if self.dense else x)
        x = self.head(x.movedim(1, -1) if self.dense else x)
        return x.movedim(-1, 1) if self.dense else x


def images(count: int = 6, side: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 2, side, side, generator=generator, dtype=EXACT)
    return x, (x.sum(dim=1) * 1.5).long().clamp(max=CLASSES - 1)


def rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.movedim(1, -1).flatten(0, -2), y.flatten()


def test_an_image_is_a_batch_of_pixels() -> None:
    """Training, bridges, students, temperature and scores are those of a classifier whose rows are the pixels."""
    x, y = images()
    data = {True: [(x[:3], y[:3]), (x[3:], y[3:])], False: [rows(x[:3], y[:3]), rows(x[3:], y[3:])]}
    config, found = quick(4, mixup=0.0, cutmix=0.0), {}
    for dense, batches in data.items():
        nets = [PixelNet(seed, dense) for seed in range(3)]
        modes = mb.fit_modes(nets, batches, config)
        curve = mb.fit_curve(nets[0], modes[0], modes[1], batches, config)
        example = batches[0][0]
        body = VectorBody(5, 4, 2 * CLASSES, torch.Generator().manual_seed(0), layout="map" if dense else "vector")
        body.dense = dense
        targets = [mode_target(modes[1]), mode_target(modes[2])]
        heads = mb.bridges.Heads(body, 2).to(EXACT)
        plan = plan_bridge(nets[0], modes[:1], example, target=targets, tap="features", body=heads)
        bridge = fit_many(nets[0], {"bridge": plan}, batches, config)["bridge"]
        student = mb.distill(nets[0], modes, batches, config, start=modes[2])
        ensemble = mb.Ensemble(nets[0], [modes[0], curve.at(0.5), student], [bridge]).calibrate(batches)
        scores = mb.evaluate(ensemble, batches)
        table = ensemble.members(x if dense else rows(x, y)[0])
        found[dense] = table.movedim(2, -1).flatten(1, -2) if dense else table, ensemble.temperature, scores
    torch.testing.assert_close(found[True][0], found[False][0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found[True][1], found[False][1])
    for name in ("accuracy", "nll", "ece", "brier", "raw_nll", "raw_ece", "raw_brier"):
        assert getattr(found[True][2], name) == pytest.approx(getattr(found[False][2], name), abs=1e-9), name


def test_places_without_a_label_do_not_count() -> None:
    x, y = images()
    hidden = torch.rand(y.shape, generator=torch.Generator().manual_seed(1)) < 0.4
    nets, modes = [PixelNet(seed, dense=True) for seed in range(2)], {}
    for value in (255, -1, IGNORED):
        batches = [(x, y.masked_fill(hidden, value))]
        modes[value] = mb.fit_modes(nets, batches, quick(3))
    assert len({mode[0].id for mode in modes.values()}) == 1
    table = mb.Ensemble(nets[0], modes[255]).table(x).mean(dim=0)
    few = mb.scoring.Scored.of(table[~hidden], table[~hidden], y[~hidden], mb.scoring.Cost(0, 0, 1, 1))
    sums = PlaceSums()
    sums.add(table, table, y.masked_fill(hidden, IGNORED))
    scores = sums.scored(mb.scoring.Cost(0, 0, 1, 1), None)
    assert (scores.nll, scores.ece, scores.accuracy) == pytest.approx((few.nll, few.ece, few.accuracy))
    assert scores.n == 6
    nothing = PlaceSums()
    nothing.add(table[:1], table[:1], torch.full_like(y[:1], IGNORED))
    assert nothing.table.shape[0] == 0


def test_overlaps_are_those_of_torchmetrics() -> None:
    from torchmetrics.classification import MulticlassF1Score, MulticlassJaccardIndex

    generator = torch.Generator().manual_seed(0)
    table = torch.rand(9, 5, 4, 4, generator=generator, dtype=EXACT).softmax(dim=-1)
    labels = torch.randint(4, (9, 5, 4), generator=generator)
    labels[:, 0] = IGNORED
    sums = PlaceSums()
    for part in (slice(0, 2), slice(2, 9)):
        sums.add(table[part], table[part], labels[part])
    scores = sums.scored(mb.scoring.Cost(0, 0, 1, 1), None, intervals=True)
    guess = table.argmax(dim=-1)
    theirs = [kind(4, average=None, ignore_index=IGNORED) for kind in (MulticlassJaccardIndex, MulticlassF1Score)]
    for ours, metric in zip((scores.iou, scores.dice), theirs, strict=True):
        assert ours == pytest.approx(metric(guess, labels).tolist(), abs=1e-6)
    assert scores.mean_iou == pytest.approx(float(np.mean(scores.iou)))
    low, high = scores.intervals["nll"]
    assert low < scores.nll < high
    # A class that neither occurs nor is predicted has no score, and no place in the mean.
    sums = PlaceSums()
    sums.add(torch.eye(3)[None, :2].double(), torch.eye(3)[None, :2].double(), torch.tensor([[0, 1]]))
    assert sums.scored(mb.scoring.Cost(0, 0, 1, 1), None).mean_iou == 1.0
    assert sums.scored(mb.scoring.Cost(0, 0, 1, 1), None).to_dict()["iou"] == [1.0, 1.0, None]


def test_labels_are_mixed_pixel_by_pixel() -> None:
    x, y = images(count=8, side=6)
    y[0, 0, 0] = IGNORED
    for options in ((0.4, 0.0), (0.0, 1.0)):
        draw = draw_mixing(8, *options, torch.Generator().manual_seed(3))
        # Labels as images of their own are mixed alike.
        whole = nn.functional.one_hot(y.clamp_min(0), CLASSES).to(EXACT) * (y != IGNORED)[..., None]
        wanted = mixed(whole.movedim(-1, 1), draw)
        assert isinstance(wanted, Tensor)
        torch.testing.assert_close(mixed_labels(y, CLASSES, EXACT, draw, x), wanted.movedim(1, -1))


class UNet(nn.Module):
    """Two levels, in two or three dimensions; deep supervision gives a list."""

    def __init__(self, axes: int, deep: bool = False) -> None:
        super().__init__()
        conv, norm = ((nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))[axes - 2]
        self.fine = nn.Sequential(conv(1, 8, 3, padding=1), norm(8), nn.ReLU())
        self.coarse = nn.Sequential(conv(8, 16, 3, 2, padding=1), norm(16), nn.ReLU())
        self.up = nn.Sequential(conv(24, 8, 3, padding=1), norm(8), nn.ReLU())
        self.head, self.other, self.deep = conv(8, CLASSES, 1), conv(16, CLASSES, 1), deep

    def forward(self, x: Tensor) -> Any:
        fine = self.fine(x)
        coarse = self.coarse(fine)
        whole = torch.cat([fine, nn.functional.interpolate(coarse, size=fine.shape[2:])], dim=1)
        logits = self.head(self.up(whole))
        return [logits, self.other(coarse)] if self.deep else logits


def deeplab() -> nn.Module:
    """Torchvision's, on the first layers of a small backbone."""
    backbone = IntermediateLayerGetter(torchvision.models.mobilenet_v3_small().features, {"3": "out"})
    return DeepLabV3(backbone, DeepLabHead(24, CLASSES))


def smp_unet() -> nn.Module:
    smp = pytest.importorskip("segmentation_models_pytorch")
    net: nn.Module = smp.Unet("resnet18", 3, encoder_weights=None, classes=CLASSES, decoder_channels=(16, 8, 8))
    return net


def segformer() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_sizes": [8, 16, 16, 16], "depths": [1] * 4, "num_attention_heads": [1] * 4}
    config = transformers.SegformerConfig(**sizes, decoder_hidden_size=16, num_labels=CLASSES)
    net: nn.Module = transformers.SegformerForSemanticSegmentation(config)
    return net


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: UNet(2, deep=True), (1, 8, 12)),
        (lambda: UNet(3), (1, 4, 6, 8)),
        pytest.param(deeplab, (3, 33, 33), id="deeplab"),
        pytest.param(smp_unet, (3, 32, 32), id="smp"),
        pytest.param(segformer, (3, 32, 32), id="segformer"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_from_modes_to_a_file(make: Callable[[], nn.Module], shape: tuple[int, ...], tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(6, *shape, generator=generator), torch.randint(CLASSES, (6, *shape[1:]), generator=generator)
    y[:, :2] = 255
    hf = make is segformer
    given: Any = {"pixel_values": x} if hf else x
    data: list[Any] = [{**given, "labels": y}] if hf else [(x, y)]
    nets = []
    for seed in range(2):
        torch.manual_seed(seed)
        nets.append(make())
    modes = mb.fit_modes(nets, data, quick(1))
    bridge = mb.fit_bridge(nets[0], modes, data, budget=0.3, config=quick(1))
    assert 0 < bridge.share <= 0.3  # type: ignore[operator]
    fast = mb.Ensemble(nets[0], modes[:1], [bridge]).calibrate(data)
    assert fast(given).shape == (6, CLASSES, *shape[1:])
    assert fast.predict(given).shape == (6, *shape[1:])
    scores = mb.evaluate(fast, data)
    assert scores.cost.relative_flops == pytest.approx(1 + bridge.share)
    assert len(scores.iou) == CLASSES
    fast.save(tmp_path / "fast")
    assert torch.equal(mb.load(tmp_path / "fast", net=nets[0])(given), fast(given))
    file = mb.export(fast, tmp_path / "fast.onnx", example=given, outputs=("members", "entropy"))
    assert file.parity < 1e-5
    assert file(given).members.shape == (6, 2, CLASSES, *shape[1:])  # type: ignore[union-attr]
    assert mb.evaluate(file, data).nll == pytest.approx(scores.nll, abs=1e-5)


def test_cascades_choose_by_image(tmp_path: Path) -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, CLASSES, 1)) for _ in range(2)]
    x, y = torch.rand(8, 1, 8, 8), torch.randint(CLASSES, (8, 8, 8))
    both = mb.Ensemble(nets[0], [mb.Mode.from_module(net) for net in nets]).calibrate([(x, y)])
    first = mb.Ensemble(nets[0], [mb.Mode.from_module(nets[0])]).calibrate([(x, y)])
    sure = first(x).amax(dim=1).mean(dim=(1, 2))
    threshold = float(sure.sort().values[3:5].mean())
    file = mb.export(both, tmp_path / "cascade.onnx", example=x, valid=[(x, y)], threshold=threshold)
    answer = file(x)
    assert answer.used.tolist() == [2 if one < threshold else 1 for one in sure]
    wanted = torch.where((sure < threshold).view(-1, 1, 1, 1), both(x), first(x))
    np.testing.assert_allclose(answer.probabilities, wanted.numpy(), atol=1e-5)
    with pytest.raises(mb.ModebridgeError, match="sets or answers, since these hold for places"):
        mb.export(both.conformal([(x, y)]), tmp_path / "sets.onnx", example=x, valid=[(x, y)], threshold=threshold)
    sets = mb.export(both, tmp_path / "sets.onnx", example=x)
    assert sets(x).sets.shape == (8, CLASSES, 8, 8)  # type: ignore[union-attr]
    assert torch.equal(torch.from_numpy(sets(x).sets), both.predict_sets(x))  # type: ignore[arg-type]
    for ask in (lambda: file.records(x), lambda: application(file, ServeConfig())):
        with pytest.raises(mb.ModebridgeError, match="classifies each of 8 x 8 places; run it in Python"):
            ask()


def test_what_does_not_fit_is_said() -> None:
    net, (x, y) = UNet(2), images()
    x = x[:, :1].float()
    for labels, words in (
        (y[:, :2], r"of shape \(B, 4, 4\), one for each place that the network classifies, but got \(6, 2, 4\)"),
        (y[:, 0, 0], r"of shape \(B, 4, 4\), one for each place"),
        (y + 1, r"to be in \[0, 3\), but got 1 to 3"),
    ):
        for ask in (
            lambda given: mb.fit_modes([net], given, quick(1)),
            lambda given: mb.Ensemble(net, [mb.Mode.from_module(net)]).calibrate(given),
            lambda given: mb.evaluate(net, given),
        ):
            with pytest.raises(mb.ModebridgeError, match=words):
                ask([(x, labels)])
    with pytest.raises(mb.ModebridgeError, match=r"labels of train to be of shape \(B\), one for each image"):
        mb.fit_modes([nn.Sequential(nn.Flatten(), nn.Linear(16, 3))], [(x, y)], quick(1))
    plain = nn.Conv2d(1, 3, 1)  # takes an image without a batch axis
    with pytest.raises(mb.ModebridgeError, match=r"\(batch, classes\), but got \(3, 4, 4\) for \(1, 4, 4\)"):
        mb.Ensemble(plain, [mb.Mode.from_module(plain)])(x[0])
    with pytest.raises(mb.ModebridgeError, match="without the places of the logits"):
        mb.inspect(nn.Sequential(nn.Flatten(), nn.Linear(16, 48), nn.ReLU(), nn.Unflatten(1, (3, 4, 4))), x).tap("1")
