"""The network of a recipe: the paper's, timm's, torchvision's, a user's function; and the sentence for each mistake."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from modebridge import seeds, trees
from modebridge.errors import ModebridgeError
from modebridge.nets import ResNet, spec_of
from modebridge.recipes import Recipe, changed, check_recipe, facts_of, find_recipe, from_toml, read_recipe, to_toml
from modebridge.recipes.network import Network, network_of

SMALL = "timm:resnet10t(channels=(8, 8, 8, 8), stem_width=8)"
IMAGE = (3, 32, 32)

CODE = """
from pathlib import Path
from torch import nn

with Path(__file__).with_suffix(".log").open("a") as log:
    log.write("imported ")

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def told(classes, channels):
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(64, classes))

def late():
    from my_layers import body
    return body(10)

five = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
raises = lambda: 1 / 0
number = lambda: 3
asks = lambda width: nn.Linear(1, width)

def recipe():
    from dataclasses import replace
    from modebridge.recipes import find_recipe
    return replace(find_recipe("digits"), net=told)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "my_layers.py").write_text(
        "from torch import nn\ndef body(k):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, k))\n"
    )
    file = tmp_path / "mine.py"
    file.write_text(CODE)
    return file


def digits_with(net: object) -> Recipe:
    return replace(find_recipe("digits"), net=net)


def same(one: nn.Module, other: nn.Module) -> bool:
    return trees.fingerprint(one.state_dict()) == trees.fingerprint(other.state_dict())


def built(network: Network, seed: int) -> nn.Module:
    return network.build(seeds.generator(seed, "mode", 1))


def test_the_papers_networks_keep_their_bits_and_keys() -> None:
    recipe, spec = find_recipe("digits"), spec_of("digits", "bn", 10)
    network = network_of(recipe, facts_of(recipe))
    assert (network.spec, network.key) == (spec, str(spec))
    assert same(built(network, 3), ResNet(spec, seeds.generator(3, "mode", 1)))
    # Of another size than the set's images: counted as it always was.
    odd = replace(find_recipe("cifar10"), net="tin200")
    assert network_of(odd, facts_of(odd)).spec == spec_of("tin200", "frn", 10)


@pytest.mark.parametrize("reference", [SMALL, "torchvision:squeezenet1_1", "file"])
def test_weights_come_from_the_generator_alone(reference: str, mine: Path) -> None:
    image = (1, 8, 8) if reference == "file" else IMAGE
    network = Network(f"{mine}:told" if reference == "file" else reference, "bn", 7, image)
    assert network.spec is None
    before = torch.get_rng_state()
    first = built(network, 0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert same(first, built(pickle.loads(pickle.dumps(network)), 0))
    assert not same(first, built(network, 1))
    assert first.eval()(torch.rand(2, *image)).shape == (2, 7)
    assert network.key == pickle.loads(pickle.dumps(network)).key
    assert network.key != replace(network, classes=8).key
    assert " at 0x" not in network.key


def test_threads_build_what_one_builds(mine: Path) -> None:
    network = Network(f"{mine}:told", "bn", 10, (1, 8, 8))
    with ThreadPoolExecutor(4) as pool:
        nets = list(pool.map(lambda seed: built(network, seed), range(16)))
    assert all(same(net, built(network, seed)) for seed, net in enumerate(nets))


def test_a_users_file_is_imported_once_and_sees_its_neighbours(mine: Path) -> None:
    recipe, seed = read_recipe(str(mine))
    assert (recipe.net, seed) == (f"{mine.resolve()}:told", None)
    for name in ("plain", "told", "late"):
        check_recipe(digits_with(f"{mine}:{name}"))
    assert mine.with_suffix(".log").read_text() == "imported "
    assert str(mine.parent) not in sys.path


def test_references_survive_text_and_folders(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = changed(find_recipe("digits"), [f"net={SMALL}", "budget=0.05"])
    assert from_toml(to_toml(recipe, 1), "here") == (recipe, 1)
    assert (recipe.net, recipe.budget) == (SMALL, 0.05)
    monkeypatch.chdir(mine.parent)
    assert changed(recipe, ["net=mine.py:plain"]).net == f"{mine.resolve()}:plain"
    # Beside the file that names it, wherever it is read from.
    text = mine.with_name("my.toml")
    text.write_text(to_toml(digits_with("digits"), 0).replace('net = "digits"', 'net = "mine.py:plain"'))
    monkeypatch.chdir("/")
    assert read_recipe(str(text))[0].net == f"{mine.resolve()}:plain"


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("resnet", "known network, timm:MODEL, torchvision:MODEL or FILE.py:FUNCTION, but got 'resnet'"),
        ("timm:resnet10x", "Expected a model of timm, but got 'resnet10x'; did you mean resnet10t"),
        ("torchvision:resnet19", "Expected a model of torchvision, but got 'resnet19'; did you mean resnet18"),
        ("timm:resnet10t(a=print(1))", "keywords with plain values"),
        ("timm:resnet10t(a=1)(b=2)", "keywords with plain values"),
        ("timm:resnet10t(a=" + "(" * 900 + ")" * 50, "keywords with plain values"),
        ("timm:resnet10t(no_such=1)", "to build, but got TypeError: .*no_such.*; check its options"),
        ("timm:vit_tiny_patch16_224(depth=1)", r"to run on the data's images, \(1, 8, 8\) of torch.float32, but got"),
        ("MINE:none", "to be a function in '.*mine.py', but it has no 'none'; (did you mean|choose one of) "),
        ("MINE:five", r"logits of \(batch, 10\), one per class of the data, but got \(2, 5\)"),
        ("MINE:raises", r"raises\(\) in '.*' to run, but got ZeroDivisionError: 'division by zero' in line \d+; "),
        ("MINE:number", "to return a torch.nn.Module, but got int"),
        ("MINE:asks", "to run, but got TypeError: .*missing 1 required positional argument: 'width'"),
        ("/no/such/file.py:net", "Expected '/no/such/file.py' to be a Python file, but there is no such file"),
    ],
)
def test_a_network_that_does_not_fit_is_a_sentence(net: str, message: str, mine: Path) -> None:
    with pytest.raises(ModebridgeError, match=message):
        check_recipe(digits_with(net.replace("MINE", str(mine))))


def test_networks_that_are_not_found_here_or_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for function, name in [(lambda: None, "<lambda>"), (find_recipe, "find_recipe"), (len, "len")]:
        with pytest.raises(ModebridgeError, match=f"net to be a function that another process .* but got .*{name}; "):
            digits_with(function)
    monkeypatch.setitem(sys.modules, "timm", None)  # what Python itself does for a module that cannot be imported
    with pytest.raises(ModebridgeError, match=r"timm for net .* not installed; .*pip install -e '\.\[vision\]'"):
        check_recipe(digits_with("timm:resnet10t"))


def test_sizes_of_bridges_of_any_network(mine: Path) -> None:
    for setting, message in [
        ("budget=nan", "Expected budget to be between 0 and 1"),
        ("budget=1e-9", "budget"),
        ("width_divisor=1e6", "slim to leave at least one channel"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            check_recipe(changed(digits_with(f"{mine}:told"), [setting]))
