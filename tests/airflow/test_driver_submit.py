"""What the operator's hook runs: the command, its environment, and what it reads from the answer."""

import subprocess
import sys

import pytest
from airflow.sdk.exceptions import AirflowException
from pydantic import SecretStr

from streamops.settings import Settings
from streamops.spark.submission import Submission, spark_submit_command
from streamops_airflow.hooks.driver_submit import DriverSubmitHook
from streamops_airflow.operators.driver_submit import DriverSubmitOperator

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


@pytest.fixture
def hook(settings, monkeypatch):
    monkeypatch.setenv(
        "AIRFLOW_CONN_STREAMOPS_SPARK", '{"conn_type": "spark", "host": "spark://127.0.0.1", "port": 7077}'
    )
    submission = Submission("driver-1", "v1", 1, "launch-a", "artifact.zip", "a" * 64, "b" * 64)
    return DriverSubmitHook(settings, submission, "streamops_spark")


def test_the_command_is_the_cores_command(hook, settings):
    submission = Submission("driver-1", "v1", 1, "launch-a", "artifact.zip", "a" * 64, "b" * 64)
    assert hook._build_spark_submit_command("") == spark_submit_command(settings, submission)


def test_the_driver_is_supervised_on_the_cluster_with_the_master_named_twice(hook):
    command = hook._build_spark_submit_command("")
    outer, inner = command[: command.index("/node/bootstrap.py")], command[command.index("/node/bootstrap.py") :]
    assert "--supervise" in outer
    assert outer.count("--master") == 2
    assert outer[outer.index("--deploy-mode") + 1] == "cluster"
    assert outer[outer.index("--class") + 1] == "org.apache.spark.deploy.SparkSubmit"
    assert inner[inner.index("--launch") + 1] == "launch-a"


def test_submitting_returns_sparks_id_even_for_a_job_that_is_called_like_one(hook):
    assert hook.submit() == "driver-20261121130000-0007"


def test_neither_secrets_nor_the_callers_environment_reach_the_submitter(hook, monkeypatch, settings):
    monkeypatch.setenv("SOME_TOKEN", "callers-secret")
    fresh = DriverSubmitHook(
        settings, Submission("j", "v1", 1, "l", "artifact.zip", "a" * 64, "b" * 64), "streamops_spark"
    )
    fresh.submit()
    shown = "\n".join(fresh._last_submit_log_lines)
    assert "ENVIRONMENT" in shown
    for secret in (*SECRETS, "callers-secret", "SOME_TOKEN", "AIRFLOW_CONN"):
        assert secret not in shown


def test_a_failed_submission_shows_what_spark_submit_said(hook, settings, tmp_path):
    (tmp_path / "spark" / "broken").touch()
    with pytest.raises(AirflowException, match="Driver successfully submitted"):
        hook.submit()


def test_killing_the_task_ends_the_task_and_starts_no_process(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process was started to kill the driver")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    operator = DriverSubmitOperator(task_id="submit_driver")
    with pytest.raises(SystemExit):
        operator.on_kill()


def test_nothing_private_of_the_operator_is_rendered():
    assert tuple(DriverSubmitOperator.template_fields) == ("streamops_conn_id",)
