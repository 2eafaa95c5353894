"""What the operator's hook runs: the command, its environment, and what it reads from the answer."""

import inspect
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowTaskTerminated
from airflow.sdk.execution_time import context as context_of_tasks
from pydantic import SecretStr

from streamops.model.errors import RefusedError, StreamOpsError, UnreachableError
from streamops.settings import Settings
from streamops.spark import priority
from streamops.spark.submission import (
    GIVES_WAY,
    SLOTS_PER_CORE,
    Submission,
    program_args,
    spark_conf,
    spark_submit_command,
)
from streamops.spark.submitter import SparkSubmitter
from streamops_airflow import assets, runs
from streamops_airflow.hooks.driver_submit import DriverSubmitHook
from streamops_airflow.hooks.snapshots import SnapshotHook
from streamops_airflow.hooks.streamops import FIRST
from streamops_airflow.operators.driver_submit import REFUSED, DriverSubmitOperator, SubmitOperator
from streamops_airflow.operators.steps import StepsOperator

SECRETS = ("s3-hidden-key", "influx-hidden-token", "airflow-hidden-password")
# Stands in for spark-submit: says what it was given, then what Spark's client would say.
SPARK_SUBMIT = f"""#!{sys.executable}
import os, sys
print("ARGUMENTS", sys.argv[1:])
print("ENVIRONMENT", dict(os.environ))
print("INFO ClientEndpoint: ... submitting driver-1/v1/launch")
print("INFO ClientEndpoint: Driver successfully submitted as driver-20261121130000-0007")
sys.exit(int(os.path.exists(os.path.join(os.environ["SPARK_HOME"], "broken"))))
"""


@pytest.fixture
def settings(tmp_path):
    home = tmp_path / "spark"
    for directory in ("bin", "jars"):
        (home / directory).mkdir(parents=True)
    (home / "jars" / "spark-core_2.13-4.2.0.jar").touch()
    (home / "bin" / "spark-submit").write_text(SPARK_SUBMIT)
    (home / "bin" / "spark-submit").chmod(0o755)
    return Settings(
        kafka_bootstrap_servers="127.0.0.1:1",
        s3_endpoint="http://127.0.0.1:2",
        s3_access_key="access",
        s3_secret_key=SecretStr(SECRETS[0]),
        s3_bucket="bucket",
        influx_url="http://127.0.0.1:3",
        influx_org="org",
        influx_token=SecretStr(SECRETS[1]),
        influx_bucket="trades",
        airflow_password=SecretStr(SECRETS[2]),
        spark_master="spark://127.0.0.1:7077",
        spark_home=str(home),
        spark_conf_dir=str(tmp_path / "conf"),
        node_dir="/node",
    )


SUBMISSION = Submission("driver-1", "v1", 1, "launch-a", "artifact.zip", "a" * 64, "b" * 64)


@pytest.fixture
def connection(monkeypatch):
    """Sets the extras of the connection, and its master's port."""

    def write(port=7077, **extra):
        found = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": port, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_STREAMOPS_SPARK", json.dumps(found))

    write()
    return write


@pytest.fixture
def said(connection, settings, monkeypatch):
    """Submits with what is given, and returns the lines of the task's log."""

    def submit(**given):
        lines = []
        hook = DriverSubmitHook(settings, SUBMISSION, "streamops_spark", **given)
        monkeypatch.setattr(hook.log, "info", lines.append)
        assert hook.submit() == "driver-20261121130000-0007"  # even for a job that is called like one
        return lines

    return submit


def command(lines):
    return shlex.split(lines[0])


def test_the_command_is_the_cores_command(said, settings):
    assert command(said()) == spark_submit_command(settings, SUBMISSION)


def test_the_driver_is_supervised_on_the_cluster_with_the_master_named_twice(said):
    done = command(said())
    outer, inner = done[: done.index("/node/bootstrap.py")], done[done.index("/node/bootstrap.py") :]
    assert "--supervise" in outer
    assert outer.count("--master") == 2
    assert outer[outer.index("--deploy-mode") + 1] == "cluster"
    assert outer[outer.index("--class") + 1] == "org.apache.spark.deploy.SparkSubmit"
    assert inner[inner.index("--launch") + 1] == "launch-a"


def test_what_the_hook_is_given_is_what_is_submitted(said, settings, connection):
    connection(**{"deploy-mode": "cluster", "spark-binary": "spark3-submit"})
    home = Path(settings.spark_home)
    (home / "bin" / "spark-submit").rename(home / "bin" / "spark3-submit")
    lines = said(
        application_args=program_args(settings, SUBMISSION),
        conf={"spark.locality.wait": "3s"},
        total_executor_cores=3,
        executor_cores=1,
        executor_memory="1200m",
        driver_memory="1g",
        deploy_mode="cluster",
    )
    done = command(lines)
    assert done[0].endswith("/bin/spark3-submit")
    assert done[done.index("--driver-memory") + 1] == "1g"
    slots = {"spark.cores.max": 3 * SLOTS_PER_CORE, "spark.executor.cores": SLOTS_PER_CORE}
    for key, value in {**slots, "spark.executor.memory": "1200m", "spark.locality.wait": "3s"}.items():
        assert f"{key}={value}" in done


def test_what_is_only_tried_out_is_submitted_so_that_all_else_comes_first(settings):
    tried = replace(SUBMISSION, gives_way=True)
    assert spark_conf(settings, tried)["spark.executorEnv.JAVA_HOME"] == f"/node/{GIVES_WAY}"
    assert program_args(settings, tried)[-2:] == ["--nice", str(priority.NICE)]
    assert "spark.executorEnv.JAVA_HOME" not in spark_conf(settings, SUBMISSION)
    assert "--nice" not in program_args(settings, SUBMISSION)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"deploy_mode": "client"}, "would end with the task"),
        ({"application_args": ["--launch", "another"]}, "only the operation gives them"),
        ({"conf": {"spark.sql.shuffle.partitions": 3}}, "spark.sql.shuffle.partitions is not allowed"),
        ({"executor_memory": "much"}, "executor_memory"),
        ({"total_executor_cores": 0}, "cores"),
        ({"spark_binary": "spark2-submit"}, "spark2-submit"),
    ],
)
def test_what_would_break_a_guarantee_is_refused_in_a_sentence(said, given, says):
    with pytest.raises(StreamOpsError, match=says) as refused:
        said(**given)
    assert str(refused.value).count(". ") == 0


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"deploy-mode": "client"}, "deploy_mode client"),
        ({"port": 7078}, "names the master spark://127.0.0.1:7078"),
        ({"queue": "q"}, "has queue, which a standalone cluster has not"),
    ],
)
def test_a_connection_that_leads_elsewhere_is_refused(said, connection, extra, says):
    connection(**extra)
    with pytest.raises(RefusedError, match=says):
        said()


def test_another_program_is_refused(connection, settings):
    hook = DriverSubmitHook(settings, SUBMISSION, "streamops_spark")
    with pytest.raises(RefusedError, match=r"application other\.py: only /node/bootstrap\.py asks for the lease"):
        hook.submit("other.py")
    with pytest.raises(RefusedError, match="env"):
        hook.submit(env={})


def test_an_argument_that_an_operator_has_no_use_for_is_refused_where_the_dag_is_written():
    known = set(inspect.signature(SparkSubmitOperator.__init__).parameters) - {"self", "kwargs"}
    own = set(inspect.signature(SubmitOperator.__init__).parameters) - {"self", "kwargs"}
    assert set(REFUSED) == known - own
    assert own <= known
    with pytest.raises(RefusedError, match="jars is refused: a driver's code"):
        DriverSubmitOperator(task_id="t", jars="a.jar")
    with DAG("d", schedule=None, default_args={"yarn_queue": "q"}), pytest.raises(RefusedError, match="yarn_queue"):
        DriverSubmitOperator(task_id="t")


def test_the_operator_hands_on_what_it_is_given(connection, settings, monkeypatch):
    given = {"conf": {"spark.locality.wait": "3s"}, "executor_cores": 1, "driver_memory": "1g"}
    operator = DriverSubmitOperator(task_id="t", **given)
    monkeypatch.setattr(SnapshotHook, "settings", settings)
    monkeypatch.setattr(SnapshotHook, "services", FIRST)
    lines = []
    monkeypatch.setattr(SparkSubmitter, "submit", lambda self, what: lines.append(what) or "driver-1")
    assert operator.submit(SUBMISSION) == "driver-1"
    assert lines[0].spark == {"spark.locality.wait": "3s", "spark.executor.cores": 1}
    assert lines[0].resources.driver_memory == "1g"


def test_no_other_task_of_a_plan_submits():
    with pytest.raises(RefusedError, match="no SparkSubmitOperator, so it does not submit launch launch-a"):
        StepsOperator(task_id="switch").submit(SUBMISSION)


def test_neither_secrets_nor_the_callers_environment_reach_the_submitter(said, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "callers-secret")
    shown = "\n".join(said())
    assert "ENVIRONMENT" in shown
    for secret in (*SECRETS, "callers-secret", "SOME_TOKEN", "AIRFLOW_CONN"):
        assert secret not in shown


def test_a_failed_submission_shows_what_spark_submit_said(said, tmp_path):
    (tmp_path / "spark" / "broken").touch()
    with pytest.raises(UnreachableError, match="Driver successfully submitted"):
        said()


def test_killing_the_task_ends_the_task_and_starts_no_process(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process was started to kill the driver")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    operator = DriverSubmitOperator(task_id="submit_driver")
    with pytest.raises(SystemExit):
        operator.on_kill()


def test_what_is_rendered_holds_no_secret():
    assert set(DriverSubmitOperator.template_fields) == {"streamops_conn_id", "application", "application_args", "conf"}


@pytest.mark.parametrize("index", [-1, 2])
def test_a_task_that_was_marked_failed_submits_no_more_mapped_or_not(index):
    states = {-1: {"submit_driver": "running"}, 2: {"submit_drivers_2": "failed"}}  # as Airflow names them

    def told(dag_id, task_ids, run_ids, map_index):
        return {"run": states[map_index]}

    ti = SimpleNamespace(dag_id="d", task_id="submit_driver", run_id="run", map_index=index, get_task_states=told)
    check = runs.fence({"ti": ti})
    if index < 0:
        check("submit", "before")
    else:
        with pytest.raises(AirflowTaskTerminated, match="set to failed meanwhile; submit_jobs is left to the teardown"):
            check("submit_jobs", "before")


def test_a_wait_that_airflow_itself_ended_is_tried_again_and_the_last_time_the_reason(monkeypatch):
    told = []
    monkeypatch.setattr(StepsOperator, "failed", lambda self, context, reason: told.append(reason))
    for tries, says in ((1, 0), (3, 1)):
        ti = SimpleNamespace(try_number=tries, max_tries=2, xcom_push=lambda key, value: None)
        with pytest.raises(AirflowException, match="triggerer did not say in time"):
            StepsOperator(task_id="switch").resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": ti})
        assert len(told) == says


@pytest.mark.parametrize(("there", "told"), [([], 1), ([("other", "s")], 1), ([("sums", "s")], 0)])
def test_a_snapshot_of_which_airflow_has_an_event_is_not_announced_again(monkeypatch, there, told):
    events = [SimpleNamespace(asset=assets.snapshots(job), extra={"snapshot": name}) for job, name in there]
    asked = SimpleNamespace(after=lambda moment: events)
    monkeypatch.setattr(context_of_tasks, "InletEventsAccessor", lambda **alias: asked)
    added = []
    outlets = {assets.TAKEN: SimpleNamespace(add=lambda asset, extra: added.append(extra["snapshot"]))}
    context = {"dag_run": SimpleNamespace(run_after=datetime.now(UTC)), "outlet_events": outlets}
    assets.announce(context, "streamops", "sums", "s", 7)
    assert added == ["s"] * told
