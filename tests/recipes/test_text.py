"""Recipes as text, the paper's settings, members by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modebridge.errors import ModebridgeError
from modebridge.members import BridgeMember, ControlMember, members_of, parse_member
from modebridge.recipes import RECIPES, changed, check_recipe, find_recipe, from_toml, read_recipe, to_toml
from modebridge.recipes.text import differences, keys_of


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * name.startswith(("in1k", "tin200"))) for name in sorted(RECIPES)],
)
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
        ("curve.keep=best", "curve.keep", "best"),
        ("nesterov=authors", "nesterov", "authors"),
    ],
)
def test_one_setting_changes_and_no_other(setting: str, key: str, value: object) -> None:
    before = find_recipe("digits")
    after = changed(before, [setting])
    assert keys_of(after)[key] == value
    assert {k for k, v in keys_of(after).items() if keys_of(before)[k] != v} <= {key}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mode.epoch=3", "got 'mode.epoch'; did you mean mode.epochs"),
        ("mod.epochs=3", "did you mean mode.epochs"),
        ("mode=3", "set one of mode.epochs, mode.weight_decay"),
        ("modes.x=3", "got 'modes.x'; did you mean modes"),
        ("modes=three", "modes to be an integer, but got 'three'"),
        ("modes=2.5", "modes to be an integer"),
        ("mixup=much", "mixup to be a number"),
        ("control=maybe", "control to be true or false"),
        ("norm=ln", "norm to be one of frn, bn"),
        ("sizes=large", "sizes to be 'small' or 'medium'"),
        ("modes", "to be key=value"),
        ("modes=1", "at least 2 modes"),
        ("lr=-1", "lr to be a number of at least 0"),
        ("data.batch_size=0", "data.batch_size to be between 1 and"),
        ("width_divisor=1e-9", "Expected width_divisor to be between 0.1 and"),
        ("width_divisor=65", "Expected width_divisor to be at most 64"),
        ("data.pad=1000000", "Expected data.pad to be at most the image side of 8 pixels"),
        ("data.noise=nan", "data.noise to be between 0 and 1,000"),
        ("modes=1000000", "modes to be between 2 and 100"),
        ("mode.epochs=10000000", "at most 1,000,000"),
        ("net=cifar10", "Expected net to take images with the data's 1 channel"),
        ("name=../../x", "valid as a folder name"),
        ("sizes=small,small", "Expected sizes to name each once"),
    ],
)
def test_a_wrong_setting_is_one_clear_sentence(setting: str, message: str) -> None:
    with pytest.raises(ModebridgeError, match=message):
        check_recipe(changed(find_recipe("digits"), [setting]))


def test_settings_that_depend_on_each_other_come_in_any_order() -> None:
    both = ["data.name=folder:x", "data.size=8"]
    assert changed(find_recipe("digits"), both) == changed(find_recipe("digits"), both[::-1])


def test_any_text_survives_the_file() -> None:
    odd = replace(find_recipe("digits"), about='two\nlines, a "quote", a \\ and \u00e9')
    assert from_toml(to_toml(odd, 0), "here")[0] == odd


def test_the_papers_settings() -> None:
    """Facts of the paper and of the authors' code, one by one."""
    c10, c100, tin, in1k = (find_recipe(name) for name in ("cifar10", "cifar100", "tin200", "in1k"))
    assert [recipe.mode.epochs for recipe in (c10, c100, tin, in1k)] == [200, 200, 200, 100]
    assert [recipe.mode.weight_decay for recipe in (c10, c100, tin, in1k)] == [1e-3, 5e-4, 5e-4, 1e-4]
    assert [recipe.curve.weight_decay for recipe in (c10, c100, tin, in1k)] == [1e-3, 5e-4, 5e-4, 1e-5]
    assert [recipe.data.batch_size for recipe in (c10, c100, tin, in1k)] == [128, 128, 128, 256]
    assert [recipe.data.bridge_batch_size for recipe in (c10, c100, tin, in1k)] == [0, 0, 256, 512]
    assert [recipe.bridge.epochs for recipe in (c10, c100, tin, in1k)] == [200, 200, 100, 100]
    assert [recipe.mixup for recipe in (c10, c100, tin, in1k)] == [0.4, 0.4, 0.4, 0]
    assert [recipe.nesterov for recipe in (c10, c100, tin, in1k)] == ["no", "no", "authors", "no"]
    for recipe in (c10, c100, tin, in1k):
        assert recipe.pin_start == "random"
        assert {recipe.mode.keep, recipe.curve.keep, recipe.bridge.keep} == {"best"}
        assert (recipe.slim("small"), recipe.slim("medium"), recipe.modes) == (2, 1, 8)
        assert len(recipe.curves()) == 11
        assert find_recipe(f"{recipe.name}-bn").norm == "bn"


def test_a_users_own_file(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(to_toml(changed(find_recipe("digits"), ["modes=2"]), 3))
    recipe, seed = read_recipe(str(own))
    assert (recipe.modes, seed) == (2, 3)
    code = tmp_path / "mine.py"
    code.write_text(
        "from dataclasses import replace\nfrom modebridge.recipes import find_recipe\n"
        "def recipe():\n    return replace(find_recipe('digits'), name='mine', modes=3)\n"
    )
    assert read_recipe(str(code))[0].name == "mine"
    with pytest.raises(ModebridgeError, match="no such file"):
        read_recipe(str(tmp_path / "none.toml"))


def test_differences_in_words() -> None:
    before = find_recipe("digits")
    assert differences(before, replace(before, modes=3)) == ["modes 4 -> 3"]


@given(
    st.sampled_from(["I", "II", "labels"]),
    st.integers(0, 30),
    st.integers(0, 30),
    st.sampled_from(["small", "medium", "slim8", "slim1.5"]),
    st.sampled_from([0.1, 0.25, 0.5, 1.0]),
)
def test_names_of_members_are_read_back(kind: str, i: int, j: int, size: str, r: float) -> None:
    member = ControlMember(i, j, size) if kind == "labels" else BridgeMember(kind, i, j, size, r)  # type: ignore[arg-type]
    assert parse_member(member.name) == member


def test_members_of_recipes() -> None:
    names = [member.name for member in members_of(find_recipe("cifar10-short"))]
    assert len(names) == len(set(names)) == 3 + 3 + 2 * (6 + 3 + 1)
    assert {"mode-2", "curve-1-2", "I-2-1-small", "II-0-2-medium", "labels-0-1-small"} <= set(names)
    with pytest.raises(ModebridgeError, match="such as mode-0"):
        parse_member("mode")


EXTREMES = ("0", "-1", "1e-9", "1e300", "nan", "inf", "-inf", "", "9" * 30, "9" * 5000, "x" * 5000, "\x1b", "\udcff")


def test_every_setting_at_its_extremes_is_refused_in_a_short_sentence_or_can_be_written():
    """Before anything is read or trained; what is accepted survives the run folder's file."""
    recipe = find_recipe("digits")
    sentences = []
    for setting in (f"{key}={value}" for key in keys_of(recipe) for value in EXTREMES):
        try:
            found = changed(recipe, [setting])
            check_recipe(found)
        except ModebridgeError as error:
            sentences.append(str(error))
        else:
            assert from_toml(to_toml(found, 0).encode().decode(), "x")[0] == found
    assert len(sentences) > 300
    assert len(keys_of(recipe)) <= 45
    assert max(map(len, sentences)) < 400


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"# \xff", "text in UTF-8, but byte 2 is not"),
        ("modes = 3".encode("utf-16"), "text in UTF-8"),
        (b"a = " + b"[" * 10_000, "nested too deeply"),
        (b"a = " + b"{a=" * 3000, "nested too deeply"),
        (b"modes = " + b"9" * 10_000, "to be TOML"),
        (b"seed = 'x'", "Expected seed in .* to be an integer, but got 'x'"),
        (b"seed = true", "to be an integer"),
        (b"seed = nan", "to be an integer"),
        (b"modes = {a = 1}", "Expected modes to be a single value"),
        (b"norm = ['bn']", "Expected norm to be a single value"),
        (b"#" * 2_000_000, "larger than 1,000,000 bytes"),
        (b"\0", "to be TOML"),
        (b"a." * 3000 + b"a = 1", "Expected the settings of a recipe"),
        (b"modes = ", "to be TOML"),
        (b'name = "x"\nmode = 3\n', "to be a table of settings"),
        (b'name = "x"\nepochs = 3\n', "but got 'epochs'"),
        (b'name = "x"\n', "lacks"),
        (b"def recipe(:\n", "to run, but got SyntaxError"),
        (b"def recipe():\n    return 3\n", "returns a Recipe, but got int"),
        (b"raise SystemExit(0)", "got SystemExit"),
    ],
)
def test_a_wrong_file_is_a_sentence(tmp_path, raw, message):
    file = tmp_path / ("recipe.py" if b"recipe(" in raw or b"raise" in raw else "recipe.toml")
    file.write_bytes(raw)
    with pytest.raises(ModebridgeError, match=message):
        read_recipe(str(file))


def test_a_file_of_windows_is_read(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_bytes(b"\xef\xbb\xbf" + to_toml(find_recipe("digits"), 3).replace("\n", "\r\n").encode())
    assert read_recipe(str(file)) == (find_recipe("digits"), 3)
