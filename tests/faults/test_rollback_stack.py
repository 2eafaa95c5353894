"""Faults 16 and 40, and the way back: versions that fail in probation, rollback by hand, restore, without Airflow."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from dataclasses import replace

import psutil
import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from fresh_job import FreshJob, publish_quickly, wait_for, with_ledger
from streamops import snapshots
from streamops.model.errors import SnapshotRefusedError, UnhealthyError
from streamops.model.owner import Owner
from streamops.model.records import State
from streamops.operations import probation, receipts
from streamops.operations.follow import request as ask
from streamops.settings import REPOSITORY
from streamops.spark import checkpoints
from streamops.store import jobs, keys
from support import Operator, Servers, drivers, invariant, mark, wait_works

pytestmark = [pytest.mark.stack, pytest.mark.full]

# How each goes wrong: what is replaced in the code, what in the definition, and what its end says. The fourth way,
# a version that never starts to work, is the one of test_upgrades_stack.
_TRADES = 'trades.withWatermark("time", delay)\n        .groupBy(F.window("time", "1 second"), "symbol")'
_RAISE = 'F.raise_error(F.lit("after a while")).cast("boolean")'
_BEGUN = 'F.lit(__import__("time").time())'  # when the query was started: it commits for some seconds after each start
_RAISES = f"where(F.when(F.current_timestamp().cast('double') > {_BEGUN} + 5, {_RAISE}).otherwise(F.lit(True)))"
_AVERAGE = '.select("symbol", "cents", "trades", average('
BAD = {
    "fails": ((_TRADES, _TRADES.replace("\n", f"\n        .{_RAISES}\n", 1)), None),
    # It produces nothing, and falls behind.
    "limps": (
        (_AVERAGE, _AVERAGE.replace(".", '.where("trades < 0").', 1)),
        ("max_per_batch: 300000", "max_per_batch: 100"),
    ),
}


@pytest.fixture(scope="module")
def bad(shared: FreshJob) -> FreshJob:
    """The shared job, with versions that become healthy and then go wrong."""
    for version, (code, wiring) in BAD.items():
        directory = shared.directory.parent / f"bad-{version}"
        directory.mkdir()
        text = (shared.directory / "trade_analyser.py").read_text()
        wired = (shared.directory / "v1.yaml").read_text().replace("version: v1", f"version: {version}")
        if code:
            assert code[0] in text
            text = text.replace(*code)
        if wiring:
            assert wiring[0] in wired
            wired = wired.replace(*wiring)
        (directory / "trade_analyser.py").write_text(text)
        (directory / f"{version}.yaml").write_text(wired)
        publish_quickly(shared.store, directory, version, like="v1")
    return shared


def goes_wrong(operator: Operator, job: FreshJob, version: str, probation_s: int, why: str) -> None:
    """An upgrade whose version goes wrong in its probation, and gives way to the old one."""
    start, old = mark(job), job.record()
    request, owner, name = operator.request(
        "upgrade_job",
        job.name,
        version=version,
        snapshot=f"before-{version}-{uuid.uuid4().hex[:4]}",
        probation_s=probation_s,
        standby=False,
    )
    said = len(operator.said)
    with pytest.raises(UnhealthyError, match=why):
        operator.engine().run(request, owner, name)
    found = operator.engine().find(job.name, name)
    assert found.state == "undone"
    assert job.record().version == old.version
    assert found.undo["dismiss"].facts["events_again"] > 0
    told = "\n".join(operator.said[said:])
    assert told.index("events again") < told.index("Undo step dismiss") < told.index("It cost:")
    receipt = receipts.read(job.store, job.name, name)
    assert receipt.cost["again"]["avg_1s"] > 0
    wait_works(job, 270, start.epoch)
    invariant(job, start)


def test_a_version_that_fails_in_its_probation_gives_way_to_the_old_one(bad, job, operator, seed):
    goes_wrong(operator, job, "fails", 90, "fails repeatedly")


@pytest.mark.long
def test_a_version_that_falls_behind_or_is_silent_gives_way_to_the_old_one(bad, job, operator, seed, monkeypatch):
    """Both verdicts, from the numbers of one real deployment."""
    looks = []

    def judge(stages, **rest):
        looks.append((dict(stages), rest))
        return decide(stages, **rest)

    decide = probation.judge
    monkeypatch.setattr(probation, "judge", judge)
    goes_wrong(operator, job, "limps", 20, "falls behind")
    stages, rest = looks[-1]
    assert rest["over"]
    assert "falls behind" in decide(stages, **rest).failed
    silent = {"avg_1s": replace(stages["avg_1s"], lag=0, samples=())}  # what it wrote, had it kept up
    assert "produces nothing" in decide(silent, **rest).failed


@pytest.mark.long
def test_a_rollback_by_hand_runs_the_old_artifact_again_and_every_event_counts_once(job, operator, stack):
    start = mark(job)
    old = job.record()
    before = jobs.deployment(job.store, job.name, old.deployment)
    wanted = "v2" if old.version == "v1" else "v1"
    snapshot = f"by-hand-{uuid.uuid4().hex[:4]}"
    operator.run("upgrade_job", job.name, version=wanted, snapshot=snapshot)
    job.caught_up(360)
    asked = ask("rollback_job", job=job.name)
    said = len(operator.said)
    price = operator.engine().preview(asked, Owner(kind="cli", user="tester"))["cost"]
    assert price["again"]["avg_1s"] > 0
    assert f"{job.name.replace('-', '_')}_avg_1s" in price["rewritten"]
    assert any("events again" in line for line in operator.said[said:])
    assert job.runs(wanted)  # a dry run touches nothing
    done = operator.run("rollback_job", job.name)
    assert done.facts("check")["snapshot"] == snapshot
    assert done.facts("catch_up")["events_again"] >= price["again"]["avg_1s"]
    assert done.facts("recount")["clean"], done.facts("recount")
    now = jobs.deployment(job.store, job.name, job.record().deployment)
    assert (now.version, now.artifact_sha256, now.runtime_sha256) == (
        old.version, before.artifact_sha256, before.runtime_sha256,
    )  # fmt: skip
    text = receipts.read(job.store, job.name, done.id).model_dump_json()
    for secret in (stack.s3_secret_key, stack.influx_token, stack.airflow_password):
        assert secret.get_secret_value() not in text
    invariant(job, start)


@pytest.mark.long
def test_a_job_that_lost_an_object_fails_clearly_and_is_restored(job, operator):
    start = mark(job)
    kept = f"kept-{uuid.uuid4().hex[:4]}"
    operator.run("snapshot_job", job.name, snapshot=kept)
    job.caught_up(180)
    old = job.record()
    prefix = checkpoints.current_epoch_prefix(job.store, job.name, old.deployment)
    job.root.delete([f"{prefix}avg_1s/metadata"])
    for process in drivers(job.name):
        with contextlib.suppress(psutil.NoSuchProcess):  # one may take the other with it
            process.kill()
    wait_for(lambda: (job.status() or None) and job.status().state is State.FAILED, 540, "the job's failure")
    assert "metadata" in job.status().reason
    said = len(operator.said)
    done = operator.run("restore_job", job.name, snapshot=kept)
    told = "\n".join(operator.said[said:])
    assert told.index("events again") < told.index("Step check of")
    assert (job.record().version, job.record().deployment) == (old.version, old.last_deployment + 1)
    assert done.facts("recount")["clean"], done.facts("recount")
    invariant(job, start)


def test_a_snapshot_that_retention_has_passed_is_refused_before_the_job_is_touched(job, operator):
    kept = f"old-{uuid.uuid4().hex[:4]}"
    operator.run("snapshot_job", job.name, snapshot=kept)
    offsets = snapshots.load(job.store, job.name, kept).stages["avg_1s"].offsets["trades"]["0"]
    wait_for(lambda: job.read() > offsets, 180, "the job reading on")
    remove_before(job, offsets + 1)
    before = job.record(), jobs.lease(job.store, job.name).epoch, job.store.get(control(job)).body
    with pytest.raises(SnapshotRefusedError, match="retention"):
        operator.run("restore_job", job.name, snapshot=kept)
    assert (job.record(), jobs.lease(job.store, job.name).epoch, job.store.get(control(job)).body) == before
    assert job.runs(before[0].version)


def remove_before(job: FreshJob, offset: int) -> None:
    """What the broker's retention does: the topic begins here from now on."""
    admin = KafkaAdminClient(bootstrap_servers=job.settings.kafka_bootstrap_servers)
    try:
        admin.delete_records({TopicPartition(job.name, 0): offset})
    finally:
        admin.close()
    assert with_ledger(job.settings, lambda ledger: ledger.beginning_offsets(job.name)) == {"0": offset}


def control(job: FreshJob) -> str:
    return keys.control(job.name, str(job.record().launch))


def streamops(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(REPOSITORY / ".venv" / "bin" / "streamops"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=400, check=False)


@pytest.mark.long
def test_without_airflow_the_same_steps_run_under_the_same_lock(job, operator: Operator, servers: Servers):
    start = mark(job)
    old = job.record()
    servers.stop("airflow-api-server")
    try:
        request, owner, name = operator.request("cancel_job", job.name)
        operator.engine().begin(request, owner, name)  # a DAG run that no one can ask about
        refused = streamops("cancel", job.name, "--without-airflow")
        assert refused.returncode == 1
        assert name in refused.stderr
        assert "it is unknown whether that run is over" in refused.stderr
        assert job.record().desired == "running"
        operator.owners.dead.add(owner.run_id)
        operator.engine().abort(job.name, name)

        stopped = streamops("cancel", job.name, "--without-airflow")
        assert stopped.returncode == 0, stopped.stderr
        assert "does not answer" in stopped.stdout
        assert job.record().desired == "stopped"
        stopped_at_a_boundary(job)
        started = streamops("start", job.name, "--without-airflow", "--timeout", "300")
        assert started.returncode == 0, started.stderr
        assert (job.record().version, job.record().deployment) == (old.version, old.deployment)
        receipt = receipts.read(job.store, job.name, str(job.record().launch))
        assert receipt.via == receipts.HERE
        assert "without Airflow" in streamops("receipts", "show", receipt.id).stdout
    finally:
        servers.start("airflow-api-server")
    invariant(job, start)


def stopped_at_a_boundary(job: FreshJob) -> None:
    """The lease is free, and the final status tells exactly what the checkpoint holds, stage by stage."""
    status, lease = job.status(), jobs.lease(job.store, job.name)
    assert (status.state, lease.holder) == (State.STOPPED, None)
    prefix = checkpoints.current_epoch_prefix(job.store, job.name, job.record().deployment)
    for name, stage in status.stages.items():
        assert checkpoints.tail(job.store, f"{prefix}{name}/").offsets == stage.offsets
