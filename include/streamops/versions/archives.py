"""Deterministic archives: the same content gives the same bytes, wherever and whenever it is packed."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from streamops.model.errors import DamagedError, NotFoundError
from streamops.spark.local_spark import PACKAGES, runtime_package

# What the runner imports, with everything these need in turn. Spark and Python itself are on every node.
RUNTIME_REQUIRES = ("boto3", "pydantic", "pyyaml", "influxdb-client")
_UNUSED = ("botocore/data/", "boto3/data/", "boto3/examples/", "setuptools/", "pkg_resources/", "_distutils_hack/")
_USED_DATA = ("botocore/data/s3/", "botocore/data/sts/", "boto3/data/s3/")
_EPOCH = (1980, 1, 1, 0, 0, 0)
MOST_FILES = 100_000  # of an archive, and MOST_BYTES of them together
MOST_BYTES = 2 << 30
MOST_RATIO = 200  # of a file's size to what it takes in the archive, above SMALL bytes; deflate reaches 1,032
SMALL = 1 << 20


def sha256(body: bytes) -> str:
    """Hash in hex, the identity of every archive."""
    return hashlib.sha256(body).hexdigest()


def pack(files: Mapping[str, bytes]) -> bytes:
    """A zip of the files, sorted, with fixed times and modes."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            archive.writestr(entry, files[name])
    return target.getvalue()


def unpack(body: bytes) -> dict[str, bytes]:
    """The files of an archive by name.

    Raises:
        DamagedError: it is no archive, a file would lie outside a directory that it is written to, or there is more in
            it than a version of a job can need.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            _check(entries)
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DamagedError(f"This is not a whole archive ({error}); publish it again.") from error


def extract(body: bytes, directory: Path, inner: Callable[[str], str | None] = lambda name: name) -> None:
    """Write the files of an archive below a directory. Raises DamagedError as ``unpack``.

    Args:
        inner: the name that a file gets there, which must not lead out of it; None leaves the file out.
    """
    for name, content in unpack(body).items():
        if path := inner(name):
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def stays_inside(name: str) -> bool:
    """Whether a name with slashes is that of a file below whatever directory it is put in, on any system."""
    parts = name.split("/")
    return not ({"", ".", ".."} & set(parts) or "\\" in name or ":" in parts[0])


def _check(entries: list[zipfile.ZipInfo]) -> None:
    names = {entry.filename for entry in entries}
    if len(names) != len(entries) or len(entries) > MOST_FILES:
        raise DamagedError(f"The archive holds {len(entries):,} files, some twice or more than {MOST_FILES:,} in all.")
    for entry in entries:
        if not stays_inside(entry.filename):
            raise DamagedError(f"The archive holds {entry.filename!r}, which would lie outside its directory.")
        if entry.file_size > SMALL and entry.file_size > MOST_RATIO * entry.compress_size:
            raise DamagedError(f"{entry.filename!r} in the archive is {entry.file_size:,} bytes of next to nothing.")
    if (size := sum(entry.file_size for entry in entries)) > MOST_BYTES:
        raise DamagedError(f"The archive unpacks to {size:,} bytes; the limit is {MOST_BYTES:,}.")


def tree(directory: Path, prefix: str = "", suffix: str = "") -> dict[str, bytes]:
    """Files below a directory by relative name, without caches and hidden files."""
    return {
        f"{prefix}{path.relative_to(directory).as_posix()}": path.read_bytes()
        for path in sorted(directory.rglob(f"*{suffix}"))
        if path.is_file()
        and not any(part[0] == "." or part == "__pycache__" for part in path.parts[len(directory.parts) :])
    }


@cache
def runtime_archive(runtime: Path | None = None) -> bytes:
    """The runner with the core and its Python dependencies, as installed here.

    Args:
        runtime: directory of the package ``streamops_runtime``; default: the one of this checkout or installation.

    Raises:
        NotFoundError: the runner or one of its dependencies is not installed.
    """
    runtime = runtime or runtime_package()
    files = tree(PACKAGES / "streamops", "streamops/", ".py") | tree(runtime, "streamops_runtime/", ".py")
    for name in sorted(_closure(RUNTIME_REQUIRES)):
        files |= dict(_distribution_files(name))
    return pack(files)


def _closure(names: tuple[str, ...]) -> set[str]:
    """The distributions that these need, by normalised name, on this platform and without extras."""
    found: set[str] = set()
    open_names = list(names)
    while open_names:
        name = open_names.pop().lower().replace("_", "-")
        if name in found or name == "setuptools":  # influxdb-client names it and does not import it
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            raise NotFoundError(
                f"The package {name}, which the runner needs, is not installed; run 'make setup'."
            ) from None
        found.add(name)
        for text in requires:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                open_names.append(requirement.name)
    return found


def _distribution_files(name: str) -> Iterator[tuple[str, bytes]]:
    for file in metadata.files(name) or ():
        path = PurePosixPath(file)
        text = str(path)
        if ".." in path.parts or "__pycache__" in path.parts or text.endswith((".pyc", ".pth")):
            continue
        if ".dist-info" in path.parts[0] and path.name != "METADATA":
            continue  # RECORD and INSTALLER differ from one installation to the next
        if text.startswith(_UNUSED) and len(path.parts) > 3 and not text.startswith(_USED_DATA):
            continue
        yield text, Path(str(file.locate())).read_bytes()
