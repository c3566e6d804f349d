"""Recipes as text, the paper's settings, members by name."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from modebridge.errors import ModebridgeError
from modebridge.members import BridgeMember, ControlMember, members_of, parse_member
from modebridge.recipes import RECIPES, changed, check_recipe, find_recipe, from_toml, read_recipe, to_toml
from modebridge.recipes.recipe import differences
from modebridge.recipes.settings import flat


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_survives_its_file(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.name == name
    assert from_toml(to_toml(recipe, 7), "here") == (recipe, 7)


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("mode.epochs=3", "mode.epochs", 3),
        (" mixup = 0.25 ", "mixup", 0.25),
        ("norm=frn", "norm", "frn"),
        ("control=no", "control", False),
        ("sizes=small, medium", "sizes", ("small", "medium")),
        ("data.noise=1e-1", "data.noise", 0.1),
    ],
)
def test_one_setting_changes_and_no_other(setting: str, key: str, value: object) -> None:
    before = find_recipe("digits")
    after = changed(before, [setting])
    assert flat(vars(after))[key] == value
    assert {k for k, v in flat(vars(after)).items() if flat(vars(before))[k] != v} <= {key}
    # Settings that depend on each other come in any order.
    both = [setting, "data.name=folder:x", "data.size=8"]
    assert changed(before, both) == changed(before, both[::-1])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mode.epoch=3", "got 'mode.epoch'; did you mean mode.epochs"),
        ("mode=3", "set one of mode.epochs, mode.weight_decay"),
        ("modes.x=3", "got 'modes.x'; did you mean modes"),
        ("seed=1", "got 'seed'; a run has one seed, for everything: use --seed"),
        ("mode.seed=7", "got 'mode.seed'; a run has one seed, for everything: use --seed"),
        ("modes=three", "modes to be an integer, but got 'three'"),
        ("mixup=much", "mixup to be a number"),
        ("control=maybe", "control to be true or false"),
        ("norm=ln", "norm to be one of frn, bn"),
        ("sizes=large", "sizes to be one of small, medium, but got 'large'"),
        ("modes", "to be key=value"),
        ("modes=1", "modes to be between 2 and 100, but got 1"),
        ("lr=-1", "lr to be a number of at least 0"),
        ("data.batch_size=0", "data.batch_size to be between 1 and"),
        ("width_divisor=1e-9", "Expected width_divisor to be between 0.1 and"),
        ("width_divisor=65", "Expected width_divisor to be at most 64"),
        ("data.pad=1000000", "Expected data.pad to be at most the image side of 8 pixels"),
        ("mode.epochs=10000000", "at most 1,000,000"),
        ("net=cifar10", r"Expected images of \(3, height, width\) for net cifar10, but the data has \(1, "),
        ("name=../../x", "valid as a folder name"),
        ("sizes=,", "at least one size of bridges"),
    ],
)
def test_a_wrong_setting_is_one_clear_sentence(setting: str, message: str) -> None:
    with pytest.raises(ModebridgeError, match=message):
        check_recipe(changed(find_recipe("digits"), [setting]))


def test_python_is_converted_and_checked_alike() -> None:
    digits = find_recipe("digits")
    assert replace(digits, modes="3", methods=["heads", "swa", "heads"]).methods == ("heads", "swa")  # type: ignore[arg-type]
    for wrong, message in [
        ({"modes": 2.5}, "modes to be an integer, but got '2.5'"),
        ({"norm": ["bn"]}, "norm to be a single value"),
        ({"data": replace(digits.data, pad=-1)}, "data.pad to be between 0 and"),
        ({"mode": digits.training("mode")}, "Recipe.*, but got 'mode.lr'; did you mean"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            replace(digits, **wrong)


def test_the_papers_settings() -> None:
    """Facts of the paper and of the authors' code, one by one."""
    recipes = [find_recipe(name) for name in ("cifar10", "cifar100", "tin200", "in1k")]
    for key, values in {
        "mode.epochs": [200, 200, 200, 100],
        "mode.weight_decay": [1e-3, 5e-4, 5e-4, 1e-4],
        "curve.weight_decay": [1e-3, 5e-4, 5e-4, 1e-5],
        "data.batch_size": [128, 128, 128, 256],
        "data.bridge_batch_size": [0, 0, 256, 512],
        "bridge.epochs": [200, 200, 100, 100],
        "mixup": [0.4, 0.4, 0.4, 0],
        "nesterov": ["no", "no", "authors", "no"],
    }.items():
        assert [flat(vars(recipe))[key] for recipe in recipes] == values, key
    for recipe in recipes:
        assert recipe.pin_start == "random"
        assert {recipe.mode.keep, recipe.curve.keep, recipe.bridge.keep} == {"best"}
        assert (recipe.slim("small"), recipe.slim("medium"), recipe.modes) == (2, 1, 8)
        assert len(recipe.curves()) == 11
        assert find_recipe(f"{recipe.name}-bn").norm == "bn"


def test_a_users_own_file(tmp_path: Path) -> None:
    odd = replace(find_recipe("digits"), modes=2, about='two\nlines, a "quote", a \\ and \u00e9')
    assert differences(find_recipe("digits"), odd) == ["modes 4 -> 2"]
    own = tmp_path / "mine.toml"
    for ending, start in (("\n", b""), ("\r\n", b"\xef\xbb\xbf")):  # the second is that of Windows
        own.write_bytes(start + to_toml(odd, 3).replace("\n", ending).encode())
        assert read_recipe(str(own)) == (odd, 3)
    with pytest.raises(ModebridgeError, match="no such file"):
        read_recipe(str(tmp_path / "none.toml"))


def test_tables_are_read_like_keys() -> None:
    text = to_toml(find_recipe("digits"), 0)
    table = "[mode]\n" + "\n".join(line.removeprefix("mode.") for line in text.splitlines() if line.startswith("mode."))
    rest = "\n".join(line for line in text.splitlines() if not line.startswith("mode."))
    assert from_toml(f"{rest}\n{table}", "here") == (find_recipe("digits"), 0)


SIZES = ("small", "medium", "slim8", "slim1.5")


def test_members_of_recipes_and_their_names() -> None:
    names = [member.name for member in members_of(find_recipe("cifar10-short"))]
    assert len(names) == len(set(names)) == 3 + 3 + 2 * (6 + 3 + 1)
    assert {"mode-2", "curve-1-2", "I-2-1-small", "II-0-2-medium", "labels-0-1-small"} <= set(names)
    bridges = [BridgeMember(kind, 3, 12, size, r) for kind, size, r in product(("I", "II"), SIZES, (0.1, 0.5, 1.0))]
    for member in (*bridges, *(ControlMember(3, 12, size) for size in SIZES)):
        assert parse_member(member.name) == member
    with pytest.raises(ModebridgeError, match="such as mode-0"):
        parse_member("mode")


EXTREMES = ("0", "-1", "1e-9", "1e300", "nan", "inf", "-inf", "", "9" * 30, "9" * 5000, "x" * 5000, "\x1b", "\udcff")


def test_every_setting_at_its_extremes_is_refused_in_a_short_sentence_or_can_be_written():
    """Before anything is read or trained; what is accepted survives the run folder's file."""
    recipe = find_recipe("digits")
    sentences = []
    for setting in (f"{key}={value}" for key in flat(vars(recipe)) for value in EXTREMES):
        try:
            found = changed(recipe, [setting])
            check_recipe(found)
        except ModebridgeError as error:
            sentences.append(str(error))
        else:
            assert from_toml(to_toml(found, 0).encode().decode(), "x")[0] == found
    assert len(sentences) > 300
    assert len(flat(vars(recipe))) <= 45
    assert max(map(len, sentences)) < 400


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"# \xff", "to be TOML, but got .*utf-8.* can't decode byte 0xff"),
        (b"a = " + b"[" * 10_000, "to be TOML, but got .*recursion"),
        (b"modes = " + b"9" * 10_000, "to be TOML"),
        (b"seed = 'x'", "Expected seed in .* to be an integer, but got 'x'"),
        (b"modes = {a = 1}", "but got 'modes.a'; did you mean modes"),
        (b"a." * 3000 + b"a = 1", "Expected a setting of a recipe in '.*', but got 'a.a'"),
        (b"modes = ", "to be TOML"),
        (b'name = "x"\nepochs = 3\n', "but got 'epochs'"),
        (b'name = "x"\n', "lacks"),
        (b"def recipe(:\n", "to run, but got SyntaxError"),
        (b"def recipe():\n    return 3\n", "returns a Recipe, but got int"),
        (b"raise SystemExit(0)", "got SystemExit"),
        (b"import timmm\n# recipe(", "got ModuleNotFoundError: 'No module named 'timmm'' in line 1; install timmm."),
        (b"import email.timmm\n# recipe(", "'No module named 'email.timmm'' in line 1; fix it, or"),
    ],
)
def test_a_wrong_file_is_a_sentence(tmp_path, raw, message):
    file = tmp_path / ("recipe.py" if b"recipe(" in raw or b"raise" in raw else "recipe.toml")
    file.write_bytes(raw)
    with pytest.raises(ModebridgeError, match=message):
        read_recipe(str(file))
