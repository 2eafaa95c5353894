"""One job's life on the real stack, told in order: what an operator does in its first days, and what comes between.

Each test continues where the one before it ended, so the module is run whole; after a failure the rest is not tried.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_page import AirflowPage, browser
from fresh_job import FreshJob, wait_for
from runbooks import begun, clear, ended, free, log, operation, run_to_end, states, working_job
from secrecy import canaries, database, left_by_operations, pages, secrets_of, shown
from stack.layout import Layout
from streamops import snapshots
from streamops.clients.airflow import Airflow, Run
from streamops.cluster.membership import present
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.operations.runbooks import RUNBOOKS
from streamops.settings import REPOSITORY, Settings
from streamops.store import joblogs, jobs
from streamops.versions import artifacts
from support import Operator, first_members, pythons, wait_works

pytestmark = [pytest.mark.stack, pytest.mark.ui]
RUN_S = 600  # finds what hangs
PATIENT = {"healthy_timeout_s": RUN_S, "stop_timeout_s": RUN_S}


@pytest.fixture(scope="module")
def job(stack: Settings, airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    first_members(Operator(stack))
    with working_job(stack, tmp_path_factory.mktemp("job")) as job:
        yield job
    first_members(Operator(stack))


@pytest.fixture(scope="module")
def page(stack: Settings, airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowPage]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        page = AirflowPage(driver, stack.airflow_url, REPOSITORY / "build" / "screenshots")
        page.log_in(stack.airflow_user, stack.airflow_password.get_secret_value())
        yield page


@pytest.fixture(scope="module", autouse=True)
def secrets(stack: Settings, airflow: Airflow) -> Iterator[dict[str, str]]:
    """What nobody may see, the whole story through: the stack's secrets, and some that nothing needs."""
    with canaries(Layout.find(), airflow) as planted:
        yield secrets_of(Layout.find()) | planted


@pytest.fixture(scope="module")
def failures(request: pytest.FixtureRequest) -> int:
    """How many tests had failed before this module."""
    return request.session.testsfailed


@pytest.fixture(scope="module")
def upgrade() -> list[Run]:
    """The run that brought v2 into service."""
    return []


@pytest.fixture(autouse=True)
def in_order(request: pytest.FixtureRequest, failures: int) -> None:
    """What fails is shown once, not by every test that builds on it."""
    if request.session.testsfailed > failures:
        pytest.fail("the story ended with the failure above", pytrace=False)


def shown_equals_known(page: AirflowPage, airflow: Airflow, dag: str, run_id: str) -> None:
    """The states on the run's page are those of Airflow's API."""
    known = {task.task_id: task.state for task in airflow.tasks(dag, run_id)}
    wait_for(lambda: page.tasks() == known, 120, "the page showing the tasks' states")
    assert set(RUNBOOKS[dag].tasks) <= set(known)


def test_every_runbook_is_on_the_page(page):
    assert set(RUNBOOKS) <= set(page.dags())
    page.picture("airflow-dags")


def test_deploy_through_the_form(page, airflow, job, stack):
    page.open_form("deploy_job")
    assert (page.value("job"), page.value("version")) == ("", "")  # nothing is preselected
    page.fill({"job": job.name, "version": "v1", "healthy_timeout_s": str(RUN_S)})
    page.picture("airflow-deploy-form")
    run_id = page.send("deploy_job")
    run = begun(airflow, "deploy_job", run_id)
    page.leave()  # drawing a run under way takes as much of the machine as the run
    ended(airflow, run, RUN_S)
    page.open_run("deploy_job", run_id)
    assert page.wait_for_run(120) == "success"
    shown_equals_known(page, airflow, "deploy_job", run_id)
    page.picture("airflow-deploy-run")
    run = airflow.run("deploy_job", run_id)
    assert run.state == "success"
    assert set(states(airflow, run).values()) == {"success"}
    done = operation(job, run)
    assert done is not None
    assert (done.state, done.owner.kind, done.owner.user) == ("succeeded", "airflow", stack.airflow_user)
    assert done.id in page.log("deploy_job", run_id, "check", done.id)
    page.leave()
    assert job.runs("v1")


def test_another_version_is_not_deployed_over_it(airflow, job):
    before = job.record()
    run = run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v2"})
    assert run.state == "failed"
    assert "upgrade_job" in airflow.error(run.dag_id, run.run_id, "check")  # says what to use
    assert job.record() == before
    assert free(job)


def test_a_version_whose_state_is_not_known_to_continue_is_refused_before_anything_is_touched(airflow, job):
    unknown = job.directory.parent / "unknown"
    unknown.mkdir()
    (unknown / "trade_analyser.py").write_text((job.directory / "trade_analyser.py").read_text())
    definition = (job.directory / "v1.yaml").read_text().replace("version: v1", "version: unknown")
    (unknown / "unknown.yaml").write_text(definition)
    artifacts.publish(job.store, unknown, "unknown", check=False)  # without the plans of its state
    before = job.record()
    run = run_to_end(airflow, "upgrade_job", {"job": job.name, "version": "unknown"})
    assert run.state == "failed"
    assert "accept_loss: avg_1s" in airflow.error(run.dag_id, run.run_id, "check")
    assert "Verdict on avg_1s" in log(airflow, run, "check")
    assert states(airflow, run)["prepare"] == "upstream_failed"
    assert job.record() == before
    assert free(job)
    assert job.runs("v1")


def test_upgrade_through_the_form_under_load_while_a_second_trigger_is_skipped(page, airflow, job, upgrade):
    job.caught_up(RUN_S)
    page.open_form("upgrade_job")
    page.fill({"job": job.name, "version": "v2", "snapshot": "SavePoint1", "healthy_timeout_s": str(RUN_S)})
    page.fill({"stop_timeout_s": str(RUN_S), "probation_s": "5"})
    page.picture("airflow-upgrade-form")
    run_id = page.send("upgrade_job")
    run = begun(airflow, "upgrade_job", run_id)
    page.leave()
    wait_for(lambda: states(airflow, run).get("check") == "success", RUN_S, "the upgrade's check")
    second = run_to_end(airflow, "cancel_job", {"job": job.name})
    assert set(states(airflow, second).values()) == {"skipped"}
    assert run_id in log(airflow, second, "check")  # the owner is named
    assert operation(job, second) is None
    page.open_run("upgrade_job", run_id)
    page.picture("airflow-upgrade-under-way")
    page.leave()
    ended(airflow, run, RUN_S)
    page.open_run("upgrade_job", run_id)
    assert page.wait_for_run(120) == "success"
    shown_equals_known(page, airflow, "upgrade_job", run_id)
    page.picture("airflow-upgrade-run")

    done = operation(job, run)
    assert done is not None
    assert done.state == "succeeded"
    warm, stopped = done.steps["standby"].finished, done.steps["request_stop"].started
    assert warm is not None
    assert warm <= stopped  # the old version worked until the new one was warm
    practised = [line for line in joblogs.Reader(job.store, job.name).more() if line.logger == "warmup"]
    assert any("loading state" in line.text for line in practised)
    assert {line.level for line in practised} == {"INFO"}  # nothing was left out
    manifest = snapshots.load(job.store, job.name, "SavePoint1")
    told = page.log("upgrade_job", run_id, "switch", "SavePoint1")  # tells by itself what was done
    assert f"{len(manifest.objects):,}" in told or str(len(manifest.objects)) in told
    page.picture("airflow-upgrade-switch-log")
    page.leave()
    wait_for(lambda: job.runs("v2"), RUN_S, "v2 running")
    upgrade.append(run)


def test_clearing_a_finished_task_changes_nothing(airflow, job, upgrade):
    before = job.record()
    clear(airflow, upgrade[0], "switch")  # and all after it
    again = ended(airflow, upgrade[0], RUN_S)
    assert again.state == "success", states(airflow, again)
    assert job.record() == before
    assert job.runs("v2")


def test_a_running_job_gives_a_named_snapshot_once(airflow, job):
    before = job.record()
    assert run_to_end(airflow, "snapshot_job", {"job": job.name, "snapshot": "live"}).state == "success"
    snapshots.verify(job.store, snapshots.load(job.store, job.name, "live"))
    taken = run_to_end(airflow, "snapshot_job", {"job": job.name, "snapshot": "live"})
    assert taken.state == "failed"
    assert "live" in airflow.error(taken.dag_id, taken.run_id, "check")
    assert job.record() == before
    assert job.runs("v2")


def test_a_killed_driver_comes_back_by_itself(job):
    epoch = jobs.lease(job.store, job.name).epoch
    (driver,) = pythons(job.name)
    driver.kill()
    wait_works(job, RUN_S, epoch)
    job.caught_up(RUN_S)
    wait_for(lambda: len(pythons(job.name)) == 1, RUN_S, "one driver only")


def test_rollback_brings_the_version_before_back_with_its_state(airflow, job):
    run = run_to_end(airflow, "rollback_job", {"job": job.name, "standby": False, **PATIENT})
    assert run.state == "success", states(airflow, run)
    assert job.runs("v1")
    record = job.record()
    deployment = jobs.deployment(job.store, job.name, record.deployment)
    assert deployment.from_snapshot == f"{job.name}/SavePoint1"  # taken when v1 was replaced
    job.caught_up(RUN_S)
    report = job.recount()
    assert report.clean, report.reason


def test_the_cluster_grows_and_shrinks_under_the_job(airflow, job, stack):
    nodes = SupervisedNodes(stack)
    for size in (3, 2):
        run = run_to_end(airflow, "scale_cluster", {"size": size, **PATIENT})
        assert run.state == "success", states(airflow, run)
        assert len(present(nodes.inventory, nodes.master())) == size
        wait_works(job, RUN_S)


def test_no_page_shows_a_secret_to_operators_or_to_everybody(airflow, job, secrets):
    assert shown(secrets, pages(airflow, job)) == []


def test_cancel_stops_the_job_and_every_event_is_counted_once(airflow, job):
    job.caught_up(RUN_S)
    assert run_to_end(airflow, "cancel_job", {"job": job.name, "stop_timeout_s": RUN_S}).state == "success"
    assert job.record().desired == "stopped"
    assert free(job)
    report = job.recount()
    assert report.clean, report.reason
    assert sum(item.expected for item in report.measurements) > 100


def test_no_secret_is_in_airflow_the_bucket_or_a_command_line(airflow, job, secrets):
    assert shown(secrets, left_by_operations(airflow, job)) == []
    assert shown(secrets, database(Layout.find())) == []
