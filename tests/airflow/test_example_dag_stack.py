"""The example DAGs on the real servers: runbooks between the tasks of another pipeline, and a hook in plain tasks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from fresh_job import FreshJob, publish_quickly, wait_for
from runbooks import PATIENT, RUN_S, answered, clear, ended, log, run_to_end, states, stop, working_job
from stack.layout import Layout
from streamops import snapshots
from streamops.clients.airflow import Airflow, Run
from streamops.settings import REPOSITORY, Settings
from streamops.store import jobs
from streamops_airflow import assets
from support import Operator, first_members, pythons

pytestmark = [pytest.mark.stack, pytest.mark.full]
EXAMPLES = REPOSITORY / "docs" / "examples"
RELEASE, REHEARSE = "release_clicks", "rehearse_clicks"


@pytest.fixture(scope="module")
def job(stack: Settings, airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    first_members(Operator(stack))
    with working_job(stack, tmp_path_factory.mktemp("job")) as job:
        yield job


@pytest.fixture(scope="module")
def other(job: FreshJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    """The same job under another name, with measurements of its own, on the same topic."""
    name = f"{job.name}-rehearsal"
    copy = tmp_path_factory.mktemp("other") / name
    shutil.copytree(job.directory, copy)
    definition = copy / "v2.yaml"
    text = definition.read_text().replace(f"job: {job.name}", f"job: {name}")
    definition.write_text(text.replace(f"{job.name.replace('-', '_')}_", f"{name.replace('-', '_')}_"))
    publish_quickly(job.store, copy, "v2")
    other = FreshJob(name, job.settings, job.store, copy, job.topic)
    yield other
    stop(other)


@pytest.fixture(scope="module", autouse=True)
def examples(stack: Settings, airflow: Airflow, job: FreshJob, other: FreshJob) -> Iterator[None]:
    """Copied to the user's own DAGs, with the names of this test's jobs; nobody waits for a version to be warm."""
    folder = Layout.find().own_dags
    copies = []
    patient = {**PATIENT, "stop_timeout_s": 150}
    changes = {
        'Param("clicks")': f'Param("{job.name}")',
        'Param("clicks-rehearsal")': f'Param("{other.name}")',
        'tags=["example"]': f'tags=["example"], default_args={patient}',
        'to=params["rehearsal"]': f'to=params["rehearsal"], **{PATIENT}',
        'version="{{ params.next_version }}"': 'version="{{ params.next_version }}", standby=False',
    }
    for name in (RELEASE, REHEARSE):
        text = (EXAMPLES / f"{name}.py").read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        copies.append(folder / f"{name}.py")
        copies[-1].write_text(text)
    for name in (RELEASE, REHEARSE):
        wait_for(lambda name=name: operates_on(airflow, name) == job.name, RUN_S, f"Airflow reading {name}")
    yield
    for copy in copies:
        copy.unlink()


def operates_on(airflow: Airflow, dag_id: str) -> str | None:
    """The job that an example operates on, as Airflow has read it; a stack that was kept knows it of another job."""
    if not airflow.ready(dag_id):
        return None
    return airflow._call("GET", f"/api/v2/dags/{dag_id}/details")["params"]["job"]["value"]


def runs(airflow: Airflow, dag_id: str) -> set[str]:
    return {run["dag_run_id"] for run in airflow._call("GET", f"/api/v2/dags/{dag_id}/dagRuns")["dag_runs"]}


def told(airflow: Airflow, run: Run) -> str:
    return "\n".join(f"{task}: {state}\n{log(airflow, run, task)}" for task, state in states(airflow, run).items())


def announced(airflow: Airflow, uri: str) -> list[str]:
    """The snapshots of which an asset has an event."""
    asked = {"limit": 100, "order_by": "-timestamp"}
    events = airflow._call("GET", "/api/v2/assets/events", params=asked)["asset_events"]
    return [event["extra"].get("snapshot") for event in events if event["uri"] == uri]


def test_an_asset_starts_a_pipeline_that_deploys_snapshots_and_upgrades(airflow, job):
    (campaigns,) = airflow._call("GET", "/api/v2/assets", params={"uri_pattern": "s3://marketing/campaigns"})["assets"]
    before = runs(airflow, RELEASE)
    airflow._call("POST", "/api/v2/assets/events", json={"asset_id": campaigns["id"]})
    wait_for(lambda: runs(airflow, RELEASE) - before, RUN_S, "the run that the asset starts")
    (started,) = runs(airflow, RELEASE) - before
    asked = answered(airflow, airflow.run(RELEASE, started), "approve", "Approve")
    assert asked["subject"] == f"Upgrade {job.name} to v2?"
    assert "avg_1s: kept" in asked["body"]
    assert job.runs("v1")  # while nobody had decided
    run = ended(airflow, airflow.run(RELEASE, started), 2 * RUN_S)
    assert run.state == "success", told(airflow, run)
    (kept, upgraded) = (airflow.xcom(RELEASE, run.run_id, task) for task in ("snapshot", "upgrade"))
    assert kept["snapshot"].startswith("campaigns-")
    assert (
        airflow.xcom(RELEASE, run.run_id, "report") == f"3 campaigns; v2 runs; before it, {kept['snapshot']} was kept"
    )
    snapshots.verify(job.store, snapshots.load(job.store, job.name, kept["snapshot"]))
    # The runbooks' own runs are the audit, and each names the task that asked.
    for task, runbook, found in (("snapshot", "snapshot_job", kept), ("upgrade", "upgrade_job", upgraded)):
        triggered = airflow._call("GET", f"/api/v2/dags/{runbook}/dagRuns/{found['dag_run']}")
        assert triggered["note"] == f"Triggered by task {task} of {RELEASE}/{run.run_id}"
        told_there = log(airflow, airflow.run(runbook, found["dag_run"]), "check")
        assert f"Operation {found['operation']}: {runbook} of {job.name} for " in told_there
    # Others can wait for the snapshots by an address that they know.
    uri = assets.snapshots(job.name, job.settings.s3_bucket).uri
    assert uri == f"s3://{job.settings.s3_bucket}/snapshots/{job.name}/manifests"
    assert announced(airflow, uri).count(kept["snapshot"]) == 1
    taken = airflow.run("snapshot_job", kept["dag_run"])
    clear(airflow, taken, "switch", downstream=False)
    assert ended(airflow, taken).state == "success"
    assert announced(airflow, uri).count(kept["snapshot"]) == 1
    wait_for(lambda: job.runs("v2"), RUN_S, "v2 running")
    job.caught_up(RUN_S)
    assert job.recount().clean


def test_a_refusal_comes_back_to_the_pipeline_as_one_sentence(airflow, job):
    run = run_to_end(airflow, RELEASE, {"version": "v1"})
    assert run.state == "failed"
    assert states(airflow, run)["snapshot"] == "upstream_failed"
    why = airflow.error(RELEASE, run.run_id, "deploy")
    assert f"Job {job.name} runs v2; to replace it by v1 and keep its state, use upgrade_job." in why
    assert job.runs("v2")


def test_a_plain_task_snapshots_the_running_job_and_restores_it_under_another_name(airflow, job, other):
    before = job.record()
    run = run_to_end(airflow, REHEARSE, {})
    assert run.state == "success", told(airflow, run)
    name = airflow.xcom(REHEARSE, run.run_id, "keep")
    manifest = snapshots.load(job.store, job.name, name)
    assert manifest.live
    assert manifest.dag_run == f"{REHEARSE}/{run.run_id}"
    started = jobs.deployment(other.store, other.name, airflow.xcom(REHEARSE, run.run_id, "rehearse"))
    assert started.from_snapshot == f"{job.name}/{name}"
    assert (other.record().desired, pythons(other.name)) == ("stopped", [])
    assert job.record() == before
    assert job.runs("v2")
