"""The runbooks on the real servers, as Airflow runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fresh_job import FreshJob, wait_for
from runbooks import PATIENT, clear, ended, free, log, mark_failed, operation, run_to_end, states
from stack import lifecycle
from streamops import artifacts, keys, records
from streamops.adapters.airflow import Airflow
from streamops.errors import RefusedError
from streamops.operations import Operation, tasks
from streamops.settings import Settings
from support import Servers, pythons, works_again

pytestmark = [pytest.mark.stack, pytest.mark.full]
# Those of an upgrade that are cleared in every run; with more seeds, all are.
WITH_SIDE_EFFECTS = ("prepare", "submit_driver", "switch", "finish")
BACK = {**PATIENT, "accept_loss": ["avg_1m", "vol_1s"]}  # v1 has no such stages
COLD = {**BACK, "standby": False}  # where the warm-up of a minute is not what is looked at


@pytest.fixture(scope="module")
def job(stack: Settings, airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    job = FreshJob.publish(stack, tmp_path_factory.mktemp("job"))
    with job.trades():
        yield job
    if job.record().desired == "running":
        ended(airflow, airflow.trigger("cancel_job", {"job": job.name}))


@pytest.fixture(autouse=True)
def calm(job: FreshJob) -> None:
    """Airflow goes on with what a failed try began; the next one would only be told that the job is busy."""
    wait_for(lambda: free(job), 390, f"the end of what works on {job.name}")


@pytest.fixture
def running(airflow: Airflow, job: FreshJob) -> FreshJob:
    """The job with v2 running, whatever the tests before left."""
    record = job.record()
    if not record.deployment:
        run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v2", **PATIENT})
    elif record.desired != "running":
        run_to_end(airflow, "start_job", {"job": job.name, **PATIENT})
    wait_for(lambda: works_again(job), 360, f"{job.name} working")
    job.caught_up()
    return job


@pytest.mark.parametrize(
    "bad", [{}, {"job": "Bad Name"}, {"job": "a", "version": "../v1"}, {"job": "a", "version": ""}]
)
def test_bad_values_are_refused_before_there_is_a_run(airflow, bad):
    for runbook in ("deploy_job", "upgrade_job"):
        with pytest.raises(RefusedError, match="refused the request"):
            airflow.trigger(runbook, bad)


def test_the_whole_life_of_a_job_through_its_runbooks(airflow, job, request):
    run = run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v1", **PATIENT})
    assert run.state == "success", log(airflow, run, "check")
    assert set(states(airflow, run).values()) == {"success"}
    assert job.runs("v1")
    done = operation(job, run)
    assert done is not None
    assert done.state == "succeeded"
    assert done.owner.kind == "airflow"
    assert done.id in log(airflow, run, "check")

    # Deploying what runs changes nothing; deploying another version over it is refused and says what to use.
    before = job.record()
    assert run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v1", **PATIENT}).state == "success"
    assert (job.record().launch, job.record().deployment) == (before.launch, before.deployment)
    refused = run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v2", **PATIENT})
    assert refused.state == "failed"
    assert "upgrade_job" in airflow.error(refused.dag_id, refused.run_id, "check")
    assert job.runs("v1")

    # A second trigger while the first one works: skipped, and the owner is named.
    job.caught_up()
    first = airflow.trigger("upgrade_job", {"job": job.name, "version": "v2", "snapshot": "before-v2", **PATIENT})
    wait_for(lambda: states(airflow, first).get("check") == "success", 180, "the upgrade's check")
    second = run_to_end(airflow, "cancel_job", {"job": job.name})
    assert set(states(airflow, second).values()) == {"skipped"}
    assert first.run_id in log(airflow, second, "check")
    assert operation(job, second) is None
    first = ended(airflow, first)
    assert first.state == "success", states(airflow, first)
    assert job.runs("v2")
    assert records.read(job.store, keys.operation(job.name, operation(job, first).id), Operation)
    assert job.store.get(keys.manifest(job.name, "before-v2")).body

    # The switch's log alone tells what was done.
    told = log(airflow, first, "switch")
    assert "before-v2" in told

    # Clearing a finished task runs it and all after it again, and changes nothing.
    before = job.record()
    for task in tasks("upgrade_job") if request.config.getoption("--seeds") > 1 else WITH_SIDE_EFFECTS:
        clear(airflow, first, task)
        again = ended(airflow, first)
        assert again.state == "success", (task, states(airflow, again))
    assert (job.record().launch, job.record().deployment) == (before.launch, before.deployment)
    assert job.runs("v2")

    assert run_to_end(airflow, "snapshot_job", {"job": job.name, "snapshot": "live"}).state == "success"
    assert job.runs("v2")
    taken = run_to_end(airflow, "snapshot_job", {"job": job.name, "snapshot": "live"})
    assert taken.state == "failed"
    assert "live" in airflow.error(taken.dag_id, taken.run_id, "check")

    assert run_to_end(airflow, "cancel_job", {"job": job.name}).state == "success"
    assert job.record().desired == "stopped"
    assert run_to_end(airflow, "start_job", {"job": job.name, **PATIENT}).state == "success"
    assert job.runs("v2")
    job.caught_up()
    assert free(job)
    report = job.recount()
    assert report.clean, report.reason


def test_a_run_marked_failed_before_its_first_task_is_failed_and_holds_nothing(airflow, job):
    before = job.record()
    run = airflow.trigger("cancel_job", {"job": job.name})
    mark_failed(airflow, run)
    assert ended(airflow, run).state == "failed"
    assert states(airflow, run)["finish"] != "success"
    assert free(job)
    assert job.record() == before


def test_marking_the_run_failed_brings_the_old_version_back(airflow, running):
    job = running
    run = airflow.trigger("upgrade_job", {"job": job.name, "version": "v1", "snapshot": "interrupted", **BACK})
    wait_for(lambda: states(airflow, run).get("submit_driver") in ("running", "deferred"), 270, "the submission")
    mark_failed(airflow, run)
    run = ended(airflow, run)
    assert run.state == "failed"
    assert states(airflow, run)["release_lock"] == "success"
    assert states(airflow, run)["restore_old_version"] == "success"
    assert states(airflow, run)["outcome"] == "failed"
    wait_for(lambda: job.runs("v2"), 270, "the old version running")
    assert job.record().standby is None
    job.caught_up()
    report = job.recount()
    assert report.clean, report.reason


@pytest.mark.full
def test_a_run_marked_failed_during_the_switch_ends_with_the_old_version_running(airflow, running):
    job = running
    run = airflow.trigger("upgrade_job", {"job": job.name, "version": "v1", "snapshot": "interrupted-2", **COLD})
    wait_for(lambda: states(airflow, run).get("switch") == "running", 1200, "the switch")
    mark_failed(airflow, run)
    run = ended(airflow, run)
    assert run.state == "failed"
    wait_for(lambda: job.runs("v2"), 360, "the old version running")
    job.caught_up()
    report = job.recount()
    assert report.clean, report.reason


def spoiled(job: FreshJob, version: str, changes: dict[str, str]) -> None:
    """Publish a version of v1 whose code or definition differs."""
    directory = job.directory.parent / version
    directory.mkdir()
    for name, target in (("trade_analyser.py", "trade_analyser.py"), ("v1.yaml", f"{version}.yaml")):
        text = (job.directory / name).read_text().replace("version: v1", f"version: {version}")
        for old, new in changes.items():
            text = text.replace(old, new)
        (directory / target).write_text(text)
    artifacts.publish(job.store, directory, version)


NOT_CONTINUED = {
    "buffer": ({'F.sum("price")': 'F.count("price")'}, "buffers differ", ["avg_1s", "avg_1m", "vol_1s"]),
    "renamed": ({"avg_1s": "second"}, "name the stages in accept_loss: avg_1s", ["avg_1m", "vol_1s"]),
    "sessions": ({'F.window("time", "1 second"), "symbol"': 'F.session_window("time", "1 second"), "symbol"',
                  '"window.end"': '"session_window.end"'}, "became a session window", ["avg_1m", "vol_1s"]),
}  # fmt: skip


@pytest.mark.parametrize("version", NOT_CONTINUED)
def test_state_that_cannot_be_continued_is_refused_before_anything_is_touched(airflow, running, version):
    job = running
    changes, reason, accepted = NOT_CONTINUED[version]
    before = job.record()
    spoiled(job, version, changes)
    run = run_to_end(airflow, "upgrade_job", {"job": job.name, "version": version, "accept_loss": accepted})
    assert run.state == "failed"
    assert reason in airflow.error(run.dag_id, run.run_id, "check")
    assert "Verdict on avg_1s" in log(airflow, run, "check")
    assert states(airflow, run)["prepare"] == "upstream_failed"
    assert job.record() == before
    assert free(job)
    assert job.runs(before.version)
    job.caught_up()


@pytest.mark.full
def test_a_version_that_cannot_become_healthy_fails_the_run_and_the_old_one_runs(airflow, running):
    job = running
    definition = (job.directory / "v2.yaml").read_text().replace("version: v2", "version: broken")
    code = (job.directory / "trade_analyser.py").read_text()
    directory = Path(job.directory, "broken-copy")
    directory.mkdir()
    (directory / "broken.yaml").write_text(definition)
    (directory / "trade_analyser.py").write_text(code + "\nimport a_module_that_is_not_there\n")
    artifacts.publish(job.store, directory, "broken", check=False)
    unknown = ["avg_1s", "avg_1m", "vol_1s"]  # it was published without its plans
    values = {"job": job.name, "version": "broken", "healthy_timeout_s": 60, "accept_loss": unknown}
    run = run_to_end(airflow, "upgrade_job", values)
    assert run.state == "failed"
    assert states(airflow, run)["restore_old_version"] == "success"
    wait_for(lambda: job.runs("v2"), 270, "the old version running")
    assert free(job)


@pytest.mark.full
@pytest.mark.parametrize("with_its_tasks", [True, False], ids=["scheduler-and-its-tasks", "scheduler"])
def test_a_scheduler_that_dies_during_the_switch_leaves_a_run_that_ends_right(airflow, running, with_its_tasks):
    job, servers = running, Servers()
    old = job.record()
    run = airflow.trigger("upgrade_job", {"job": job.name, "version": "v1" if old.version == "v2" else "v2", **BACK})
    wait_for(lambda: states(airflow, run).get("switch") == "running", 1200, "the switch")
    scheduler = psutil.Process(servers.supervisor.program("airflow-scheduler").pid)
    tasks_of_it = scheduler.children(recursive=True)
    scheduler.kill()
    for process in tasks_of_it if with_its_tasks else ():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    run = ended(airflow, run)
    done = operation(job, run)
    assert run.state == "success", (states(airflow, run), done and done.reason)
    assert done.state == "succeeded"
    assert (job.record().version, job.record().launch) == (done.request.version, done.id)
    wait_for(lambda: job.runs(done.request.version), 180, "the new version running")
    job.caught_up()
    wait_for(lambda: len(pythons(job.name)) == 1, 180, "one driver only")
    assert free(job)
    report = job.recount()
    assert report.clean, report.reason


@pytest.mark.full
def test_after_a_power_cut_up_brings_the_running_job_back(running):
    job, servers = running, Servers()
    before = job.record()
    supervisor = psutil.Process(servers.supervisor.pid())
    everything = [supervisor, *supervisor.children(recursive=True)]
    for process in everything:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    lifecycle.up(servers.layout.home, generator=False)  # at once, while a large one still holds its ports
    wait_for(lambda: works_again(job), 720, f"{job.name} working")
    assert (job.record().launch, job.record().deployment) == (before.launch, before.deployment)
    job.caught_up()
    assert len(pythons(job.name)) == 1
    report = job.recount()
    assert report.clean, report.reason


def test_no_secret_is_in_any_log_or_xcom(airflow, job, stack):
    secrets = [stack.s3_secret_key, stack.s3_retention_secret_key, stack.influx_token, stack.airflow_password]
    texts = []
    for info in job.store.list(keys.operations(job.name)):
        found = records.read(job.store, info.key, Operation)
        owner = found.value.owner
        for task in airflow.tasks(owner.dag_id, owner.run_id):
            texts += airflow.log(owner.dag_id, owner.run_id, task.task_id, max(1, task.tries))
            texts.append(str(airflow.xcom(owner.dag_id, owner.run_id, task.task_id)))
    assert texts
    shown = "\n".join(texts)
    assert not [secret for secret in secrets if secret.get_secret_value() in shown]
