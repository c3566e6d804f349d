"""Files are exported once for all tests that read them."""

from __future__ import annotations

import pytest

from modebridge.deploy import Calibration, export
from modebridge.ensembles import ALL, AnswerRule, SetRule
from tests.deploy.scenes import ensemble, images, tied

FITTED = Calibration(0.8, 1.3, SetRule(0.9, "aps", [-0.4], 99), AnswerRule(0.5, 0.1, 0.95, 0.5, 99))
ALL_OUTPUTS = ("members", "entropy", "mutual_information")


@pytest.fixture(scope="session")
def own():
    return ensemble()


@pytest.fixture(scope="session")
def cascade(own, tmp_path_factory):
    """Every output, two bases and three bridges; all members run unless another threshold is given."""
    return export(
        own,
        tmp_path_factory.mktemp("cascade") / "fast.onnx",
        images(2),
        valid=FITTED,
        threshold=ALL,
        outputs=ALL_OUTPUTS,
        classes=["ant", "bee", "cow"],
        info={"scores": {"accuracy": 0.5}, "about": "a test"},
    )


@pytest.fixture(scope="session")
def package(own, tmp_path_factory):
    """The same as a .pt2 archive."""
    path = tmp_path_factory.mktemp("package") / "fast.pt2"
    return export(own, path, images(2), outputs=ALL_OUTPUTS, valid=FITTED)


@pytest.fixture(scope="session")
def little_onnx(tmp_path_factory):
    """Ten classes, a mode and a bridge in 20 kB: to be damaged many times."""
    return export(tied(), tmp_path_factory.mktemp("little") / "fast.onnx", images(2), outputs=ALL_OUTPUTS).path


@pytest.fixture(scope="session")
def little_pt2(tmp_path_factory):
    """The same as a .pt2 archive."""
    return export(tied(), tmp_path_factory.mktemp("little") / "fast.pt2", images(2), outputs=ALL_OUTPUTS).path
