"""A place: a folder and an address give the same answers, and neither leads anywhere else."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot, is_remote, reason

FILES: dict[str, bytes] = {
    "a/1.png": b"0123456789",
    "a/2.png": b"",
    "a/10.png": b"ten",
    "a.txt": "\ufeffüber,größe\r\nä,1\n".encode(),
    "a-b/1.png": b"x",
    "a b/c d/e f.jpg": b"spaces",
    "B/1.png": b"B",
    "b/deep/er/still.bin": bytes(range(256)),
    "über/日本.png": b"unicode",
    "100%/a+b&c=d;e.png": b"signs",
    "bad.txt": b"caf\xe9\n",
}
Make = Callable[[dict[str, bytes]], str]


@pytest.fixture(params=["local", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Writes files to a place of one kind or the other and returns its root, which has a space in it."""
    if request.param == "local":
        root = tmp_path / "my photos"

        def write(files: dict[str, bytes]) -> str:
            for name, data in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            return str(root)

        yield write
        return
    memory = fsspec.filesystem("memory")
    top = f"/{uuid.uuid4().hex}"

    def pipe(files: dict[str, bytes]) -> str:
        memory.pipe({f"{top}/my photos/{name}": data for name, data in files.items()})
        return f"memory:/{top}/my photos"

    yield pipe
    if memory.exists(top):
        memory.rm(top, recursive=True)


@pytest.fixture
def place(make: Make) -> FileRoot:
    return FileRoot.of(make(FILES))


def test_files_come_in_the_same_order_everywhere(place: FileRoot) -> None:
    expected = sorted(FILES, key=lambda name: name.split("/"))
    assert expected != sorted(FILES)  # "a/1.png" comes before "a.txt", because "a" does
    assert list(place.files()) == expected
    assert list(place.files("a")) == ["a/1.png", "a/10.png", "a/2.png"]
    assert list(place.files("b/deep")) == ["b/deep/er/still.bin"]
    assert list(place.files("a b")) == ["a b/c d/e f.jpg"]


def test_folders(place: FileRoot) -> None:
    assert place.folders() == ["100%", "B", "a", "a b", "a-b", "b", "über"]
    assert place.folders("b") == ["deep"]
    assert place.folders("a b") == ["c d"]
    assert place.folders("a") == []
    assert place.is_folder()


def test_what_is_there(place: FileRoot) -> None:
    for name in (*FILES, "a", "a b/c d", "b/deep/er"):
        assert place.has(name), name
    for name in ("c", "a/3.png", "a/1.png.bak", "A/1.png", "a b/c"):
        assert not place.has(name), name
    assert not FileRoot.of(place.path("a/1.png")).is_folder()
    assert FileRoot.of(place.path("a")).is_folder()
    assert not FileRoot.of(place.path("nowhere")).is_folder()


@pytest.mark.parametrize("name", FILES)
def test_bytes(place: FileRoot, name: str) -> None:
    assert place.read(name) == FILES[name]
    with place.open(name) as file:
        assert file.read() == FILES[name]
    assert place.path(name) == f"{place.root}/{name}"


@pytest.mark.parametrize(("start", "end"), [(0, 10), (0, 1), (3, 7), (9, 10), (9, 30), (10, 12), (50, 60), (4, 4)])
def test_ranges(place: FileRoot, start: int, end: int) -> None:
    expected = FILES["a/1.png"][start:end]
    assert place.read("a/1.png", start, end) == expected
    assert place.read_many(["a/1.png"], [start], [end]) == [expected]


def test_many_at_a_time_with_one_that_is_missing(place: FileRoot) -> None:
    names = ["a/1.png", "a/none.png", "b/deep/er/still.bin", "a b/c d/e f.jpg", "a/1.png"]
    found = place.read_many(names, [None, None, 10, 0, 2], [None, None, 20, 3, 4])
    assert isinstance(found[1], FileNotFoundError)
    assert [found[i] for i in (0, 2, 3, 4)] == [b"0123456789", bytes(range(10, 20)), b"spa", b"23"]
    assert place.read_many([], [], []) == []


def test_text(place: FileRoot) -> None:
    with place.text("a.txt") as file:
        assert file.read() == "über,größe\r\nä,1\n"  # without the mark at its start, and lines as they are
    with place.text("bad.txt") as file:
        assert file.read() == "caf\ufffd\n"


@pytest.mark.parametrize("more", ["", "/", "///"])
def test_slashes_at_the_end(make: Make, more: str) -> None:
    root = make(FILES)
    place = FileRoot.of(root + more)
    assert place.root == root
    assert place == FileRoot.of(root)
    assert next(place.files()) == "100%/a+b&c=d;e.png"
    assert place.path("a/1.png") == f"{root}/a/1.png"


@pytest.mark.parametrize("ask", ["folders", "files", "open", "text"])
def test_what_is_missing_is_one_sentence(make: Make, ask: str) -> None:
    asked: dict[str, Callable[[FileRoot], Any]] = {
        "folders": lambda place: place.folders("no where"),
        "files": lambda place: list(place.files("no where")),
        "open": lambda place: place.open("no where"),
        "text": lambda place: place.text("no where"),
    }
    root = make(FILES)
    with pytest.raises(UserError) as caught:
        asked[ask](FileRoot.of(root))
    message = str(caught.value)
    assert message.startswith(f"{root}/no where: ")
    assert "\n" not in message
    assert "; check the " in message
    if ask in ("folders", "files"):
        empty = FileRoot.of(f"{root}/no where")
        with pytest.raises(UserError, match="no where: "):
            list(getattr(empty, ask)())


def test_reading_what_is_missing_is_an_error_of_the_system(place: FileRoot) -> None:
    for name in ("none.png", "a/none/none.png"):
        with pytest.raises(OSError, match="none"):
            place.read(name)
        with pytest.raises(OSError, match="none"):
            place.read(name, 0, 5)


def test_names_that_no_file_can_have(place: FileRoot) -> None:
    assert not place.has("a\0b.png")
    assert not place.leads_outside("a\0b.png")
    assert not place.leads_outside("../\0")
    with pytest.raises(UserError) as caught:
        place.open("a\0b.png")
    assert "\n" not in str(caught.value)
    with pytest.raises((OSError, ValueError)):
        place.read("a\0b.png")


def test_an_address_leads_nowhere_else() -> None:
    assert not FileRoot.of("memory://photos").leads_outside("a/b.png")


class TestLinks:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = tmp_path / "photos"
        (root / "in").mkdir(parents=True)
        (root / "in/a.png").write_bytes(b"a")
        (tmp_path / "photos-private").mkdir()  # its name begins like the place's
        (tmp_path / "photos-private/secret.png").write_bytes(b"secret")
        (tmp_path / "secret.png").write_bytes(b"secret")
        (root / "to-file").symlink_to(tmp_path / "secret.png")
        (root / "to-folder").symlink_to(tmp_path / "photos-private")
        (root / "to-neighbour").symlink_to("../photos-private/secret.png")
        (root / "inside").symlink_to("in/a.png")
        (root / "inside-folder").symlink_to("in")
        (root / "nowhere").symlink_to("not-there.png")
        (root / "nowhere-outside").symlink_to("../not-there.png")
        (root / "circle").symlink_to("circle")
        (root / "up").symlink_to("..")
        return root

    @pytest.mark.parametrize(
        ("name", "outside"),
        [
            ("in/a.png", False),
            ("missing.png", False),
            ("in/../in/a.png", False),
            ("..", True),
            ("../secret.png", True),
            ("../photos-private/secret.png", True),
            ("in/../../secret.png", True),
            ("/etc/passwd", False),  # relative to the place, as every path is
            ("to-file", True),
            ("to-folder/secret.png", True),
            ("to-neighbour", True),
            ("inside", False),
            ("inside-folder/a.png", False),
            ("nowhere", False),
            ("nowhere-outside", True),
            ("circle", False),
            ("up/photos/in/a.png", False),
            ("up/secret.png", True),
        ],
    )
    def test_leading_outside(self, root: Path, name: str, outside: bool) -> None:
        assert FileRoot.of(root).leads_outside(name) is outside

    def test_a_place_behind_a_link_is_a_place(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(root)
        place = FileRoot.of(tmp_path / "link")
        assert not place.leads_outside("in/a.png")
        assert place.leads_outside("../secret.png")
        assert place.leads_outside("to-file")
        assert place.read("in/a.png") == b"a"

    def test_links_to_folders_are_followed_inside_the_root_only(self, root: Path) -> None:
        (root / "in" / "back").symlink_to("../inside-folder")  # a cycle
        place = FileRoot.of(root)
        assert place.folders() == ["in", "inside-folder", "to-folder", "up"]
        assert [name for name, is_folder in place.entries() if is_folder] == ["in", "inside-folder"]
        files = list(place.files())
        assert files == sorted(files)
        assert {"in/a.png", "in/back", "inside-folder/a.png", "inside-folder/back"} <= set(files)
        assert {"to-folder", "up", "circle", "nowhere"} <= set(files)
        assert not any(file.startswith(("up/", "to-folder/")) for file in files)

    def test_two_folders_linked_to_each_other_are_walked_once_each_way(self, tmp_path: Path) -> None:
        for name, other in (("a", "b"), ("b", "a")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "x.png").touch()
            (tmp_path / name / "other").symlink_to(f"../{other}")
        files = list(FileRoot.of(tmp_path).files())
        assert files == ["a/other/other", "a/other/x.png", "a/x.png", "b/other/other", "b/other/x.png", "b/x.png"]


def test_the_root_of_all() -> None:
    for name in ("/", "//", "/."):
        place = FileRoot.of(name)
        assert os.path.exists(place.path("proc"))
        assert not place.leads_outside("etc/hostname")
        assert not place.leads_outside("../etc")  # there is no further up
        assert "proc" in place.folders()
    assert FileRoot.of("/").path("a/b") == "/a/b"


def test_the_root_of_an_address() -> None:
    memory = fsspec.filesystem("memory")
    top = uuid.uuid4().hex
    memory.pipe(f"/{top}/a.png", b"a")
    try:
        for address in ("memory://", "memory:///"):
            place = FileRoot.of(address)
            assert not place.is_local
            assert place.is_folder()
            assert top in place.folders()
            assert f"{top}/a.png" in list(place.files())
            assert place.read(f"{top}/a.png") == b"a"
    finally:
        memory.rm(f"/{top}", recursive=True)


def test_relative_folders_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(b"a")
    monkeypatch.chdir(tmp_path)
    places = [FileRoot.of("in"), FileRoot.of(Path("in")), FileRoot.of("./x/../in/"), FileRoot.of(tmp_path / "in")]
    monkeypatch.chdir("/")
    assert {place.root for place in places} == {str(tmp_path / "in")}
    assert all(place.read("a.png") == b"a" for place in places)


def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir(mode=0)
    me = os.geteuid()
    os.seteuid(me or 65534)  # root may read everything, nobody may not
    try:
        with pytest.raises(UserError, match=r"in: cannot be listed \(Permission denied\)"):
            list(FileRoot.of(tmp_path / "in").files())
    finally:
        os.seteuid(me)


def test_a_kind_of_address_that_nobody_knows() -> None:
    with pytest.raises(UserError) as caught:
        FileRoot.of("gopher2://host/photos").folders()
    assert str(caught.value).startswith("gopher2://host/photos: cannot be opened (")
    assert "\n" not in str(caught.value)


def test_what_is_an_address() -> None:
    assert is_remote("s3://bucket/photos")
    assert not is_remote("/data/photos")
    assert not is_remote(Path("s3://bucket"))  # a path has lost a slash
    assert not is_remote("C:/photos")


def test_reasons_are_one_line() -> None:
    assert reason(OSError(2, "No such file")) == "No such file"
    assert reason(ValueError("one\ntwo")) == "one"
    assert reason(KeyError()) == "KeyError"
