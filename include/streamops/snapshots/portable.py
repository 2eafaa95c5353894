"""A snapshot as one file: a tar archive with the signed manifest first, then every object, each compared on its way.

The archive holds also the published version (artifact, runtime and shared library), so that a job can be started from
it on an installation that never saw it. An import copies nothing that it has not compared with the manifest, and makes
the snapshot exist last, signed with the target's own key. Both can be run again after they died, and continue.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from streamops.model.errors import ConflictError, NotFoundError, PublishedError, SnapshotRefusedError
from streamops.model.manifest import Manifest, ManifestObject, decode, parse, validate
from streamops.model.names import SCRATCH
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
    extra = _archives(manifest)
    total = manifest.size + sum(store.head(key).size for _, key, _ in extra)
    partial = target.with_name(f".{target.name}.partial")
    done = 0
    with partial.open("wb") as raw, tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, _MANIFEST, io.BytesIO(body), len(body))
        described = version.model_dump_json(by_alias=True).encode()
        _add(archive, _VERSION, io.BytesIO(described), len(described))
        for member, key, digest in extra:
            content, size = _fetched(store, key, None, digest)
            with content:
                _add(archive, member, content, size)
            done += size
            progress(done, total)
        for item, (content, size) in _ahead(store, manifest.objects):
            with content:
                _add(archive, _member(item), content, size)
            done += size
            progress(done, total)
        raw.flush()
        os.fsync(raw.fileno())
    os.replace(partial, target)
    return manifest


def load(
    store: ObjectStore, source: Path, *, trust: bool = False, progress: Progress = lambda done, all: None
) -> Imported:
    """Bring a snapshot from a file into this bucket, under its own name.

    Args:
        trust: accept an archive that another installation signed with a key that is not accepted here. Its objects
            are compared with its manifest all the same.

    Raises:
        NotFoundError: there is no such file.
        SnapshotRefusedError: it is no archive of a snapshot, is cut off, was altered, or is signed by a stranger.
        SnapshotExistsError: the name is taken here by another snapshot.
        PublishedError: the same version, or that of its shared library, is published here with other content.
    """
    if not source.is_file():
        raise NotFoundError(f"There is no file {source}.")
    try:
        with tarfile.open(source, mode="r:") as archive:
            return _load(store, archive, source, trust, progress)
    except tarfile.TarError as error:
        raise SnapshotRefusedError(
            f"{source} is not a whole archive of a snapshot ({error}); export it again."
        ) from None


def _load(store: ObjectStore, archive: tarfile.TarFile, source: Path, trust: bool, progress: Progress) -> Imported:
    members = iter(archive)
    body = _small(archive, members, _MANIFEST, source)
    origin = _trusted(store, body, source, trust)
    job, name = origin.job, origin.name
    attempt = f"import-{hashlib.sha256(body).hexdigest()[:16]}"
    try:
        found = catalogue.find(store, job, name)
    except SnapshotRefusedError:
        found = None
    if found is not None and found.attempt == attempt:
        return Imported(found, 0, len(found.objects), published=False)
    catalogue.require_free_name(store, job, name)
    version = _version(_small(archive, members, _VERSION, source), origin, source)
    published = _publish(store, version, origin, archive, members, source)
    moved = {
        _member(item): item.model_copy(
            update={"key": f"{keys.snapshot_data(job, attempt, item.stage)}{item.path}", "source_etag": ""}
        )
        for item in origin.objects
    }
    there, skipped, done = [], 0, 0
    for member in members:
        item = moved.pop(member.name, None)
        if item is None or not member.isfile() or member.size != item.size:
            raise SnapshotRefusedError(f"{source} holds {member.name!r}, which its manifest does not; export it again.")
        version_id = _present(store, item)
        if version_id is None:
            version_id = store_member(store, archive, member, item, source)
        else:
            skipped += 1
        there.append(item.model_copy(update={"version_id": version_id}))
        done += item.size
        progress(done, origin.size)
    if moved:
        raise SnapshotRefusedError(f"{source} lacks {next(iter(moved))} and {len(moved) - 1} more; export it again.")
    order = {(item.stage, item.path): number for number, item in enumerate(origin.objects)}
    there.sort(key=lambda item: order[item.stage, item.path])
    manifest = origin.model_copy(update={"attempt": attempt, "objects": tuple(there)}).signed(store.keyring)
    integrity.verify(store, manifest)
    catalogue.commit_manifest(store, manifest)
    return Imported(manifest, len(there) - skipped, skipped, published)


def _trusted(store: ObjectStore, body: bytes, source: Path, trust: bool) -> Manifest:
    try:
        return parse(body, f"in {source.name}", store.keyring)
    except SnapshotRefusedError as error:
        if not trust:
            raise SnapshotRefusedError(
                f"{str(error).split(';')[0]}; if you know where the file comes from, import it with --trust."
            ) from None
    fields = decode(body, f"in {source.name}")
    if store.keyring.refutes(fields):  # then no operator's word helps
        raise SnapshotRefusedError(f"The manifest in {source.name} has a wrong signature: it was altered.")
    return validate(fields, f"in {source.name}")


def store_member(
    store: ObjectStore, archive: tarfile.TarFile, member: tarfile.TarInfo, item: ManifestObject, source: Path
) -> str | None:
    """Write one object of an archive; the server refuses it when its bytes are not those of the manifest."""
    content = archive.extractfile(member)
    assert content is not None
    with content, tempfile.SpooledTemporaryFile(max_size=_SPOOL) as spool:
        if _copy(content, spool) != item.sha256:
            raise SnapshotRefusedError(f"{item.stage}/{item.path} in {source} was altered; export it again.")
        spool.seek(0)
        return store.put_file(item.key, spool, item.sha256)  # type: ignore[arg-type]


def _present(store: ObjectStore, item: ManifestObject) -> str | None:
    """The version of an object that an earlier try has brought already."""
    try:
        head = store.head(item.key)
    except NotFoundError:
        return None
    return head.version_id if (head.size, head.sha256) == (item.size, item.sha256) else None


def _version(body: bytes, manifest: Manifest, source: Path) -> ArtifactManifest:
    try:
        version = ArtifactManifest.model_validate_json(body)
    except ValidationError:
        raise SnapshotRefusedError(f"{source} does not describe its version; export it again.") from None
    said = (version.job, version.version, version.artifact_sha256, version.runtime_sha256)
    if said != (manifest.job, manifest.version, manifest.artifact_sha256, manifest.runtime_sha256):
        raise SnapshotRefusedError(f"{source} holds another version than its manifest names; export it again.")
    return version


def _publish(
    store: ObjectStore,
    version: ArtifactManifest,
    manifest: Manifest,
    archive: tarfile.TarFile,
    members: Iterator[tarfile.TarInfo],
    source: Path,
) -> bool:
    """Publish the version of the archive here, unless it is; True if it was done now."""
    if version.job.startswith(SCRATCH):
        raise SnapshotRefusedError(f"{source} is of {version.job}; such names belong to restore tests, not to jobs.")
    key = keys.artifact_manifest(version.job, version.version)
    found = documents.read(store, key, ArtifactManifest)
    if found and found.value.artifact_sha256 != version.artifact_sha256:
        raise PublishedError(
            f"Version {version.version} of {version.job} is published here with other content, so this snapshot "
            "cannot be continued here; import it into another installation."
        )
    if manifest.shared_library:
        libraries.require_same(store, manifest.shared_library)
    for name, target, digest in _archives(manifest):
        member = next(members, None)
        if member is None or member.name != name or not member.isfile():
            raise SnapshotRefusedError(f"{source} lacks {name}; export it again.")
        content = archive.extractfile(member)
        assert content is not None
        with content, tempfile.SpooledTemporaryFile(max_size=_SPOOL) as spool:
            if _copy(content, spool) != digest:
                raise SnapshotRefusedError(f"{name} in {source} was altered; export it again.")
            if not found or name == _LIBRARY:
                spool.seek(0)
                store.put_file(target, spool, digest)  # type: ignore[arg-type]
    if manifest.shared_library:
        libraries.accept(store, manifest.shared_library)
    if found:
        return False
    try:
        documents.write(store, key, version, new=True)
    except ConflictError:
        return False
    return True


def _archives(manifest: Manifest) -> list[tuple[str, str, str]]:
    """What a job needs beside its state: the member's name, its key in a bucket, and its hash."""
    found = [
        ("artifact.zip", keys.artifact(manifest.job, manifest.version), manifest.artifact_sha256),
        ("runtime.zip", keys.runtime(manifest.runtime_sha256), manifest.runtime_sha256),
    ]
    if used := manifest.shared_library:
        found.append((_LIBRARY, keys.library(used.name, used.version), used.sha256))
    return found


def _small(archive: tarfile.TarFile, members: Iterator[tarfile.TarInfo], name: str, source: Path) -> bytes:
    member = next(members, None)
    if member is None or member.name != name or not member.isfile() or member.size > 256 << 20:
        raise SnapshotRefusedError(f"{source} is not an archive of a snapshot: {name} is not where it should be.")
    content = archive.extractfile(member)
    assert content is not None
    with content:
        return content.read()


def _member(item: ManifestObject) -> str:
    return f"objects/{item.stage}/{item.path}"


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    archive.addfile(info, content)


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(1 << 20):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()


def _fetched(store: ObjectStore, key: str, version_id: str | None, sha256: str) -> tuple[IO[bytes], int]:
    """One object in a temporary place, compared with its hash: the open file, which the caller closes, and its size."""
    with ExitStack() as unless_whole:
        spool: IO[bytes] = unless_whole.enter_context(tempfile.SpooledTemporaryFile(max_size=_SPOOL))
        digest = hashlib.sha256()
        try:
            for chunk in store.chunks(key, version_id):
                digest.update(chunk)
                spool.write(chunk)
        except NotFoundError:
            raise SnapshotRefusedError(f"{key} is missing; the snapshot cannot be exported.") from None
        if digest.hexdigest() != sha256:
            raise SnapshotRefusedError(f"{key} was altered; the snapshot cannot be exported.")
        size = spool.tell()
        spool.seek(0)
        unless_whole.pop_all()
        return spool, size


def _ahead(
    store: ObjectStore, items: tuple[ManifestObject, ...]
) -> Iterator[tuple[ManifestObject, tuple[IO[bytes], int]]]:
    """Objects in order, a few of them fetched in advance."""
    with ThreadPoolExecutor(_AHEAD) as pool:
        for start in range(0, len(items), _AHEAD):
            batch = items[start : start + _AHEAD]
            fetched = pool.map(lambda item: _fetched(store, item.key, item.version_id, item.sha256), batch)
            yield from zip(batch, fetched, strict=True)
