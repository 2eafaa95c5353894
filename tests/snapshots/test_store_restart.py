"""Snapshots are on the object store's disk: another process of it that finds that disk finds them by their names."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from fakes import object_server
from fakes.shelf import JOB, Shelf
from streamops import snapshots
from streamops.snapshots import verification
from streamops.store import keys
from streamops.store.object_store import ObjectStore


@pytest.mark.full
def test_a_snapshot_is_found_by_its_name_and_restored_after_the_object_store_was_stopped_and_started(
    tmp_path: Path,
) -> None:
    secret = secrets.token_hex(16)
    with object_server.running(tmp_path, secret=secret) as server:
        bucket = object_server.fresh_bucket(server)
        shelf = Shelf(bucket)
        shelf.batches(3)
        taken = shelf.take("SavePoint1")
    with object_server.running(tmp_path, secret=secret) as server:
        store = ObjectStore(bucket.model_copy(update={"s3_endpoint": server.s3_endpoint}))
        assert [item.name for item in snapshots.list(store, JOB)] == ["SavePoint1"]
        manifest = snapshots.load(store, JOB, "SavePoint1")
        assert manifest == taken
        assert not verification.verify(store, JOB, "SavePoint1").problem
        snapshots.restore(store, manifest, keys.epoch(JOB, 2, 1))
        assert len(list(store.list(keys.epoch(JOB, 2, 1)))) >= len(manifest.objects)
