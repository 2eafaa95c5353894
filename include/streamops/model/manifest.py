"""What a snapshot is: its manifest, signed, and how one is read from bytes that no one trusts yet."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from streamops.model.errors import NameRefusedError, SnapshotRefusedError
from streamops.model.names import checked
from streamops.model.names import library as reference
from streamops.model.records import LibraryUse, Offsets, StageStart
from streamops.model.signatures import FIELD, Keyring
from streamops.model.stored import Part, Stored

MAX_BYTES = 256 << 20  # of a manifest: about half a million objects


class ManifestObject(Part):
    """One object: ``path`` inside the stage's checkpoint, ``size`` in bytes, ``sha256`` in hex.

    ``key`` may lie below the prefix of an earlier snapshot of the same deployment, which copied it first.
    ``source_etag`` is that of the checkpoint's object it was copied from: by it, a later snapshot knows it again.
    """

    stage: str
    path: str
    key: str
    size: int
    sha256: str
    version_id: str | None = None
    source_etag: str = ""


class ManifestStage(Part):
    """A stage after its last committed ``batch`` (-1: none yet); ``start`` is from where its state counts."""

    batch: int = -1
    offsets: Offsets = {}
    watermark_ms: int | None = None
    query_id: str = ""
    start: StageStart


class Manifest(Stored):
    """What a snapshot is. It exists when this object exists."""

    job: str
    name: str
    attempt: str
    created: datetime
    live: bool  # taken while the job ran on
    operation: str = ""
    requested_by: str = ""
    dag_run: str = ""
    version: str
    artifact_sha256: str
    runtime_sha256: str
    shared_library: LibraryUse | None = None  # what the job imported while it made this state
    deployment: int
    epoch: int
    spark_version: str
    checkpoint_format: int = 2
    stages: dict[str, ManifestStage]
    fingerprints: dict[str, Any] = {}  # per stage, of the version that wrote the state
    objects: tuple[ManifestObject, ...]
    signature: str | None = None

    @property
    def size(self) -> int:
        """Bytes of all objects."""
        return sum(item.size for item in self.objects)

    def copied(self) -> tuple[ManifestObject, ...]:
        """The objects that this snapshot copied itself; the others it shares with earlier ones."""
        own = f"/data/{self.attempt}/"
        return tuple(item for item in self.objects if own in item.key)

    def signed(self, keyring: Keyring) -> Manifest:
        """The same with a fresh signature. Raises SignatureError: there is no key here."""
        return self.model_copy(update={FIELD: keyring.sign(json.loads(self.model_dump_json()))})


def parse(body: bytes, where: str, keyring: Keyring) -> Manifest:
    """Read a manifest, after its signature was found good; nothing else of it is looked at before that.

    Args:
        where: names it in messages.

    Raises:
        SnapshotRefusedError: it cannot be read, is not signed, or was altered.
    """
    fields = decode(body, where)
    if problem := keyring.problem(fields):
        raise SnapshotRefusedError(f"The manifest {where} {problem}; nothing was touched, use another snapshot.")
    return validate(fields, where)


def decode(body: bytes, where: str) -> dict[str, Any]:
    """The fields as they stand, trusted by no one. Raises SnapshotRefusedError."""
    try:
        fields = json.loads(body, object_pairs_hook=_once) if len(body) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise SnapshotRefusedError(f"The manifest {where} is damaged (it is no JSON object); use another snapshot.")
    return fields


def validate(fields: dict[str, Any], where: str) -> Manifest:
    """Fields as a manifest; every name and path in it is safe to build keys from. Raises SnapshotRefusedError."""
    try:
        manifest = Manifest.model_validate_json(json.dumps(fields))
        checked("job", manifest.job), checked("snapshot", manifest.name), checked("snapshot", manifest.attempt)
        for stage in manifest.stages:
            checked("stage", stage)
        if manifest.shared_library:
            reference(manifest.shared_library.label)
    except ValidationError as error:
        wrong = f"{error.error_count()} wrong fields"
    except NameRefusedError as error:
        wrong = str(error).removesuffix(".")
    else:
        odd = next((item for item in manifest.objects if not _safe(item, manifest)), None)
        if odd is None:
            return manifest
        wrong = f"object {odd.path[:80]!r} is out of place"
    raise SnapshotRefusedError(f"The manifest {where} is damaged ({wrong}); use another snapshot.")


def _safe(item: ManifestObject, manifest: Manifest) -> bool:
    parts = item.path.split("/")
    inside = item.stage in manifest.stages and all(part not in ("", ".", "..") for part in parts)
    ours = item.key.startswith(f"snapshots/{manifest.job}/data/") and ".." not in item.key.split("/")
    return inside and ours and item.size >= 0


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two fields of one name could be read differently by two readers."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field stands twice")
    return found
