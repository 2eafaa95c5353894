"""Fault 30, the object store's half: a real MinIO whose disk is full, and later is not."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import object_server
from fakes.rig import Rig
from streamops import snapshots
from streamops.model.errors import StreamOpsError, UnreachableError

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk"),
]
SIZE = "96m"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "streamops-test", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def rig(disk: Path, tmp_path: Path) -> Iterator[Rig]:
    """A job whose object store is on the small disk."""
    with object_server.running(disk) as server:
        found = Rig(object_server.fresh_bucket(server), tmp_path)
        found.publish("v1", ("a",))
        try:
            yield found
        finally:
            found.cluster.end()


def fill(place: Path) -> Path:
    """Take all that is left."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        while free := shutil.disk_usage(place).free:
            try:
                file.write(b"\0" * min(free, 1 << 20))
            except OSError:
                break
    return filler


def takes(rig: Rig) -> bool:
    try:
        rig.store.put("room", b"")
    except UnreachableError:
        return False
    return True


def test_a_full_object_store_fails_loudly_and_keeps_what_it_has(rig: Rig, disk: Path) -> None:
    rig.run("deploy_job", version="v1")
    rig.run("snapshot_job", snapshot="good")
    rig.commits_more(windows=4)
    filler = fill(disk)
    with pytest.raises(StreamOpsError) as refused:
        rig.run("snapshot_job", snapshot="never")
    assert "object store" in str(refused.value)
    assert snapshots.find(rig.store, "sums", "never") is None
    snapshots.verify(rig.store, snapshots.load(rig.store, "sums", "good"))

    launch = str(rig.record().launch)
    rig.wait(lambda: launch not in rig.cluster.alive(), "the end of the driver that cannot write")
    filler.unlink()
    rig.wait(lambda: takes(rig), "a store that knows that its disk has room")  # a driver that begins before dies too
    rig.cluster.relaunch(launch)  # as the master would
    rig.commits_more(windows=4)
    rig.run("snapshot_job", snapshot="later")
    snapshots.verify(rig.store, snapshots.load(rig.store, "sums", "later"))
    assert rig.recount("a") > 0
