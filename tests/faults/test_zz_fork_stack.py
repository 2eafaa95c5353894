"""A live snapshot of the running job, restored into a scratch deployment, gives the same results from there on."""

from __future__ import annotations

import uuid

import pytest

from fresh_job import wait_for
from streamops import snapshots
from streamops.clients.influx import Points
from streamops.model.errors import RefusedError
from streamops.recount.recounting import recount_job
from streamops.spark import checkpoints
from support import invariant, mark, pythons

pytestmark = [pytest.mark.stack, pytest.mark.long]


def watermark(job, stage: str) -> int:
    """Every window that ends by then has been written."""
    prefix = checkpoints.current_epoch_prefix(job.store, job.name, job.record().deployment)
    found = checkpoints.position(job.store, f"{prefix}{stage}/")
    return found.watermark_ms


def test_a_live_snapshot_restored_elsewhere_continues_exactly(job, other, operator):
    start = mark(job)
    before = job.record()
    name = f"live-{uuid.uuid4().hex[:6]}"
    operator.run("snapshot_job", job.name, snapshot=name)
    manifest = snapshots.load(job.store, job.name, name)
    assert manifest.live
    assert job.record() == before
    operator.run("deploy_job", other.name, version=before.version, from_snapshot=f"{job.name}/{name}", fork=True)
    try:
        # The recount of what began after the snapshot, from the ledger ...
        since = manifest.stages["avg_1s"].offsets
        wait_for(lambda: watermark(other, "avg_1s") > manifest.stages["avg_1s"].watermark_ms + 10_000, 270, "windows")
        other_end = job.end()
        wait_for(lambda: other.read() >= other_end, 270, "the fork catching up")
        report = recount_job(other.settings, other.store, other.name, since=since)
        assert report.clean, (report.reason, [item.examples for item in report.measurements])
        # ... and the windows that were open in it, whose state only the snapshot had: equal to what the first job,
        # whose own recount is clean, made of them.
        original = invariant(job, start)
        assert original.clean
        points = Points(job.settings)
        for measured in original.measurements:
            stage = manifest.stages[measured.stage]
            first, last = stage.watermark_ms + 1, min(watermark(job, measured.stage), watermark(other, measured.stage))
            tags = () if measured.stage == "vol_1s" else ("symbol",)
            theirs = measured.measurement.replace(job.name.replace("-", "_"), other.name.replace("-", "_"))
            mine = sorted(points.read(measured.measurement, first, last + 1, tags))
            assert mine
            assert sorted(points.read(theirs, first, last + 1, tags)) == mine
            assert not list(points.read(theirs, first - 3_600_000, first, tags))  # nothing was emitted again
    finally:
        operator.run("cancel_job", other.name)
    # It has state now, so starting it empty must be asked for.
    for version in ("v1", "v2"):
        with pytest.raises(RefusedError, match="from_scratch"):
            operator.run("deploy_job", other.name, version=version)
    wait_for(lambda: not pythons(other.name), 180, "the end of the fork's driver")
    assert len(pythons(job.name)) == 1
