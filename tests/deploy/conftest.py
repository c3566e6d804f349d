"""Files are exported once for all tests that read them."""

from __future__ import annotations

import pytest

from modebridge.deploy import Temperatures, export
from tests.deploy.scenes import ensemble, images

FITTED = Temperatures(0.8, (1.0, 1.1, 1.2, 1.3))


@pytest.fixture(scope="session")
def own():
    return ensemble()


@pytest.fixture(scope="session")
def elastic(own, tmp_path_factory):
    """Every output, elastic, two bases and three bridges."""
    return export(
        own,
        tmp_path_factory.mktemp("elastic") / "fast.onnx",
        images(2),
        members=True,
        temperatures=FITTED,
        classes=["ant", "bee", "cow"],
        scores={"accuracy": 0.5},
        about="a test",
    )


@pytest.fixture(scope="session")
def package(own, tmp_path_factory):
    """The same as a .pt2 archive."""
    path = tmp_path_factory.mktemp("package") / "fast.pt2"
    return export(own, path, images(2), members=True, temperatures=FITTED)
