"""Objects above what S3 copies in one request: in parts, with the same hash, and verified like the others."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from fakes import object_server
from streamops.model.errors import NotFoundError, UnreachableError
from streamops.model.manifest import ManifestObject
from streamops.settings import Settings
from streamops.snapshots import integrity
from streamops.store import object_store
from streamops.store.object_store import ObjectStore

PART = 5 << 20  # the least that S3 takes


def test_a_large_object_is_copied_in_parts_and_verified(
    bucket: Settings, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(object_store, "LARGEST_COPY", PART)
    monkeypatch.setattr(object_store, "PART", PART)
    store, root = ObjectStore(bucket), ObjectStore(object_server.as_root(bucket))
    body = random.Random(seed).randbytes(2 * PART + 1234)
    root.put("checkpoints/j/1/state.zip", body)
    target = "snapshots/j/data/attempt-1/a/state.zip"
    done = store.copy("checkpoints/j/1/state.zip", target, len(body))
    assert done.sha256 == hashlib.sha256(body).hexdigest()
    assert store.get(target, done.version_id).body == body
    item = ManifestObject(
        stage="a", path="state.zip", key=target, size=len(body), sha256=done.sha256, version_id=done.version_id
    )
    assert integrity.problem(store, item) == ""
    back = store.copy(target, "checkpoints/j/2/state.zip", len(body), done.version_id)
    assert back.sha256 == done.sha256
    root.put(target, body[:-1] + b"?")
    altered = item.model_copy(update={"version_id": root.head(target).version_id})
    assert "another SHA-256" in integrity.problem(store, altered)


def test_a_copy_in_parts_that_fails_leaves_no_upload_behind(bucket: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "LARGEST_COPY", PART)
    monkeypatch.setattr(object_store, "PART", PART)
    store, root = ObjectStore(bucket), ObjectStore(object_server.as_root(bucket))
    root.put("checkpoints/j/1/state.zip", bytes(2 * PART))
    begun = []

    def fail(params: dict[str, Any], **_: object) -> None:
        begun.append(params)
        raise EndpointConnectionError(endpoint_url="of the second part")

    store._s3.meta.events.register("before-call.s3.UploadPartCopy", fail)
    with pytest.raises(UnreachableError):
        store.copy("checkpoints/j/1/state.zip", "snapshots/j/data/attempt-1/a/state.zip", 2 * PART)
    assert begun
    client = object_server.client(object_server.as_root(bucket))
    assert not client.list_multipart_uploads(Bucket=bucket.s3_bucket, Prefix="snapshots/").get("Uploads")


def test_a_large_object_that_is_gone_is_missed_by_name(bucket: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "LARGEST_COPY", 1)
    with pytest.raises(NotFoundError, match="checkpoints/j/1/gone"):
        ObjectStore(bucket).copy("checkpoints/j/1/gone", "snapshots/j/data/attempt-1/a/gone", 10)
