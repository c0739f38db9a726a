from pathlib import Path

import pytest

from imsvd.datasets.opening import open_source
from imsvd.datasets.path_list import PathListSource
from imsvd.datasets.source import UnreadableImage
from imsvd.errors import InputError
from tests.datasets.containers import pictures, write_folder


def listed(folder: Path, text: str | bytes, name: str = "list.txt") -> PathListSource:
    write_folder(folder, pictures("a.png", "sub/b c.png"))
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    source = open_source(folder / name)
    assert isinstance(source, PathListSource)
    return source


def test_paths_are_relative_to_the_list_and_may_hold_spaces(tmp_path: Path) -> None:
    source = listed(tmp_path, f"# mine\n\nsub/b c.png\r\na.png\n{tmp_path}/a.png")
    assert [source.identity(i) for i in range(3)] == ["sub/b c.png", "a.png", f"{tmp_path}/a.png"]
    assert all(source.read(i).shape == (3, 40, 48) for i in range(3))
    assert source.labels is None


@pytest.mark.parametrize("text", ["a.png 1\nsub/b c.png 0\n", "a.png\t1\nsub/b c.png\t0"])
@pytest.mark.parametrize("name", ["list.txt", "list.LST"])
def test_labels_after_a_space_or_a_tab(tmp_path: Path, text: str, name: str) -> None:
    source = listed(tmp_path, text, name)
    assert source.labels is not None
    assert source.labels.tolist() == [1, 0]
    assert source.identity(1) == "sub/b c.png"


def test_names_as_labels(tmp_path: Path) -> None:
    source = listed(tmp_path, "a.png dog\nsub/b c.png cat")
    assert source.classes == ("cat", "dog")


def test_unknown_labels_make_unlabeled_images(tmp_path: Path) -> None:
    assert listed(tmp_path, "a.png -1\nsub/b c.png 0").labels is None


@pytest.mark.parametrize("line", ["nowhere.png", "sub", "a\0b.png", "x" * 5000, "a.png/b.png"])
def test_what_is_no_file_is_a_bad_image(tmp_path: Path, line: str) -> None:
    source = listed(tmp_path, f"a.png\n{line}\n")
    with pytest.raises(UnreadableImage):
        source.read(1)
    assert source.read(0).shape == (3, 40, 48)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    source = listed(tmp_path, b"\xef\xbb\xbfa.png\n\xff\xfe.png\n")
    assert [source.identity(i) for i in range(2)] == ["a.png", "\\xff\\xfe.png"]
    with pytest.raises(UnreadableImage, match="missing file"):
        source.read(1)


def test_empty_and_half_labeled_lists_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"list\.txt lists no images; write one path a line"):
        listed(tmp_path, "# nothing\n")
    with pytest.raises(InputError, match=r"label to some images only; line 3 differs"):
        listed(tmp_path, "a.png 1\n\nsub/b c.png\n")


def test_the_fingerprint_follows_the_labels(tmp_path: Path) -> None:
    first = listed(tmp_path / "1", "a.png 1\nsub/b c.png 0").fingerprint()
    assert listed(tmp_path / "2", "a.png 0\nsub/b c.png 1").fingerprint() != first
