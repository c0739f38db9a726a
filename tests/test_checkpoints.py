import errno
import hashlib
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from imsvd.checkpoints import (
    load_newest_checkpoint,
    random_state,
    read_checkpoint,
    restore_random_state,
    save_checkpoint,
    seed_random_state,
)
from imsvd.errors import InputError
from imsvd.files import write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    # Later than within the tick of the clock in which the file was saved.
    later = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))


def test_a_nested_state_returns_bit_by_bit(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    state: dict[str, Any] = {
        "step": 3,
        "lr": 0.1 + 0.2,
        "nothing": None,
        "flag": True,
        "name": "β",
        "by number": {0: {"momentum": base}, 1: {}},
        "pair": (0.9, 0.999),
        "list": [1, [2, (3,)]],
        "half": base.bfloat16(),
        "integers": torch.arange(5),
        "scalar": torch.tensor(float("nan")),
        "empty": torch.empty(0, 3),
        "shared": base[0],
        "transposed": base.T,
    }
    loaded = read_checkpoint(save_checkpoint(tmp_path, 3, state))
    assert list(loaded) == list(state)
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            assert loaded[key].dtype == value.dtype
            torch.testing.assert_close(loaded[key], value, rtol=0, atol=0, equal_nan=True)
        elif key != "by number":
            assert loaded[key] == value
            assert type(loaded[key]) is type(value)
    assert list(loaded["by number"]) == [0, 1]
    assert torch.equal(loaded["by number"][0]["momentum"], base)
    assert isinstance(loaded["list"][1][1], tuple)


def test_anything_but_tensors_and_plain_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not ndarray"):
        save_checkpoint(tmp_path, 1, {"array": np.zeros(2)})


def test_two_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, step, {"step": step})
    assert names(tmp_path) == [
        "step-000000002.safetensors",
        "step-000000002.sha256",
        "step-000000010.safetensors",
        "step-000000010.sha256",
    ]
    assert load_newest_checkpoint(tmp_path) == ({"step": 10}, [])


def test_no_folder_means_no_checkpoint(tmp_path: Path) -> None:
    assert load_newest_checkpoint(tmp_path / "none") == (None, [])


def test_a_flipped_byte_is_noticed_and_the_previous_one_used(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"x": torch.zeros(3)})
    damage(save_checkpoint(tmp_path, 2, {"x": torch.ones(3)}))
    state, complaints = load_newest_checkpoint(tmp_path)
    assert state is not None
    assert state["x"].tolist() == [0, 0, 0]
    assert len(complaints) == 1
    assert "step-000000002.safetensors is damaged" in complaints[0]


def test_a_file_without_its_hash_was_never_finished(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"step": 1})
    save_checkpoint(tmp_path, 2, {"step": 2}).with_suffix(".sha256").unlink()
    state, _ = load_newest_checkpoint(tmp_path)
    assert state == {"step": 1}


@pytest.mark.parametrize("unfinished", [True, False], ids=["unfinished", "damaged"])
def test_a_bad_file_does_not_push_out_a_good_one(tmp_path: Path, unfinished: bool) -> None:
    save_checkpoint(tmp_path, 1, {"step": 1})
    bad = save_checkpoint(tmp_path, 3, {"x": torch.zeros(2)})
    if unfinished:
        bad.with_suffix(".sha256").unlink()
    else:
        damage(bad)
    damage(save_checkpoint(tmp_path, 4, {"step": 4, "x": torch.zeros(2)}))
    state, _ = load_newest_checkpoint(tmp_path)
    assert state == {"step": 1}


def test_what_this_process_has_saved_or_read_is_not_read_again_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    read_bytes = Path.read_bytes

    def watched(path: Path) -> bytes:
        found.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", watched)
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"step": step})
    assert found == []
    monkeypatch.setattr("imsvd.checkpoints._known_hashes", {})  # as in the process that resumes
    load_newest_checkpoint(tmp_path)
    save_checkpoint(tmp_path, 4, {"step": 4})
    assert found == ["step-000000003.safetensors"]
    monkeypatch.setattr("imsvd.checkpoints._known_hashes", {})
    save_checkpoint(tmp_path, 5, {"step": 5})
    assert found[1:] == ["step-000000004.safetensors"]
    assert names(tmp_path)[::2] == ["step-000000004.safetensors", "step-000000005.safetensors"]


def test_nothing_is_remembered_of_deleted_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[tuple[int, ...], str] = {}
    monkeypatch.setattr("imsvd.checkpoints._known_hashes", known)
    for step in range(5):
        save_checkpoint(tmp_path, step, {"step": step})
    assert len(known) == 2


def test_all_damaged_gives_none_and_every_complaint(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"x": torch.zeros(2)})
    for path in tmp_path.glob("*.safetensors"):
        damage(path)
    state, complaints = load_newest_checkpoint(tmp_path)
    assert state is None
    assert len(complaints) == 2


class Trap:
    """Unpickling one of these is what must never happen."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (os.environ["TRAP"],))


@pytest.mark.parametrize("kind", ["pickle", "torch", "safetensors"])
def test_a_foreign_file_is_refused_and_never_unpickled(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "sprung"
    monkeypatch.setenv("TRAP", str(trap))
    path = tmp_path / "step-000000001.safetensors"
    if kind == "torch":
        torch.save(Trap(), path)
    else:
        content = pickle.dumps(Trap()) if kind == "pickle" else save({"x": torch.zeros(1)})
        path.write_bytes(content)
    write_hash(path)
    with pytest.raises(InputError, match="not written by imsvd"):
        read_checkpoint(path)
    assert not trap.exists()


def write_hash(path: Path) -> None:
    path.with_suffix(".sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_header_that_is_not_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step-000000001.safetensors"
    path.write_bytes(save({"x": torch.zeros(1)}, metadata={"state": "{"}))
    write_hash(path)
    with pytest.raises(InputError, match="not written by imsvd"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"state": "{}", "format": "2"}, "written by a newer version of imsvd; install"),
        ({"state": '{"set": [1]}', "format": "1"}, "unknown kind 'set'"),
        ({"state": "[1]"}, "not written by imsvd|newer version"),
    ],
)
def test_a_checkpoint_of_a_later_version_gets_a_sentence(
    tmp_path: Path, metadata: dict[str, str], sentence: str
) -> None:
    path = tmp_path / "step-000000001.safetensors"
    path.write_bytes(save({"x": torch.zeros(1)}, metadata=metadata))
    write_hash(path)
    with pytest.raises(InputError, match=sentence):
        read_checkpoint(path)


def test_a_kill_within_the_first_save_leaves_nothing_to_complain_about(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, {"step": 1})
    path.with_suffix(".sha256").unlink()
    assert load_newest_checkpoint(tmp_path) == (None, [])
    save_checkpoint(tmp_path, 2, {"step": 2}).with_suffix(".sha256").unlink()
    path.write_bytes(b"")  # two files without a hash are no interrupted save
    state, complaints = load_newest_checkpoint(tmp_path)
    assert state is None
    assert len(complaints) == 2


def test_a_state_with_an_objection_is_skipped(tmp_path: Path) -> None:
    for step in (1, 2):
        path = save_checkpoint(tmp_path, step, {"step": step})
    state, complaints = load_newest_checkpoint(
        tmp_path, lambda found: "is even" if found["step"] == 2 else ""
    )
    assert state == {"step": 1}
    assert complaints == [f"checkpoint {path} is even."]


def full_disk(path: Path) -> None:
    """Make the next write beside `path` meet a device that is really full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}.{os.getpid()}.tmp").symlink_to("/dev/full")


def test_a_full_disk_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    full_disk(path)
    with pytest.raises(
        InputError, match=r"the disk is full.*run the same command to resume"
    ) as caught:
        write_atomically(path, b"new" * 2**20)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_disk_that_fills_while_flushing_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(_: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match="the disk is full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_kill_while_writing_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def killed(*_: object) -> None:
        raise SystemError  # not an OSError: nothing is cleaned up, as after SIGKILL

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(SystemError):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_path_below_a_file_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="could not be written"):
        write_atomically(tmp_path / "file" / "below", b"")


def draws() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand())]  # noqa: NPY002


def test_every_random_generator_is_put_back(tmp_path: Path) -> None:
    seed_random_state(1)
    path = save_checkpoint(tmp_path, 1, random_state())
    expected = draws()
    assert draws() != expected
    restore_random_state(read_checkpoint(path))
    assert draws() == expected
    seed_random_state(1)
    assert draws() == expected


def test_the_rest_of_the_state_is_readable_json(tmp_path: Path) -> None:
    content = save_checkpoint(tmp_path, 1, {"step": 7}).read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["state"]) == {"dict": [["step", 7]]}


def test_the_generator_of_an_apple_gpu_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    put_back: list[torch.Tensor] = []
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("torch.mps.get_rng_state", lambda: torch.tensor([1, 2], dtype=torch.uint8))
    monkeypatch.setattr("torch.mps.set_rng_state", put_back.append)
    restore_random_state(random_state())
    assert [state.tolist() for state in put_back] == [[1, 2]]
