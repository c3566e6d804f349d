"""A file that was damaged after it was written is refused, whichever bit it was; one of an earlier version is read."""

from __future__ import annotations

import json
import random
import zipfile

import numpy as np
import pytest

from modebridge.deploy import Deployed, UncheckedFileWarning
from modebridge.deploy.file_seal import DIGITS, NAME, check_seal
from modebridge.errors import ModebridgeError
from tests.deploy.damage import metadata_in, unsealed, with_metadata
from tests.deploy.scenes import images


def refused(path, data):
    path.write_bytes(data)
    with pytest.raises(ModebridgeError) as caught:
        Deployed.load(path)
    message = str(caught.value)
    assert f"'{path}'" in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_seen(source, count, tmp_path):
    """Anywhere in the file, in its first and last kilobytes, where names and metadata are, and in the seal itself."""
    data, draw = source.read_bytes(), random.Random(0)
    seal = DIGITS + len(NAME) + 6
    for k in range(count):
        size = [len(data), 4000, 4000, seal][k % 4]
        place = draw.randrange(size) + (len(data) - size if k % 4 > 1 else 0)
        broken = bytearray(data)
        broken[place] ^= 1 << draw.randrange(8)
        refused(tmp_path / source.name, broken)


def test_other_damage(source, tmp_path):
    data, path = source.read_bytes(), tmp_path / source.name
    assert check_seal(source)
    for less in (1, DIGITS, DIGITS + 2 + len(NAME), DIGITS + 2 + len(NAME) + 4, 5000, len(data) // 2, len(data) - 3):
        refused(path, data[:-less])
    refused(path, data + b"\0")
    refused(path, data[:1000] + data[1001:])
    assert "its SHA-256 does not match" in refused(path, data[:3000] + bytes(512) + data[3512:])


def test_changed_with_other_tools(source, tmp_path):
    """Papers that say the file has a seal are not taken without it."""
    path = with_metadata(source, tmp_path / source.name, json.dumps(metadata_in(source)))
    assert "to end with its SHA-256, but it does not" in refused(path, path.read_bytes())


def test_files_of_earlier_versions_are_read_with_a_note(source, tmp_path):
    old = unsealed(source, tmp_path / source.name)
    assert not check_seal(old)
    with pytest.warns(UncheckedFileWarning, match=r"older modebridge without a SHA-256.*export it again"):
        found = Deployed.load(old)(images(3))
    for told, wanted in zip(found, Deployed.load(source)(images(3)), strict=True):
        np.testing.assert_array_equal(told, wanted)


def test_the_archive_stays_a_zip(little_pt2):
    with zipfile.ZipFile(little_pt2) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(NAME + b": ")
