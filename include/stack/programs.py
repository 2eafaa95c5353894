"""What supervisord runs, as data. No command line and no environment here holds a secret: servers read theirs from
private files, because both are visible in the process list."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stack import builds, postgres
from stack.layout import REPOSITORY, Layout
from streamops.model.errors import NotFoundError
from streamops.spark import jvm
from streamops.spark.submission import SLOTS_PER_CORE

WORKERS = ("spark-worker-1", "spark-worker-2")
SPARE_WORKERS = ("spark-worker-3",)  # started by scale_cluster only
WORKER_CORES = 4
AIRFLOW = ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
GENERATOR = "trade-generator"
FLEET = ("fleet-alpha", "fleet-beta")  # started by the fleet's demo only


@dataclass(frozen=True)
class Program:
    """One supervised program."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_seconds: int = 15
    whole_group: bool = True  # stop its children as well; never for a worker, whose children are the drivers
    restart: str = "true"
    stop_signal: str = "TERM"


@dataclass(frozen=True)
class Traffic:
    """What the trade generator is asked for."""

    rate: int = 10_000
    symbols: int = 100
    seed: int = 1


def programs(layout: Layout, traffic: Traffic) -> tuple[Program, ...]:
    """Every program of a stack, in the order in which a person would list them."""
    return (
        _kafka(layout),
        _minio(layout),
        _influxd(layout),
        _postgres(layout),
        master(layout),
        *(worker(layout, number) for number in range(1, len(WORKERS + SPARE_WORKERS) + 1)),
        *airflow(layout),
        generator(layout, traffic),
        *fleet(layout),
    )


def common_environment(layout: Layout) -> dict[str, str]:
    """What every program gets; the caller's own environment is not passed on."""
    inherited = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "JAVA_HOME", "SSL_CERT_FILE")
    scripts = str(Path(sys.prefix) / "bin")
    return {name: os.environ[name] for name in inherited if name in os.environ} | {
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "STREAMOPS_ENV_FILE": str(layout.env_file),
        "STREAMOPS_STACK": str(layout.home),  # marks every process of this stack, drivers and executors included
        "PYTHONUNBUFFERED": "1",
    }


def kafka_jars() -> str:
    """Class path of the broker."""
    found = builds.KAFKA.find()
    if found is None:
        raise NotFoundError("Kafka is not set up; run 'make setup'.")
    return f"{found}/*"


def _kafka(layout: Layout) -> Program:
    options = ("-Xms256m", "-Xmx512m", "-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true")
    logging = ("-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS")
    java = (builds.java(), *options, *logging, "-cp", kafka_jars())
    command = (*java, "kafka.Kafka", str(layout.run / "kafka.properties"))
    return Program("kafka", command, stop_seconds=40)


def _server(server: builds.GoServer) -> str:
    found = server.find()
    if found is None:
        raise NotFoundError(f"{server.name} is not set up; run 'make setup', or name a binary with {server.variable}.")
    return str(found)


def _minio(layout: Layout) -> Program:
    addresses = [f"{layout.bind}:{layout.port(name)}" for name in ("minio", "minio-console")]
    command = (_server(builds.MINIO), "server", "--quiet", "--anonymous", "--address", addresses[0])
    return Program(
        "minio",
        (*command, "--console-address", addresses[1], str(layout.data / "minio")),
        {
            "MINIO_CONFIG_ENV_FILE": str(layout.run / "minio.env"),
            "MINIO_UPDATE": "off",
            "MINIO_CALLHOME_ENABLE": "off",
            "GOMEMLIMIT": "700MiB",
        },
    )


def _influxd(layout: Layout) -> Program:
    data = layout.data / "influxdb"
    command = (
        _server(builds.INFLUXD),
        "--reporting-disabled",
        f"--http-bind-address={layout.bind}:{layout.port('influxd')}",
        f"--bolt-path={data}/influxd.bolt",
        f"--sqlite-path={data}/influxd.sqlite",
        f"--engine-path={data}/engine",
        "--log-level=warn",
    )
    return Program("influxd", command, {"GOMEMLIMIT": "900MiB"})


def _postgres(layout: Layout) -> Program:
    return Program(
        "postgres",
        postgres.command(layout),
        stop_signal="INT",  # ends connections instead of waiting for their end
        whole_group=False,  # it ends its own children in order
    )


def spark_environment(layout: Layout) -> dict[str, str]:
    """What master and workers share."""
    return {
        "SPARK_HOME": str(builds.spark_home()),
        "SPARK_CONF_DIR": str(layout.node),
        "SPARK_LOCAL_IP": layout.here,
        "SPARK_PUBLIC_DNS": layout.here,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_CLASSPATH": jvm.class_path(builds.spark_home()),
        "SPARK_DAEMON_JAVA_OPTS": jvm.daemon(builds.spark_home()),
        "PYSPARK_PYTHON": sys.executable,
    }


def master(layout: Layout) -> Program:
    """Spark's master."""
    options = {
        "spark.deploy.recoveryMode": "FILESYSTEM",
        # Not where earlier releases had it: a driver that was submitted without the secret would die at each start.
        "spark.deploy.recoveryDirectory": str(layout.data / "spark-master-recovery"),
        "spark.deploy.recoveryTimeout": "15",  # seconds; how long a restarted master waits for its workers
        "spark.deploy.retainedDrivers": "50",
        "spark.deploy.retainedApplications": "50",
        "spark.master.rest.enabled": "false",  # whoever reaches it may run any program
        # Nor does the page, which asks nobody who he is, end drivers or retire workers.
        "spark.ui.killEnabled": "false",
        "spark.master.ui.decommission.allow.mode": "DENY",
    }
    command = ("org.apache.spark.deploy.master.Master", "--host", layout.here)
    ports = ("--port", str(layout.port("spark-master")), "--webui-port", str(layout.port("spark-master-ui")))
    return Program(
        "spark-master",
        (f"{builds.spark_home()}/bin/spark-class", *command, *ports),
        spark_environment(layout) | {"SPARK_MASTER_OPTS": _java_options(options)},
    )


def worker(layout: Layout, number: int) -> Program:
    """Spark's worker on a node; nodes count from 1."""
    options = {
        "spark.worker.cleanup.enabled": "true",
        "spark.worker.cleanup.appDataTtl": str(24 * 3600),
        "spark.decommission.enabled": "true",
        "spark.executor.logs.rolling.strategy": "size",
        "spark.executor.logs.rolling.maxSize": str(16 << 20),
        "spark.executor.logs.rolling.maxRetainedFiles": "3",
    }
    command = ("org.apache.spark.deploy.worker.Worker", "--host", layout.here)
    size = ("--cores", str(WORKER_CORES * SLOTS_PER_CORE), "--memory", layout.worker_memory)
    directory = str(layout.node / f"work-{number}")
    places = ("--webui-port", str(layout.port(f"spark-worker-{number}-ui")), "--work-dir", directory)
    return Program(
        f"spark-worker-{number}",
        (
            *(sys.executable, "-m", "stack.worker", directory),
            *(f"{builds.spark_home()}/bin/spark-class", *command, *size, *places),
            f"spark://{layout.address('spark-master')}",
        ),
        spark_environment(layout)
        | {
            "PYTHONPATH": str(REPOSITORY / "include"),
            "SPARK_WORKER_OPTS": _java_options(options),
            "SPARK_LOCAL_DIRS": str(layout.node / f"local-{number}"),
            "STREAMOPS_ENV_FILE": str(layout.node / "node.env"),
            "AWS_SHARED_CREDENTIALS_FILE": str(layout.node / "credentials"),
        },
        stop_seconds=20,
        whole_group=False,
    )


def _java_options(options: Mapping[str, str]) -> str:
    return " ".join(f"-D{key}={value}" for key, value in options.items())


def airflow(layout: Layout) -> tuple[Program, ...]:
    """Airflow's four processes."""
    environment = {"AIRFLOW_HOME": str(layout.airflow), "SPARK_HOME": str(builds.spark_home())}
    airflow = (sys.executable, "-m", "airflow")
    address = ("--host", layout.bind, "--port", str(layout.port("airflow")), "--workers", "1")
    return tuple(
        Program(name, (*airflow, *arguments), environment, stop_seconds=8)  # the API waits for clients that stay
        for name, arguments in zip(
            AIRFLOW,
            (
                ("api-server", *address),
                ("scheduler", "--skip-serve-logs"),  # task logs are read from disk; its log server binds everywhere
                ("dag-processor",),
                ("triggerer", "--skip-serve-logs"),
            ),
            strict=True,
        )
    )


def generator(layout: Layout, traffic: Traffic) -> Program:
    """The trade generator."""
    asked = ("--rate", str(traffic.rate), "--symbols", str(traffic.symbols), "--seed", str(traffic.seed))
    place = ("--bootstrap", layout.address("kafka"), "--topic", "trades")
    status = ("--status", str(layout.run / "generator-status.json"))
    return Program(
        GENERATOR,
        (sys.executable, "-m", "stack.generator", *place, *asked, *status),
        {"PYTHONPATH": str(REPOSITORY / "include")},
        restart="unexpected",
    )


def fleet(layout: Layout) -> tuple[Program, ...]:
    """The fleet's two simulators."""
    alpha = ("--directory", str(layout.fleet / "alpha"))
    places = {"alpha": alpha, "beta": ("--host", layout.bind, "--port", str(layout.port("fleet-beta")))}
    return tuple(
        Program(
            f"fleet-{name}",
            (
                *(sys.executable, "-m", f"demos.fleet.{name}", *place),
                *("--ledger", str(layout.fleet / f"{name}.jsonl"), "--speedup", "20"),
            ),
            {"PYTHONPATH": str(REPOSITORY / "include")},
            restart="unexpected",
        )
        for name, place in places.items()
    )
