"""A job can be given by its id: what is deployed now, whatever crashed or was restarted since."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from fakes.rig import JOB, Rig, write_env
from streamops.cli import app
from streamops.operations import receipts
from streamops.store import jobs


@pytest.fixture
def run(rig: Rig, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Run a command on the rig's object store."""
    env = tmp_path / "cli.env"
    write_env(env, rig.settings.model_copy(update={"spark_home": "/nowhere", "spark_conf_dir": "/nowhere"}))
    monkeypatch.setenv("STREAMOPS_ENV_FILE", str(env))
    return lambda *words: CliRunner().invoke(app, list(words))


@pytest.mark.full
def test_commands_take_the_id_that_jobs_shows_until_the_deployment_is_replaced(rig: Rig, run) -> None:
    first = rig.run("deploy_job", version="v1").id
    rig.commits_more()
    rig.run("cancel_job")
    (shown,) = json.loads(run("jobs", "--json").output)
    assert (shown["id"], shown["state"]) == (first, "stopped")
    assert shown["submitted"] < shown["completed"]
    assert f"id: {first}" in run("jobs", "show", first).output
    stages = json.loads(run("jobs", "show", first, "--json").output)["status"]["stages"]
    assert {stage: list(told["offsets"]) for stage, told in stages.items()} == {"a": ["events"]}
    rig.run("start_job")
    (shown,) = json.loads(run("jobs", "--json").output)
    assert (shown["id"], shown["completed"]) == (first, "-")

    assert {item["request"]["job"] for item in json.loads(run("operations", first, "--json").output)} == {JOB}
    assert f"Job {JOB} has no snapshot none" in run("snapshots", "show", f"{first}/none").output
    assert f"{JOB} is paused" in run("jobs", "pause", first, "--without-airflow").output
    assert rig.record().paused
    paused = receipts.read(rig.store, JOB, rig.record().changed_by)
    assert (paused.runbook, paused.via, paused.inputs["action"]) == ("pause_job", receipts.HERE, "pause")
    log = run("operations", "show", paused.id, "--log").output
    assert f'"job":"{JOB}","action":"pause"' in log  # as asked for
    assert "Step note of" in log
    assert f"Receipt {paused.id}: pause_job of {JOB} succeeded" in log
    assert "on that run's page" in run("operations", "show", first, "--log").output
    assert f"{JOB} is started again by itself" in run("jobs", "resume", first, "--without-airflow").output

    rig.commits_more()
    second = rig.run("upgrade_job", version="v2", snapshot="s").id
    assert jobs.named(rig.store, second) == JOB
    refused: Result = run("jobs", "pause", first)
    assert refused.exit_code == 1
    assert f"{first} is not the id of what is deployed of {JOB} now: that is {second}." in refused.output
    assert not rig.record().paused
    assert "There is no job with the id deploy_job-none" in run("logs", "deploy_job-none").output


def test_a_name_is_taken_as_it_is_and_what_is_neither_is_refused(run) -> None:
    assert "There is no job 'unknown'" in run("jobs", "show", "unknown").output
    assert "'Bad_Name' is not a job name" in run("logs", "Bad_Name").output
