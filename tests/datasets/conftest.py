from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tests out of the user's cache, and out of each other's."""
    folder = tmp_path_factory.mktemp("imsvd-data")
    monkeypatch.setenv("IMSVD_DATA", str(folder))
    return folder
