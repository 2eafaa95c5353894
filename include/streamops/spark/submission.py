"""How a driver is put on a standalone cluster: a pure function from a submission to an argument list.

Spark refuses Python applications in standalone cluster mode, but accepts SparkSubmit itself as the main class
with the Python file among its arguments; so there is an outer and an inner submission. Whatever stands here is
visible in process lists, so no secret ever does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streamops.model.definitions import ALLOWED_SPARK_CONF, ALLOWED_SPARK_CONF_TEXT, Param, Resources
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.wording import wrong_fields
from streamops.settings import Settings
from streamops.spark import jvm, priority
from streamops.store import keys

_MAIN = "org.apache.spark.deploy.SparkSubmit"
_CLIENT = "org.apache.spark.deploy.Client"
_LOOPBACK = "127.0.0.1"
# Tasks that a core runs at once. All tasks of a real-time stage run for as long as it does, most of them waiting, and
# what they hold of a worker is a slot; so workers offer this many for each core, and who asks for a core gets them.
SLOTS_PER_CORE = 8
GIVES_WAY = "gives-way"  # a Java home in a node's directory whose Java lets others come first
_READERS = ("cache", "fetchedData.cache")
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "JAVA_HOME", "TMPDIR")


@dataclass(frozen=True)
class Submission:
    """One launch of a deployment."""

    job: str
    version: str
    deployment: int
    launch: str
    artifact: str  # its key
    artifact_sha256: str
    runtime_sha256: str
    resources: Resources = field(default_factory=Resources)
    spark: dict[str, Param] = field(default_factory=dict)
    realtime: bool = False  # whether any stage runs in real time
    library: tuple[str, str] | None = None  # key and hash of the shared library's archive
    gives_way: bool = False  # whether it only tries something out, so that all else on its nodes comes first


def changed(submission: Submission, resources: Mapping[str, Any], spark: Mapping[str, Param]) -> Submission:
    """The same launch with other resources and settings than its definition says.

    Raises:
        RefusedError: a resource is none, or out of its range.
    """
    try:
        found = Resources.model_validate({**submission.resources.model_dump(), **resources})
    except ValidationError as error:
        raise RefusedError(f"The driver is not submitted: {wrong_fields(error, 'resources')}.") from None
    return replace(submission, resources=found, spark={**submission.spark, **spark})


def executor_cores(resources: Resources, spark: dict[str, Param]) -> int:
    """Cores of one executor: two share their memory and keep shuffles inside the process."""
    return int(spark.get("spark.executor.cores", min(2, resources.cores)))


def mebibytes(memory: str) -> int:
    """``800m`` and ``1g`` in MiB, with what Spark adds to neither in standalone mode."""
    return int(memory[:-1]) * (1024 if memory.endswith("g") else 1)


def spark_conf(settings: Settings, submission: Submission) -> dict[str, str]:
    """Spark settings of the application, without those of the node.

    Raises:
        RefusedError: a setting is not on the allow-list of definitions.
    """
    for key in submission.spark:
        if not ALLOWED_SPARK_CONF.fullmatch(key):
            raise RefusedError(f"Spark setting {key} is not allowed; allowed is {ALLOWED_SPARK_CONF_TEXT}.")
    resources = submission.resources
    own = {key: _text(value) for key, value in submission.spark.items() if key != "spark.executor.cores"}
    if submission.realtime:  # the tasks of all stages of a query run at once
        own["spark.scheduler.dagSchedulerType"] = "ConcurrentStageDAGScheduler"
    if submission.gives_way:  # a worker starts an executor with the Java that its environment names
        own["spark.executorEnv.JAVA_HOME"] = f"{settings.node_dir}/{GIVES_WAY}"
    return {
        "spark.cores.max": str(resources.cores * SLOTS_PER_CORE),
        "spark.executor.cores": str(executor_cores(resources, submission.spark) * SLOTS_PER_CORE),
        "spark.executor.memory": resources.executor_memory,
        "spark.executor.extraClassPath": jvm.class_path(settings.spark_home),
        "spark.executor.extraJavaOptions": jvm.executor(settings.spark_home, resources.executor_memory),
        "spark.executorEnv.PYTHONPATH": "job/code:job/deps",  # where the artifact is unpacked on executors
        "spark.default.parallelism": str(resources.cores),
        "spark.scheduler.mode": "FAIR",
        "spark.decommission.enabled": "true",  # executors on a leaving worker finish their tasks and take no new ones
        "spark.locality.wait": "0s",
        # A reader that is kept for later holds thousands of records. Catching up starts many, and each query its own.
        **{f"spark.kafka.consumer.{cache}.timeout": "20s" for cache in _READERS},
        **{f"spark.kafka.consumer.{cache}.evictorThreadRunInterval": "10s" for cache in _READERS},
        "spark.ui.port": "0",
        "spark.ui.killEnabled": "false",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "500",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.sql.streaming.ui.retainedQueries": "5",
        "spark.sql.streaming.ui.retainedProgressUpdates": "20",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.logs.rolling.strategy": "size",
        "spark.executor.logs.rolling.maxSize": "10485760",
        "spark.executor.logs.rolling.maxRetainedFiles": "3",
    } | own


def application_args(settings: Settings, submission: Submission) -> list[str]:
    """Everything after the jar: the inner submission, which runs on the node that hosts the driver."""
    conf = [part for key, value in spark_conf(settings, submission).items() for part in ("--conf", f"{key}={value}")]
    return [
        "--master", settings.spark_master,
        "--properties-file", f"{settings.node_dir}/spark-defaults.conf",
        "--name", submission.job,
        *conf,
        program(settings),
        *program_args(settings, submission),
    ]  # fmt: skip


def program(settings: Settings) -> str:
    """The Python file that every driver begins with, on the node that hosts it."""
    return f"{settings.node_dir}/bootstrap.py"


def program_args(settings: Settings, submission: Submission) -> list[str]:
    """Which launch of which deployment the driver is, and of what code."""
    library: list[str] = []
    if submission.library:
        library = ["--library", submission.library[0], "--library-sha256", submission.library[1]]
    return [
        "--job", submission.job,
        "--launch", submission.launch,
        "--deployment", str(submission.deployment),
        "--bucket", settings.s3_bucket,
        "--artifact", submission.artifact,
        "--artifact-sha256", submission.artifact_sha256,
        "--runtime", keys.runtime(submission.runtime_sha256),
        "--runtime-sha256", submission.runtime_sha256,
        "--status", keys.status(submission.job, submission.launch),
        *library,
        *(("--nice", str(priority.NICE)) if submission.gives_way else ()),
    ]  # fmt: skip


def spark_submit_command(settings: Settings, submission: Submission, binary: str = "spark-submit") -> list[str]:
    """The whole command as a list; it returns in about 8 s with the driver's id in its output.

    Args:
        binary: the name of Spark's script.

    Raises:
        NotFoundError: there is no Spark where the settings say, or no such script in it.
    """
    home, jar = Path(settings.spark_home), _jar(settings)
    script = home / "bin" / binary
    if not script.is_file():
        raise NotFoundError(f"There is no {script}; name another one in spark-binary, or leave that out.")
    return [
        str(script),
        "--master", settings.spark_master,
        "--deploy-mode", "cluster",
        "--supervise",
        "--name", f"{submission.job}/{submission.version}/{submission.launch}",
        "--driver-memory", submission.resources.driver_memory,
        "--driver-cores", str(SLOTS_PER_CORE),
        "--class", _MAIN,
        "--conf", f"spark.driver.extraClassPath={jvm.class_path(home)}",
        "--conf", f"spark.driver.extraJavaOptions={jvm.driver(home, submission.resources.driver_memory)}",
        str(jar),
        *application_args(settings, submission),
    ]  # fmt: skip


def end_driver_command(settings: Settings, driver: str) -> list[str]:
    """The command that has the master end a driver; it ends with 0 if the master held it, some 8 s later.

    Raises:
        NotFoundError: there is no Spark where the settings say.
    """
    asked = ("kill", settings.spark_master, driver)
    command = (str(Path(settings.spark_home) / "bin" / "spark-submit"), "--master", settings.spark_master)
    return [*command, "--class", _CLIENT, str(_jar(settings)), *asked]


def _jar(settings: Settings) -> Path:
    jar = next(iter(sorted((Path(settings.spark_home) / "jars").glob("spark-core_*.jar"))), None)
    if not settings.spark_home or jar is None:
        raise NotFoundError(f"There is no Spark in {settings.spark_home or 'SPARK_HOME'}; run 'make up' first.")
    return jar


def submit_environment(settings: Settings, environment: dict[str, str] | None = None) -> dict[str, str]:
    """The submitter's environment, scrubbed: all of it travels to the driver's command line.

    Args:
        environment: where the few variables that pass come from; default: this process's.
    """
    given = dict(os.environ) if environment is None else environment
    kept = {name: given[name] for name in _PASSED_ON if name in given}
    # On one machine everything stays on loopback. With several, each node knows its own address, which the submitter's
    # would take the place of.
    local = {"SPARK_LOCAL_IP": _LOOPBACK} if settings.spark_master.startswith(f"spark://{_LOOPBACK}:") else {}
    lean = {"SPARK_SUBMIT_OPTS": jvm.client(), "SPARK_LAUNCHER_OPTS": jvm.client()}
    return kept | local | lean | {"SPARK_HOME": settings.spark_home, "SPARK_CONF_DIR": settings.spark_conf_dir}


def _text(value: Param) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
