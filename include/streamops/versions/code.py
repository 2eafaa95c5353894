"""Where the code of a version is before it is published: in a directory here, or in one of a bucket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamops.model.errors import DefinitionError, NotFoundError
from streamops.settings import named_bucket
from streamops.store.object_store import ObjectStore
from streamops.versions import archives
from streamops.versions.artifacts import MAX_ARTIFACT_BYTES

BUCKET = "s3://"


@contextmanager
def directory(code: str, secret: str | None, beside: Path) -> Iterator[Path]:
    """The directory that is meant; one of a bucket is brought here for as long as the context lasts.

    Args:
        code: a path, or ``s3://BUCKET/DIRECTORY``.
        secret: what the bucket is read with.
        beside: where a path begins.

    Raises:
        NotFoundError: there is no such secret, or nothing below that place.
        DefinitionError: what lies there cannot be a job's directory.
        DeniedError, UnreachableError: the object store refuses the secret, or does not answer.
    """
    if not code.startswith(BUCKET):
        yield beside / code
        return
    bucket, _, prefix = code.removeprefix(BUCKET).partition("/")
    store, prefix = ObjectStore(named_bucket(secret or "", bucket)), f"{prefix.strip('/')}/".lstrip("/")
    with tempfile.TemporaryDirectory(prefix="streamops-code-") as temporary:
        _bring(store, code, prefix, Path(temporary))
        yield Path(temporary)


def _bring(store: ObjectStore, code: str, prefix: str, into: Path) -> None:
    found = [info for info in store.list(prefix) if not info.key.endswith("/")]
    if not found:
        raise NotFoundError(f"There is nothing in {code}; upload the job's directory there.")
    if (size := sum(info.size for info in found)) > MAX_ARTIFACT_BYTES:
        raise DefinitionError(f"{code} holds {size:,} bytes; the most is {MAX_ARTIFACT_BYTES:,}.")
    for info in found:
        path = inside(into, info.key.removeprefix(prefix))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(info.key).body)


def inside(directory: Path, name: str) -> Path:
    """Where an object lies as a file of a directory. Raises DefinitionError: it would lie elsewhere."""
    if not archives.stays_inside(name):
        raise DefinitionError(f"{name!r} in the bucket is not the name of a file in a directory; remove it there.")
    return directory / name
