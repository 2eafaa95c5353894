"""Faults 13, 15 and 17: a server that the running job needs is away."""

from __future__ import annotations

import time

import pytest

from fresh_job import wait_for
from streamops.model.errors import UnreachableError
from streamops.model.records import State
from support import invariant, mark, wait_works

pytestmark = [pytest.mark.stack, pytest.mark.full]
OUTAGE_S = 20


def test_the_object_store_is_away(job, operator, servers, recovered):
    start = mark(job)
    before = job.record()
    servers.stop("minio")
    until = time.monotonic() + OUTAGE_S
    try:
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=r"object store at http.* did not serve .*retry"):
            operator.run("snapshot_job", job.name, snapshot="never")
        assert time.monotonic() - began < 30
        wait_for(lambda: time.monotonic() > until, OUTAGE_S + 1, "the end of the outage")
    finally:
        servers.start("minio")
    began = time.monotonic()
    written = job.end()
    wait_works(job, 540, read=written)
    recovered(began)
    assert (job.record().launch, job.record().deployment) == (before.launch, before.deployment)
    invariant(job, start)


def test_a_killed_broker_comes_back_and_nothing_is_lost(job, servers, recovered):
    start, before = mark(job), job.end()
    began = time.monotonic()
    servers.kill("kafka")
    wait_for(lambda: job.end() > before + 2000, 270, "new trades")
    written = job.end()
    wait_works(job, 360, read=written)
    recovered(began)
    invariant(job, start)


def test_influxdb_is_away(job, servers, recovered):
    start = mark(job)
    servers.stop("influxd")
    until = time.monotonic() + OUTAGE_S
    try:
        wait_for(lambda: job.status().state == State.RECOVERING, 90, "the job saying that it waits")
        assert "InfluxDB" in job.status().reason
        wait_for(lambda: time.monotonic() > until, OUTAGE_S + 1, "the end of the outage")
    finally:
        servers.start("influxd")
    began = time.monotonic()
    written = job.end()
    wait_works(job, 360, read=written)
    recovered(began)
    now = job.status()
    assert now.epoch == start.epoch  # batches were retried; no driver had to die for it
    invariant(job, start)
