import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imsvd.datasets.random_access import RandomAccessFiles


@pytest.mark.parametrize("positioned", [True, False])
def test_any_place_from_any_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, positioned: bool
) -> None:
    if not positioned:
        monkeypatch.delattr(os, "pread")  # as on Windows
    path = tmp_path / "a"
    path.write_bytes(bytes(range(256)))
    files = RandomAccessFiles([path])
    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(lambda place: files.read(0, place, 2), list(range(255)) * 4))
    assert found == [bytes([place, place + 1]) for place in range(255)] * 4
    assert files.read(0, 250, 100) == bytes(range(250, 256))
    copy = pickle.loads(pickle.dumps(files))
    assert copy.read(0, 7, 1) == b"\7"
