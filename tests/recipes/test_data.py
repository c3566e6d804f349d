"""The data of a run: named sets, folders of images, a user's function; and the sentence for each mistake."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modebridge.data import ImageFiles, ImageSet, load_folder
from modebridge.errors import ModebridgeError
from modebridge.recipes import DataConfig, DataFacts, Recipe, RunData, changed, check_recipe, facts_of, find_recipe
from modebridge.recipes.network import network_of

CODE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from modebridge.data import ImageSet

def parts():
    drawn = torch.Generator().manual_seed(0)
    images = torch.rand(60, 3, 8, 8, generator=drawn)
    labels = torch.arange(60) % 4
    return [(images[a:b], labels[a:b]) for a, b in ((0, 40), (40, 50), (50, 60))]

def drawn():
    images = torch.rand(40, 3, 8, 8)
    return (images, torch.arange(40) % 4), (images[:10], torch.arange(10) % 4)

def sets():
    train, valid, test = parts()
    return ImageSet(*train, classes=7), valid, test

def loaders(shuffle=(True, False, False)):
    return [DataLoader(TensorDataset(*part), 8, shuffle=mixed) for part, mixed in zip(parts(), shuffle)]

def persistent():
    train, valid, test = parts()
    return DataLoader(TensorDataset(*train), 8, num_workers=1, persistent_workers=True), valid, test

def dicts():
    return [[({"left": x[:, :, :, :4], "right": x[:, :, :, 4:]}, y)] for x, y in parts()]

pairs = lambda: parts()[::2]
bytes_ = lambda: [((images * 255).byte(), labels) for images, labels in parts()]
mixed = lambda: loaders((True, False, True))
two_loaders = lambda: loaders()[:2]
one = lambda: parts()[0]
nothing = lambda: None
numbers = lambda: (1, 2, 3)
generators = lambda: [iter(loader) for loader in loaders()]
floats = lambda: [(images, labels.float()) for images, labels in parts()]

class Two(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(48, classes))

    def forward(self, left, right):
        return self.head(self.norm(self.left(left) + self.right(right)).relu())
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("mine") / "mine.py"
    file.write_text(CODE)
    return file


def recipe_on(name: str, net: str = "digits", **data: object) -> Recipe:
    return replace(find_recipe("digits"), net=net, data=DataConfig(name, 8, **data))  # type: ignore[arg-type]


def joined(batches: object) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*batches, strict=True)  # type: ignore[call-overload]
    return torch.cat(images), torch.cat(labels)


@pytest.mark.parametrize("settings", [[], ["data.train=0", "data.valid=0"], ["data.test=30"]])
def test_facts_of_a_named_set_are_those_of_its_images(settings: list[str]) -> None:
    recipe = changed(find_recipe("digits"), settings)
    facts = RunData(recipe).facts
    assert facts == facts_of(recipe)
    assert DataFacts.from_dict(json.loads(json.dumps(asdict(facts)))) == facts


def test_images_of_imagenet_have_the_networks_size_or_the_recipes() -> None:
    recipe = find_recipe("in1k")
    for net, size, image in [("in1k", 0, 224), ("tin200", 0, 64), ("timm:resnet18", 0, 224), ("in1k", 96, 96)]:
        assert facts_of(replace(recipe, net=net, data=replace(recipe.data, size=size))).image == (3, image, image)


def test_a_pair_of_tensors_is_cut_and_fed_as_it_is(mine: Path) -> None:
    data = RunData(recipe_on(f"{mine}:pairs"))
    assert data.facts == DataFacts(4, (3, 8, 8), ("0", "1", "2", "3"), {"train": 36, "valid": 4, "test": 10}, cut=True)
    again = RunData(recipe_on(f"{mine}:pairs"))
    assert (again.learned_from, again.scored_on) == (data.learned_from, data.scored_on)
    images, labels = joined(data.test())
    assert torch.equal(data.image(3), images[3])
    assert torch.equal(labels, data.labels("test"))
    train, valid = joined(data.plain_train(1000))[0], joined(data.valid())[0]
    # No image is in two splits.
    every = torch.cat([train, valid, images]).flatten(1)
    assert len(every.unique(dim=0)) == 50
    assert {len(labels) for _, labels in data.train("mode", 0)} == {8, 4}


def test_bytes_are_scaled_and_classes_may_be_told(mine: Path) -> None:
    data = RunData(recipe_on(f"{mine}:bytes_"))
    assert data.image(0).dtype == torch.float32
    assert 0.9 < float(data.image(0).max()) <= 1
    assert RunData(recipe_on(f"{mine}:sets")).facts.classes == 7


def test_a_function_that_draws_gives_the_same_in_every_process(mine: Path) -> None:
    before = torch.get_rng_state()
    first = RunData(recipe_on(f"{mine}:drawn")).learned_from
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert RunData(recipe_on(f"{mine}:drawn")).learned_from == first


def test_loaders_are_fed_as_they_are(mine: Path) -> None:
    recipe = recipe_on(f"{mine}:loaders")
    data, pairs = RunData(recipe), RunData(recipe_on(f"{mine}:parts"))
    assert data.facts == pairs.facts
    assert torch.equal(joined(data.test())[0], joined(pairs.test())[0])
    assert torch.equal(data.labels("valid"), pairs.labels("valid"))
    assert torch.equal(data.image(9), pairs.image(9))
    shuffled = data.train("mode", 0)
    assert not torch.equal(joined(shuffled)[1], joined(shuffled)[1])
    assert len(shuffled) == 5
    assert len(joined(data.plain_train(20))[0]) == 20
    # A shuffled loader is known again by another process, whatever was drawn before.
    torch.rand(1)
    assert RunData(recipe).learned_from == data.learned_from


def test_a_users_loader_shuffles_by_purpose_and_epoch(mine: Path) -> None:
    data = RunData(recipe_on(f"{mine}:loaders"))
    first, again = data.train("mode", 0), RunData(recipe_on(f"{mine}:loaders")).train("mode", 0)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    epochs = [joined(first)[1] for _ in range(3)]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]
    torch.rand(1)
    again.set_epoch(1)
    assert torch.equal(joined(again)[1], epochs[1])
    assert not torch.equal(joined(data.train("mode", 1))[1], epochs[0])


def test_two_networks_do_not_share_the_iterator_of_persistent_workers(mine: Path) -> None:
    data = RunData(recipe_on(f"{mine}:persistent"))
    for (images, _), (others, _) in zip(data.train("mode", 0), data.train("mode", 1), strict=True):
        assert torch.equal(images, others)


def test_inputs_by_name_and_a_users_network(mine: Path) -> None:
    recipe = recipe_on(f"{mine}:dicts", f"{mine}:Two")
    data = RunData(recipe)
    assert data.image(0) is None
    assert data.facts.image is None
    check_recipe(recipe, data)
    network, (inputs, _) = network_of(recipe, data.facts), next(iter(data.test()))
    assert network.build(torch.Generator())(**inputs).shape == (10, 4)


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        ("mixed", {}, "test to yield the same batches every time, .* with shuffle=False"),
        ("two_loaders", {}, "to return three loaders, but got two, and a loader cannot be split"),
        ("one", {}, r"to return \(train, valid, test\) or \(train, test\), .* but got tuple of 2"),
        ("nothing", {}, "but got NoneType; return two or three parts"),
        ("numbers", {}, "train to be a pair of tensors .* or a loader of such pairs, but got int"),
        ("generators", {}, "to be iterable more than once"),
        ("floats", {}, r"labels of train to be integers of shape \(N,\), but got torch.float32"),
        ("loaders", {"train": 10}, "data.train to be 0 for a loader, which is used as a whole, but got 10"),
        ("loaders", {"pad": 1}, "images in one tensor for data.pad and data.flip, but .* returns a loader"),
        ("none", {}, "to be a function in .*mine.py', but it has no 'none'"),
    ],
)
def test_a_function_whose_data_does_not_fit_is_a_sentence(
    mine: Path, function: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ModebridgeError, match=message):
        RunData(recipe_on(f"{mine}:{function}", **settings))


def test_networks_of_the_paper_on_a_users_images(mine: Path) -> None:
    recipe = recipe_on(f"{mine}:pairs")
    check_recipe(recipe)  # as far as that goes without the data
    fitting = replace(recipe, net="cifar10")
    check_recipe(fitting, RunData(fitting))
    for wrong, message in [
        (recipe, r"images of \(1, height, width\) for net digits, but the data has \(3, 8, 8\)"),
        (replace(fitting, data=replace(fitting.data, pad=9)), "at most the image side of 8 pixels, but got 9"),
        (replace(recipe, data=replace(recipe.data, name=f"{mine}:dicts")), "but the data has several inputs"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            check_recipe(wrong, RunData(wrong))


def pictures(root: Path, *classes: str, count: int = 10) -> None:
    """Of mixed shapes, each class of a colour of its own."""
    for k, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for n in range(count):
            pixels = np.full((20 + n, 24, 3), 60 * k, dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{n}.png")


def test_a_folder_of_images_in_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(tmp_path / "train", "cat", "dog", "owl")
    monkeypatch.chdir(tmp_path.parent)
    recipe = recipe_on(f"folder:{tmp_path.name}", size=16)
    assert recipe.data.name == f"folder:{tmp_path.resolve()}"
    assert facts_of(recipe) is None
    data = RunData(recipe)
    assert data.facts == DataFacts(3, (3, 16, 16), ("cat", "dog", "owl"), {"train": 24, "valid": 3, "test": 3}, True)
    assert isinstance(data.splits.train, ImageSet)
    images, labels = joined(data.plain_train(24))
    assert torch.equal((images[:, 0, 0, 0] * 255).round().long(), 60 * labels)
    assert len(labels[:8].unique()) > 1, "still in the order of classes"
    assert RunData(recipe).learned_from == data.learned_from
    # Splits that are there are not cut.
    pictures(tmp_path / "val", "cat", "dog", "owl", count=2)
    pictures(tmp_path / "test", "cat", "dog", "owl", count=3)
    assert RunData(recipe).facts.counts == {"train": 30, "valid": 6, "test": 9}
    # A folder that does not fit in memory is streamed, and known by its names and the size.
    monkeypatch.setattr(sys.modules[load_folder.__module__], "IN_MEMORY", 1000)
    streamed = RunData(recipe)
    assert isinstance(streamed.splits.train, ImageFiles)
    assert streamed.facts == RunData(recipe).facts
    assert streamed.facts.image == (3, 16, 16)
    other = RunData(replace(recipe, data=replace(recipe.data, size=8)))
    assert streamed.learned_from != other.learned_from
    pictures(tmp_path / "valid", "cat", "dog", "cow", count=1)
    with pytest.raises(ModebridgeError, match=r"Expected images below '.*owl'"):
        RunData(recipe)


def test_mistakes_with_names_and_folders(tmp_path: Path) -> None:
    pictures(tmp_path / "few" / "train", "cat", count=2)
    for name, size, message in [
        (f"folder:{tmp_path}", 0, "data.size to be above 0 for folder"),
        (f"folder:{tmp_path}", 8, "train' to contain one folder per class"),
        (f"folder:{tmp_path / 'few'}", 8, "enough training images to cut off 2 held-out splits, but got 2"),
        ("foo", 0, "a known data set, folder:PATH or FILE.py:FUNCTION, but got 'foo'; "),
        ("digits", 32, "data.size to be 0 for digits, but got 32"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            RunData(recipe_on(name, size=size))
