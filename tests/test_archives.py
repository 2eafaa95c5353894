"""Archives that someone else made: nothing leaves the directory, and nothing fills the disk."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import pytest

from streamops.model.errors import DamagedError
from streamops.versions import archives


def packed(*files: tuple[str, bytes]) -> bytes:
    """As ``pack`` would not do it."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=zipfile.ZIP_DEFLATED)
    return target.getvalue()


def everything(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def test_what_was_packed_comes_out_again(tmp_path: Path) -> None:
    files = {"code/job.py": b"x = 1", "deps/a/b/c.py": b"", "definition.json": b"{}"}
    archives.extract(archives.pack(files), tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in everything(tmp_path)} == files


@pytest.mark.parametrize(
    "name",
    ["../out", "a/../../out", "/out", "a//b", "./a", "a/.", "..", "C:/out", "a\\..\\..\\out", "code/../../../out"],
)
def test_a_name_that_leads_out_is_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    with pytest.raises(DamagedError, match="outside its directory"):
        archives.extract(packed(("fine.py", b""), (name, b"bad")), inside)
    assert everything(tmp_path) == set()


def test_names_made_at_random_never_lead_out(tmp_path: Path, seed: int) -> None:
    chance, inside = random.Random(seed), tmp_path / "inside"
    inside.mkdir()
    for _ in range(500):
        name = "".join(chance.choices(["..", ".", "/", "a", "b.py", "\\", "C:", " ", "\u202e"], k=chance.randint(1, 7)))
        try:
            archives.extract(packed((name, b"x")), inside)
        except (DamagedError, IsADirectoryError, NotADirectoryError, FileExistsError):
            continue
    assert {path for path in everything(tmp_path) if not path.startswith("inside/")} == set()


def test_a_file_that_unpacks_to_far_more_than_it_is_is_refused() -> None:
    with pytest.raises(DamagedError, match="of next to nothing"):
        archives.unpack(packed(("zeros", bytes(64 << 20))))


def test_too_many_files_or_bytes_and_the_same_file_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_FILES", 3)
    monkeypatch.setattr(archives, "MOST_BYTES", 10)
    assert len(archives.unpack(packed(*((f"{n}", b"abc") for n in range(3))))) == 3
    with pytest.raises(DamagedError, match="4 files"):
        archives.unpack(packed(*((f"{n}", b"") for n in range(4))))
    with pytest.raises(DamagedError, match="unpacks to 12 bytes"):
        archives.unpack(packed(("a", b"abcdef"), ("b", b"abcdef")))
    with pytest.warns(UserWarning, match="Duplicate"), pytest.raises(DamagedError, match="twice"):
        archives.unpack(packed(("a", b""), ("a", b"x")))


@pytest.mark.parametrize("body", [b"", b"PK", b"not an archive at all", archives.pack({"a": b"x" * 5000})[:-30]])
def test_what_is_no_whole_archive_is_damaged(body: bytes) -> None:
    with pytest.raises(DamagedError, match="not a whole archive"):
        archives.unpack(body)
