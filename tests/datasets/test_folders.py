import os
import pickle
from pathlib import Path

import pytest
import torch

from imsvd.datasets.decoding import UnreadableImage
from imsvd.datasets.folders import ImageFolderSource, PathListSource
from imsvd.datasets.layouts import EXTENSIONS
from imsvd.datasets.opening import open_source
from imsvd.errors import InputError
from tests.datasets.containers import pictures, write_folder
from tests.datasets.malformed import MALFORMED, picture, write_malformed


def put(folder: Path, *names: str) -> Path:
    """Write a distinct picture under every name."""
    for seed, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(seed=seed).save(path)
    return folder


def identities(source: ImageFolderSource) -> list[str]:
    return [source.identity(index) for index in range(len(source))]


def test_a_flat_folder_is_sorted_and_unlabeled(tmp_path: Path) -> None:
    source = ImageFolderSource(put(tmp_path, "b.png", "a.jpg", "c.webp"))
    assert identities(source) == ["a.jpg", "b.png", "c.webp"]
    assert source.labels is None
    assert source.classes == ()
    assert source.attributes == {}


def test_one_folder_per_class_gives_labels(tmp_path: Path) -> None:
    source = ImageFolderSource(put(tmp_path, "dog/1.png", "cat/2.png", "cat/deep/3.png"))
    assert identities(source) == ["cat/2.png", "cat/deep/3.png", "dog/1.png"]
    assert source.classes == ("cat", "dog")
    assert source.labels is not None
    assert source.labels.tolist() == [0, 0, 1]
    assert source.labels.dtype == torch.int64


@pytest.mark.parametrize(
    "names",
    [
        ("cat/1.png", "dog/2.png", "stray.png"),
        ("only/1.png", "only/2.png"),
        ("only/a/1.png", "only/b/2.png"),
    ],
)
def test_other_nested_folders_are_unlabeled(tmp_path: Path, names: tuple[str, ...]) -> None:
    source = ImageFolderSource(put(tmp_path, *names))
    assert len(source) == len(names)
    assert source.labels is None


def test_a_class_without_images_is_no_class(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.png", "dog/1.png")
    (tmp_path / "empty").mkdir()
    assert ImageFolderSource(tmp_path).classes == ("cat", "dog")


def test_every_extension_in_either_case(tmp_path: Path) -> None:
    names = [f"a{extension}" for extension in EXTENSIONS]
    names += [f"b{extension.upper()}" for extension in EXTENSIONS]
    source = ImageFolderSource(put(tmp_path, *names))
    assert len(source) == len(names) == 16
    assert all(source.read(index).shape == (3, 40, 48) for index in range(16))
    assert all(source.size(index) == (40, 48) for index in range(16))


def test_hidden_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "a.png", ".hidden.png", "._a.png", ".git/b.png", "__MACOSX/c.png")
    for name in ("notes.txt", ".DS_Store", "jpg"):
        (tmp_path / name).write_text("x")
    assert identities(ImageFolderSource(tmp_path)) == ["a.png"]


def test_a_folder_with_the_name_of_an_image_is_a_folder(tmp_path: Path) -> None:
    assert identities(ImageFolderSource(put(tmp_path, "x.jpg/a.png"))) == ["x.jpg/a.png"]


def test_symbolic_link_loops_end(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png", "b/2.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b" / "across").symlink_to(tmp_path / "a")
    assert identities(ImageFolderSource(tmp_path)) == ["a/1.png", "b/2.png"]


def test_linked_folders_and_files_are_followed(tmp_path: Path) -> None:
    put(tmp_path / "store", "1.png", "2.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "store")
    (tmp_path / "data" / "copy.png").symlink_to(tmp_path / "store" / "1.png")
    source = ImageFolderSource(tmp_path / "data")
    assert identities(source) == ["copy.png", "linked/1.png", "linked/2.png"]
    assert torch.equal(source.read(0), source.read(1))


def test_a_dangling_link_is_listed_and_unreadable(tmp_path: Path) -> None:
    (put(tmp_path, "a.png") / "b.png").symlink_to(tmp_path / "nowhere.png")
    source = ImageFolderSource(tmp_path)
    with pytest.raises(UnreadableImage, match=r"b\.png: missing file"):
        source.read(1)


def test_a_link_to_itself_is_listed_and_unreadable(tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    source = ImageFolderSource(tmp_path)
    assert identities(source) == ["a.png", "loop.png"]
    with pytest.raises(UnreadableImage):
        source.read(1)


def test_a_pipe_is_not_an_image(tmp_path: Path) -> None:
    os.mkfifo(put(tmp_path, "a.png") / "pipe.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "pipe.png")
    assert identities(ImageFolderSource(tmp_path)) == ["a.png"]


def test_undecodable_names_can_be_read_and_printed(tmp_path: Path) -> None:
    data = (put(tmp_path, "ä é.png") / "ä é.png").read_bytes()
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png"))).write_bytes(data)
    source = ImageFolderSource(tmp_path)
    assert identities(source) == ["ä é.png", "\\xff.png"]
    assert torch.equal(source.read(0), source.read(1))


def test_missing_empty_and_file_each_get_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        ImageFolderSource(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"a\.txt is a file; give the folder"):
        ImageFolderSource(tmp_path / "a.txt")
    with pytest.raises(InputError, match=r"holds no images \(looked for jpg, jpeg, png, webp"):
        ImageFolderSource(tmp_path)


def test_an_index_beyond_the_end_or_below_zero_is_an_error(tmp_path: Path) -> None:
    source = ImageFolderSource(put(tmp_path, "a.png", "b.png"))
    for index in (2, -1):
        with pytest.raises(IndexError):
            source.read(index)


def test_given_classes_fix_the_numbers(tmp_path: Path) -> None:
    put(tmp_path, "dog/1.png", "eel/2.png")
    source = ImageFolderSource(tmp_path, classes=("cat", "dog", "eel"))
    assert source.labels is not None
    assert source.labels.tolist() == [1, 2]
    with pytest.raises(InputError, match="a class 'eel' that the training images lack"):
        ImageFolderSource(tmp_path, classes=("cat", "dog"))
    assert ImageFolderSource(tmp_path, classes=("ant", "bee")).labels is None


def test_the_fingerprint_follows_the_listing_not_the_place(tmp_path: Path) -> None:
    first = ImageFolderSource(put(tmp_path / "1", "a/1.png", "b/1.png")).fingerprint()
    assert ImageFolderSource(put(tmp_path / "2", "a/1.png", "b/1.png")).fingerprint() == first
    assert ImageFolderSource(put(tmp_path / "3", "a/1.png", "b/2.png")).fingerprint() != first
    assert ImageFolderSource(put(tmp_path / "2", "c/1.png")).fingerprint() != first
    assert first == "".join(digit for digit in first if digit in "0123456789abcdef")
    assert len(first) == 16


def test_every_malformed_image_is_listed_and_refused(tmp_path: Path) -> None:
    names = write_malformed(tmp_path)
    source = ImageFolderSource(tmp_path)
    assert identities(source) == names
    for index, name in enumerate(names):
        with pytest.raises(UnreadableImage) as caught:
            source.read(index)
        assert caught.value.identity == name
        assert MALFORMED[name][1] in caught.value.reason
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (copy.identity, copy.reason) == (name, caught.value.reason)


def test_thousands_of_images_are_listed_in_order_and_pickled_small(tmp_path: Path) -> None:
    for folder in range(50):
        (tmp_path / f"{folder:03}").mkdir()
        for number in range(100):
            (tmp_path / f"{folder:03}" / f"{number:04}.jpg").touch()
    source = ImageFolderSource(tmp_path)
    assert len(source) == 5_000
    assert source.identity(1_234) == "012/0034.jpg"
    assert len(source.classes) == 50
    copy = pickle.loads(pickle.dumps(source))
    assert copy.identity(4_999) == source.identity(4_999)
    assert len(pickle.dumps(source)) < 250_000


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
    with pytest.raises(InputError, match=r"list\.txt lists no images; write one path per line"):
        listed(tmp_path, "# nothing\n")
    with pytest.raises(InputError, match=r"label to some images only; line 3 differs"):
        listed(tmp_path, "a.png 1\n\nsub/b c.png\n")


def test_the_fingerprint_follows_the_labels(tmp_path: Path) -> None:
    first = listed(tmp_path / "1", "a.png 1\nsub/b c.png 0").fingerprint()
    assert listed(tmp_path / "2", "a.png 0\nsub/b c.png 1").fingerprint() != first
