"""A snapshot as one file: a tar archive with the signed manifest first, then every object, each compared on its way.

The archive holds also the published version (artifact, runtime and shared library; its description is signed for the
archive), so that a job can be started from it on an installation that never saw it. An import copies nothing that it
has not compared with the manifest, and makes the snapshot exist last, signed with the target's own key. Both can be run
again after they died, and continue.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from pydantic import ValidationError

from streamops.model.errors import NotFoundError, PublishedError, SnapshotRefusedError
from streamops.model.manifest import Manifest, ManifestObject, decode, validate
from streamops.model.names import SCRATCH
from streamops.model.signatures import FIELD
from streamops.snapshots import catalogue, integrity
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, libraries
from streamops.versions.artifacts import ArtifactManifest

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_MANIFEST, _VERSION = "manifest.json", "version.json"
_LIBRARY = "library.zip"
_SPOOL = 64 << 20  # an object up to this size passes through memory, a larger one through a temporary file
_AHEAD = 8  # objects that are fetched while one is written


@dataclass(frozen=True)
class Imported:
    """What an import did; ``skipped`` objects were there already from an import that died."""

    manifest: Manifest
    objects: int
    skipped: int
    published: bool


class Staged(NamedTuple):
    """An archive in the bucket: the snapshot that it says it holds, and the hash that names it."""

    job: str
    name: str
    sha256: str


class _Wanted(NamedTuple):
    """An object to export: the name of its member, and which version of what, with its hash."""

    member: str
    key: str
    version_id: str | None
    sha256: str


def export(
    store: ObjectStore, job: str, name: str, target: Path, progress: Progress = lambda done, all: None
) -> Manifest:
    """Write a snapshot to a file. The file appears under its name only when it is whole.

    Raises:
        NotFoundError: there is no such snapshot, or its version is not published here.
        SnapshotRefusedError: an object is missing or altered; names it.
    """
    manifest = catalogue.load(store, job, name)
    body = store.get(keys.manifest(job, name)).body
    version = artifacts.load_manifest(store, job, manifest.version)
    used = manifest.shared_library
    library = libraries.load(store, used.name, used.version).archive if used else None
    extra = [_Wanted(member, key, None, sha256) for member, key, sha256 in _archives(manifest, version, library)]
    objects = [_Wanted(_member(item), item.key, item.version_id, item.sha256) for item in manifest.objects]
    total = manifest.size + sum(store.head(wanted.key).size for wanted in extra)
    unfinished = target.with_name(f".{target.name}.partial")
    done = 0
    with unfinished.open("wb") as raw, tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, _MANIFEST, io.BytesIO(body))
        _add(archive, _VERSION, io.BytesIO(_signed(store, version)))
        for wanted, content in _ahead(store, extra + objects):
            with content:
                done += _add(archive, wanted.member, content)
            progress(done, total)
        raw.flush()
        os.fsync(raw.fileno())
    os.replace(unfinished, target)
    return manifest


def stage(store: ObjectStore, source: Path, progress: Progress = lambda done, all: None) -> Staged:
    """Put an archive into the bucket, from where it can be imported; one that is there already is not sent again.

    What becomes of one that nobody imports: retention frees it, as all that belongs to no snapshot.

    Raises:
        NotFoundError: there is no such file.
        SnapshotRefusedError: it is no archive of a snapshot.
    """
    if not source.is_file():
        raise NotFoundError(f"There is no file {source}.")
    size, digest = source.stat().st_size, hashlib.sha256()
    with source.open("rb") as file:
        with _opened(file, str(source)) as archive:
            told = decode(archive.small(_MANIFEST), f"in {source.name}")
        found = validate(told, f"in {source.name}")  # not to be believed yet: only where it is to be asked for
        file.seek(0)
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        staged = Staged(found.job, found.name, digest.hexdigest())
        key = keys.snapshot_upload(staged.job, staged.sha256)
        if not (store.exists(key) and store.head(key).size == size):
            file.seek(0)
            store.upload(key, file, lambda done: progress(done, size))
    return staged


def origin(store: ObjectStore, source: IO[bytes], called: str, *, trust: bool = False) -> Manifest:
    """The manifest in an archive. Raises SnapshotRefusedError, as ``load``."""
    with _opened(source, called) as archive:
        return _origin(store, archive.small(_MANIFEST), called, trust)


def load(
    store: ObjectStore,
    source: IO[bytes],
    called: str,
    *,
    trust: bool = False,
    progress: Progress = lambda done, all: None,
) -> Imported:
    """Bring a snapshot from an archive into this bucket, under its own name.

    Args:
        source: the archive, from its beginning.
        called: what messages call it.
        trust: accept an archive that another installation signed with a key that is not accepted here. Its objects
            are compared with its manifest all the same.

    Raises:
        SnapshotRefusedError: it is no archive of a snapshot, is cut off, was altered, or is signed by a stranger.
        SnapshotExistsError: the name is taken here by another snapshot.
        PublishedError: the same version, or that of its shared library, is published here with other content.
    """
    with _opened(source, called) as archive:
        return _load(store, archive, trust, progress)


@contextmanager
def _opened(source: IO[bytes], called: str) -> Iterator[_Archive]:
    try:
        with tarfile.open(fileobj=source, mode="r:") as archive:
            yield _Archive(archive, called)
    except tarfile.TarError as error:
        raise SnapshotRefusedError(
            f"{called} is not a whole archive of a snapshot ({error}); export it again."
        ) from None


class _Archive:
    """The members of an archive, read once and in order."""

    def __init__(self, archive: tarfile.TarFile, called: str) -> None:
        self.archive, self.called = archive, called
        self.members = iter(archive)

    def small(self, name: str) -> bytes:
        """The content of the next member, which must be this one."""
        member = next(self.members, None)
        if member is None or member.name != name or not member.isfile() or member.size > 256 << 20:
            raise SnapshotRefusedError(
                f"{self.called} is not an archive of a snapshot: {name} is not where it should be."
            )
        content = self.archive.extractfile(member)
        assert content is not None
        with content:
            return content.read()

    @contextmanager
    def compared(self, member: tarfile.TarInfo, sha256: str, what: str) -> Iterator[IO[bytes]]:
        """A member's content in a temporary place, compared with its hash. Raises SnapshotRefusedError."""
        content = self.archive.extractfile(member)
        assert content is not None
        with content, tempfile.SpooledTemporaryFile(max_size=_SPOOL) as spool:
            if _spooled(iter(partial(content.read, 1 << 20), b""), spool) != sha256:
                raise SnapshotRefusedError(f"{what} in {self.called} was altered; export it again.")
            yield spool


def _load(store: ObjectStore, archive: _Archive, trust: bool, progress: Progress) -> Imported:
    source = archive.called
    body = archive.small(_MANIFEST)
    origin = _origin(store, body, source, trust)
    job, name = origin.job, origin.name
    attempt = f"import-{hashlib.sha256(body).hexdigest()[:16]}"
    try:
        found = catalogue.find(store, job, name)
    except SnapshotRefusedError:
        found = None
    if found is not None and found.attempt == attempt:
        return Imported(found, 0, len(found.objects), published=False)
    catalogue.require_free_name(store, job, name)
    version = _version(store, archive.small(_VERSION), origin, source, trust)
    published = _publish(store, version, origin, archive)
    objects, skipped = _bring(store, archive, origin, attempt, progress)
    manifest = origin.model_copy(update={"attempt": attempt, "objects": objects}).signed(store.keyring)
    integrity.verify(store, manifest)
    catalogue.commit_manifest(store, manifest)
    return Imported(manifest, len(objects) - skipped, skipped, published)


def _bring(
    store: ObjectStore, archive: _Archive, origin: Manifest, attempt: str, progress: Progress
) -> tuple[tuple[ManifestObject, ...], int]:
    """Write the objects that are not there yet; all of them in the manifest's order, and how many were there."""
    job, source = origin.job, archive.called
    moved = {
        _member(item): item.model_copy(
            update={"key": f"{keys.snapshot_data(job, attempt, item.stage)}{item.path}", "source_etag": ""}
        )
        for item in origin.objects
    }
    there: dict[str, ManifestObject] = {}
    skipped = done = 0
    for member in archive.members:
        item = moved.pop(member.name, None)
        if item is None or not member.isfile() or member.size != item.size:
            raise SnapshotRefusedError(f"{source} holds {member.name!r}, which its manifest does not; export it again.")
        version_id = _present(store, item)
        if version_id is None:
            with archive.compared(member, item.sha256, f"{item.stage}/{item.path}") as content:
                version_id = store.put_file(item.key, content, item.sha256)
        else:
            skipped += 1
        there[member.name] = item.model_copy(update={"version_id": version_id})
        done += item.size
        progress(done, origin.size)
    if moved:
        raise SnapshotRefusedError(f"{source} lacks {next(iter(moved))} and {len(moved) - 1} more; export it again.")
    return tuple(there[_member(item)] for item in origin.objects), skipped


def _signed(store: ObjectStore, version: ArtifactManifest) -> bytes:
    """The description of a version, signed: resources, topics and retention are in it."""
    fields = json.loads(version.model_dump_json(by_alias=True))
    return json.dumps({**fields, FIELD: store.keyring.sign(fields)}).encode()


def _origin(store: ObjectStore, body: bytes, source: str, trust: bool) -> Manifest:
    return validate(_trusted(store, body, source, trust), f"in {source}")


def _trusted(store: ObjectStore, body: bytes, source: str, trust: bool) -> dict[str, Any]:
    """The fields of a signed object that may be believed. Raises SnapshotRefusedError."""
    fields = decode(body, f"in {source}")
    if store.keyring.refutes(fields):  # then no operator's word helps
        raise SnapshotRefusedError(f"What {source} says of its snapshot has a wrong signature: it was altered.")
    if (problem := store.keyring.problem(fields)) and not trust:
        raise SnapshotRefusedError(
            f"What {source} says of its snapshot {problem}; if you know where the file comes from, import it "
            "with --trust."
        )
    return fields


def _present(store: ObjectStore, item: ManifestObject) -> str | None:
    """The version of an object that an earlier try has brought already."""
    try:
        head = store.head(item.key)
    except NotFoundError:
        return None
    return head.version_id if (head.size, head.sha256) == (item.size, item.sha256) else None


def _version(store: ObjectStore, body: bytes, manifest: Manifest, source: str, trust: bool) -> ArtifactManifest:
    fields = _trusted(store, body, source, trust)
    fields.pop(FIELD, None)
    try:
        version = ArtifactManifest.model_validate_json(json.dumps(fields))
    except ValidationError:
        raise SnapshotRefusedError(f"{source} does not describe its version; export it again.") from None
    said = (version.job, version.version, version.artifact_sha256, version.runtime_sha256)
    if said != (manifest.job, manifest.version, manifest.artifact_sha256, manifest.runtime_sha256):
        raise SnapshotRefusedError(f"{source} holds another version than its manifest names; export it again.")
    return version


def _publish(store: ObjectStore, version: ArtifactManifest, manifest: Manifest, archive: _Archive) -> bool:
    """Publish the version of the archive here, unless it is; True if it was done now."""
    if version.job.startswith(SCRATCH):
        raise SnapshotRefusedError(
            f"{archive.called} is of {version.job}; such names belong to restore tests, not to jobs."
        )
    key = keys.artifact_manifest(version.job, version.version)
    found = documents.find(store, key, ArtifactManifest)
    if found:
        _require_same(found, version)
    library = None
    if used := manifest.shared_library:
        libraries.require_same(store, used)
        library = keys.library(used.name, used.version, used.sha256)
    for name, target, sha256 in _archives(manifest, version, library):
        member = next(archive.members, None)
        if member is None or member.name != name or not member.isfile():
            raise SnapshotRefusedError(f"{archive.called} lacks {name}; export it again.")
        with archive.compared(member, sha256, name) as content:
            if not found or name == _LIBRARY:
                store.put_file(target, content, sha256)
    if manifest.shared_library:
        libraries.accept(store, manifest.shared_library)

    def settled(earlier: ArtifactManifest | None) -> ArtifactManifest:
        if earlier is not None:
            _require_same(earlier, version)
        return earlier or version

    return documents.update(store, key, ArtifactManifest, settled).value is version


def _require_same(here: ArtifactManifest, version: ArtifactManifest) -> None:
    if here.artifact_sha256 != version.artifact_sha256:
        raise PublishedError(
            f"Version {version.version} of {version.job} is published here with other content, so this snapshot "
            "cannot be continued here; import it into another installation."
        )


def _archives(manifest: Manifest, version: ArtifactManifest, library: str | None) -> list[tuple[str, str, str]]:
    """What a job needs beside its state: the member's name, its key in a bucket, and its hash."""
    found = [
        ("artifact.zip", version.archive, manifest.artifact_sha256),
        ("runtime.zip", keys.runtime(manifest.runtime_sha256), manifest.runtime_sha256),
    ]
    if manifest.shared_library and library:
        found.append((_LIBRARY, library, manifest.shared_library.sha256))
    return found


def _member(item: ManifestObject) -> str:
    return f"objects/{item.stage}/{item.path}"


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes]) -> int:
    """Append a member; its size in bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = content.seek(0, os.SEEK_END), 0o600
    content.seek(0)
    archive.addfile(info, content)
    return info.size


def _spooled(chunks: Iterable[bytes], spool: IO[bytes]) -> str:
    """Write chunks, and go back to the beginning; their hash."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        spool.write(chunk)
    spool.seek(0)
    return digest.hexdigest()


def _fetched(store: ObjectStore, wanted: _Wanted) -> IO[bytes]:
    """One object in a temporary place, compared with its hash: an open file, which the caller closes."""
    with ExitStack() as unless_whole:
        spool: IO[bytes] = unless_whole.enter_context(tempfile.SpooledTemporaryFile(max_size=_SPOOL))
        try:
            digest = _spooled(store.chunks(wanted.key, wanted.version_id), spool)
        except NotFoundError:
            raise SnapshotRefusedError(f"{wanted.key} is missing; the snapshot cannot be exported.") from None
        if digest != wanted.sha256:
            raise SnapshotRefusedError(f"{wanted.key} was altered; the snapshot cannot be exported.")
        unless_whole.pop_all()
        return spool


def _ahead(store: ObjectStore, wanted: Sequence[_Wanted]) -> Iterator[tuple[_Wanted, IO[bytes]]]:
    """Objects in order, a few of them fetched in advance."""
    with ThreadPoolExecutor(_AHEAD) as pool:
        for start in range(0, len(wanted), _AHEAD):
            batch = wanted[start : start + _AHEAD]
            yield from zip(batch, pool.map(partial(_fetched, store), batch), strict=True)
