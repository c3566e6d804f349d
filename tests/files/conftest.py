"""The hub's library, kept off the network."""

from __future__ import annotations

import pytest

from tests.files.fake_hub import fake_hub


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub's library, which is told to be offline."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    return tmp_path / "cache"


@pytest.fixture
def hub(cache, monkeypatch):
    """A hub on this machine, and the library pointed at it."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    with fake_hub() as server:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", server.address)
        monkeypatch.setenv("HF_TOKEN", server.token)
        close_session()
        yield server
        close_session()
