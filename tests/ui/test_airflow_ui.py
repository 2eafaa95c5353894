"""A person deploys and upgrades a job in Airflow's UI; what the pages show is compared with the servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow_page import AirflowPage, browser

from fresh_job import FreshJob, wait_for
from runbooks import PATIENT, begun, operation, run_to_end
from streamops import keys, records
from streamops.adapters.airflow import Airflow
from streamops.operations import RUNBOOKS, tasks
from streamops.settings import REPOSITORY, Settings
from streamops.snapshots import Manifest

pytestmark = [pytest.mark.stack, pytest.mark.ui]
PICTURES = REPOSITORY / "build" / "screenshots"


@pytest.fixture(scope="module")
def page(stack: Settings, airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowPage]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        page = AirflowPage(driver, stack.airflow_url, PICTURES)
        page.log_in(stack.airflow_user, stack.airflow_password.get_secret_value())
        yield page


@pytest.fixture(scope="module")
def job(stack: Settings, airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    job = FreshJob.publish(stack, tmp_path_factory.mktemp("job"))
    with job.trades():
        yield job
    run = airflow.trigger("cancel_job", {"job": job.name})
    wait_for(lambda: airflow.run(run.dag_id, run.run_id).finished, 120, "the end of the job")


def shown_equals_known(page: AirflowPage, airflow: Airflow, dag: str, run_id: str) -> None:
    """The states on the run's page are those of Airflow's API."""
    known = {task.task_id: task.state for task in airflow.tasks(dag, run_id)}
    wait_for(lambda: page.tasks() == known, 30, "the page showing the tasks' states")
    assert set(tasks(dag)) <= set(known)


def test_every_runbook_is_listed(page):
    assert set(RUNBOOKS) <= set(page.dags())
    page.picture("airflow-dags")


def test_deploy_through_the_form(page, airflow, job, stack):
    page.open_form("deploy_job")
    assert (page.value("job"), page.value("version")) == ("", "")  # nothing is preselected
    page.fill({"job": job.name, "version": "v1"})
    page.picture("airflow-deploy-form")
    run_id = page.send("deploy_job")
    run = begun(airflow, "deploy_job", run_id)
    page.open_run("deploy_job", run_id)
    assert page.wait_for_run(420) == "success"
    assert airflow.run("deploy_job", run.run_id).state == "success"
    shown_equals_known(page, airflow, "deploy_job", run.run_id)
    page.picture("airflow-deploy-run")
    done = operation(job, run)
    assert done.owner.user == stack.airflow_user
    assert done.id in page.log("deploy_job", run_id, "check", done.id)
    assert job.runs("v1")


@pytest.mark.full
def test_upgrade_through_the_form(page, airflow, job):
    if not job.record().deployment:
        assert run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v1", **PATIENT}).state == "success"
    job.caught_up()
    page.open_form("upgrade_job")
    page.fill({"job": job.name, "version": "v2", "snapshot": "SavePoint1"})
    page.picture("airflow-upgrade-form")
    run_id = page.send("upgrade_job")
    run = begun(airflow, "upgrade_job", run_id)
    page.open_run("upgrade_job", run_id)
    page.picture("airflow-upgrade-under-way")
    assert page.wait_for_run(480) == "success"
    shown_equals_known(page, airflow, "upgrade_job", run.run_id)
    page.picture("airflow-upgrade-run")

    manifest = records.read(job.store, keys.manifest(job.name, "SavePoint1"), Manifest).value
    log = page.log("upgrade_job", run_id, "switch", "SavePoint1")
    page.picture("airflow-upgrade-switch-log")
    assert f"{len(manifest.objects):,}" in log or str(len(manifest.objects)) in log
    assert job.record().version == "v2"
    wait_for(lambda: job.runs("v2"), 30, "v2 running")
    job.caught_up()
    report = job.recount()
    assert report.clean, report.reason
