"""The servers' configuration files, written again at every start from the stack's layout and secrets."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import yaml

from stack import builds, postgres
from stack.layout import REPOSITORY, Layout
from stack.private import render_pairs, supervisor, write_private
from stack.programs import SPARE_WORKERS, WORKER_CORES, WORKERS, common_environment, kafka_jars
from streamops.cluster.nodes import Inventory
from streamops.cluster.supervised_nodes import MASTER
from streamops.model.errors import StreamOpsError
from streamops.settings import read_pairs
from streamops.spark import priority
from streamops.spark.submission import GIVES_WAY


def write_all(layout: Layout, pairs: dict[str, str]) -> None:
    """Write every server's configuration; files with a secret are private."""
    for directory in (layout.log, layout.run, layout.data / "minio", layout.data / "influxdb", layout.airflow):
        directory.mkdir(parents=True, exist_ok=True)
    kafka = "".join(f"{key}={value}\n" for key, value in kafka_settings(layout).items())
    (layout.run / "kafka.properties").write_text(kafka)
    root = {key: pairs[key] for key in ("MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD")}
    write_private(layout.run / "minio.env", "".join(f"export {key}={value}\n" for key, value in root.items()))
    node(layout, pairs)
    inventory(layout)
    supervisors(layout, pairs)
    airflow(layout, pairs)


def format_kafka(layout: Layout, pairs: dict[str, str]) -> None:
    """Give an empty broker its storage; one that has it is left alone."""
    if (layout.data / "kafka" / "meta.properties").is_file():
        return
    java = [builds.java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", kafka_jars()]
    command = [*java, "kafka.tools.StorageTool", "format"]
    command += ["-t", pairs["KAFKA_CLUSTER_ID"], "-c", str(layout.run / "kafka.properties")]
    _run(command, layout, "kafka-format.log")


def migrate_airflow(layout: Layout, log: str | None = "airflow-migrate.log") -> None:
    """Create or upgrade Airflow's database, and its pools; the output goes to a log file, or to the caller's own."""
    commands = [["db", "migrate"], ["pools", "import", str(pools(layout))]]
    _run([sys.executable, "-c", _AIRFLOW_COMMANDS, json.dumps(commands)], layout, log)


# In one process: importing Airflow takes longer than any of these commands.
_AIRFLOW_COMMANDS = """
import json, sys
from airflow.__main__ import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["airflow", *arguments]
    main()
"""
# Tasks that run at the same time, each a process. The pools keep some of them for what heals (docs/adr/0036): so many
# drivers are submitted at once, each in some seconds and with some hundred MB.
_TASKS = {"default_pool": (4, "Every other task"), "healing": (4, "What brings back what should run: reconcile")}


def pools(layout: Layout) -> Path:
    """Airflow's pools, in a file that Airflow reads at each start of the stack."""
    return layout.airflow / "pools.json"


def _run(command: list[str], layout: Layout, log: str | None) -> None:
    environment = common_environment(layout) | {"AIRFLOW_HOME": str(layout.airflow)}
    with (layout.log / log).open("w") if log else nullcontext() as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False)
    if done.returncode:
        told = (
            f"read {layout.log / log} and run 'make up' again" if log else "read what it says above and start it again"
        )
        raise StreamOpsError(f"A first-time step of the stack failed; {told}.")


def kafka_settings(layout: Layout) -> dict[str, object]:
    """The broker's settings."""
    broker, controller = layout.port("kafka"), layout.port("kafka-controller")
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{layout.address('kafka-controller')}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{layout.bind}:{broker},CONTROLLER://{layout.bind}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{layout.address('kafka')}",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": layout.data / "kafka",
        "auto.create.topics.enable": "false",  # a mistyped topic is an error, not an empty topic
        "log.message.timestamp.type": "CreateTime",
        "log.retention.hours": 72,  # the topic is the ledger of every recount
        "log.retention.bytes": 48 << 30,
        "log.segment.bytes": 256 << 20,
        "default.replication.factor": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "metadata.max.idle.interval.ms": 5000,  # an idle broker writes a record that often, with a disk flush each
        "num.network.threads": 2,
        "num.io.threads": 4,
        "log.cleaner.dedupe.buffer.size": 16 << 20,
    }


def node(layout: Layout, pairs: dict[str, str]) -> None:
    """What every machine has that runs a Spark worker, or submits to one."""
    layout.node.mkdir(parents=True, exist_ok=True)
    submitter(layout, pairs)
    node_env(layout, pairs)
    keys = f"aws_access_key_id = {pairs['S3_JOBS_ACCESS_KEY']}\naws_secret_access_key = {pairs['S3_JOBS_SECRET_KEY']}\n"
    write_private(layout.node / "credentials", f"[default]\n{keys}")
    s3a = {
        "endpoint": pairs["S3_ENDPOINT"],
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": str(pairs["S3_ENDPOINT"].startswith("https")).lower(),
        "aws.credentials.provider": "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider",
        # Each log and each state store of a query opens the object store again, and Hadoop's own way of reading, for
        # large files of columns, then starts some sixteen threads for each: an executor had a thousand.
        "input.stream.type": "classic",
        "performance.flags": "create,mkdir",  # a checkpoint has no directories to look for before each file
    }
    settings = {f"spark.hadoop.fs.s3a.{key}": value for key, value in s3a.items()}
    settings |= {"spark.pyspark.python": sys.executable, "spark.driver.bindAddress": layout.bind}
    settings |= {"spark.driver.host": layout.here}
    _spark_defaults(layout.node, pairs, settings)
    (layout.node / "log4j2.properties").write_text(_LOGGING)
    refresh(layout)


def node_env(layout: Layout, pairs: dict[str, str]) -> None:
    """What drivers and executors are at the servers: no other identity is known on a node.

    Before the first start of InfluxDB there is no token yet, and no driver either. What a person added, which sinks
    name as their secrets, stays.
    """
    places = ("KAFKA_BOOTSTRAP_SERVERS", "S3_ENDPOINT", "S3_BUCKET", "INFLUX_URL", "INFLUX_ORG", "INFLUX_BUCKET")
    wanted = {key: pairs[key] for key in places}
    wanted |= {"S3_ACCESS_KEY": pairs["S3_JOBS_ACCESS_KEY"], "S3_SECRET_KEY": pairs["S3_JOBS_SECRET_KEY"]}
    wanted["INFLUX_TOKEN"] = layout.influx_writer.read_text() if layout.influx_writer.is_file() else ""
    path, known = layout.node / "node.env", pairs | wanted
    added = {key: value for key, value in read_pairs(path).items() if key not in known}
    write_private(path, render_pairs("Private: what drivers on this node may reach.", added | wanted))


def submitter(layout: Layout, pairs: dict[str, str]) -> None:
    """What every machine has that submits a driver."""
    _spark_defaults(layout.submit_conf, pairs, {})


def _spark_defaults(directory: Path, pairs: dict[str, str], settings: dict[str, str]) -> None:
    """Settings of every Spark process that starts with this directory, private because of the secret they share.

    All but the secret travels on to command lines; that one Spark itself keeps out of them (docs/adr/0042).
    """
    between = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": pairs["SPARK_SECRET"],
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.saslFallback": "false",
    }
    lines = "".join(f"{key} {value}\n" for key, value in (between | settings).items())
    write_private(
        directory / "spark-defaults.conf", f"# Private. Put no other secret here: it would be shown.\n{lines}"
    )


# Spark's own default is INFO for everything: several lines for each task and each poll of a source, which no one
# reads and which take a good part of a small machine's time. A query in real time is stopped in the middle of its
# batch, of which each of its tasks tells pages as of an error; one that is an error the driver tells as well.
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS}{UTC}Z %p %c{1}: %m%n%ex
logger.deploy.name = org.apache.spark.deploy
logger.deploy.level = info
logger.notifier.name = org.apache.spark.util.ErrorNotifier
logger.notifier.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.filter.aborted.type = RegexFilter
logger.utils.filter.aborted.regex = Aborting task
logger.utils.filter.aborted.onMatch = DENY
logger.utils.filter.aborted.onMismatch = NEUTRAL
logger.backend.name = org.apache.spark.executor.CoarseGrainedExecutorBackend
logger.backend.filter.ended.type = RegexFilter
logger.backend.filter.ended.regex = RECEIVED SIGNAL TERM
logger.backend.filter.ended.onMatch = DENY
logger.backend.filter.ended.onMismatch = NEUTRAL
logger.shuffle.name = org.apache.spark.shuffle.streaming
logger.shuffle.level = off
logger.tracker.name = org.apache.spark.StreamingShuffleOutputTrackerWorker
logger.tracker.level = off
logger.task.name = org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask
logger.task.level = off
logger.write.name = org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec
logger.write.level = off
logger.output.name = org.apache.hadoop.fs.s3a.S3ABlockOutputStream
logger.output.level = error
logger.broadcast.name = org.apache.spark.broadcast.TorrentBroadcast
logger.broadcast.level = off
logger.pools.name = org.apache.spark.scheduler.FairSchedulableBuilder
logger.pools.level = error
"""


def nodes(layout: Layout) -> Inventory:
    """The nodes of this stack."""
    listed = [
        {
            "name": f"node-{number}",
            "supervisor": layout.supervisor_url(program),
            "program": program,
            "page": layout.url(f"{program}-ui"),
            "cores": WORKER_CORES,
            "memory": layout.worker_memory,
            "spare": program in SPARE_WORKERS,
        }
        for number, program in enumerate(WORKERS + SPARE_WORKERS, 1)
    ]
    master = {"supervisor": layout.supervisor_url("spark-master"), "program": "spark-master"}
    return Inventory.model_validate({"master": master, "nodes": listed, "spark": metadata.version("pyspark")})


def inventory(layout: Layout) -> None:
    """The inventory of the nodes."""
    text = yaml.safe_dump(nodes(layout).model_dump(mode="json"), sort_keys=False)
    layout.nodes_file.write_text(f"# The nodes of this stack, written again at every start. No secret here.\n{text}")


def supervisors(layout: Layout, pairs: dict[str, str]) -> None:
    """The private file with the passwords of the nodes' supervisors, for who acts on nodes: no node has it."""
    known = {f"password.{name}": supervisor(name) for name in (MASTER, *nodes(layout).names())}
    secret = {key: pairs[name] for key, name in {"password": "SUPERVISOR_PASSWORD", **known}.items() if name in pairs}
    secret = {"user": pairs["SUPERVISOR_USER"]} | secret
    write_private(layout.nodes_private, render_pairs("Private: the nodes' supervisors.", secret))


def refresh(layout: Layout) -> None:
    """Bring up to date with this checkout what drivers and executors on the node are started with."""
    java = layout.node / GIVES_WAY / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f'#!/bin/sh\nexec nice -n {priority.NICE} {shlex.quote(builds.java())} "$@"\n')
    java.chmod(0o755)
    bootstrap = REPOSITORY / "spark_jobs" / "streamops_runtime" / "bootstrap.py"
    if bootstrap.is_file():
        shutil.copyfile(bootstrap, layout.node / "bootstrap.py")


def airflow(layout: Layout, pairs: dict[str, str]) -> None:
    """Airflow's private configuration: settings, login, connections."""
    passwords, connections = layout.airflow / "passwords.json", layout.airflow / "connections.json"
    write_private(passwords, json.dumps({pairs["AIRFLOW_USER"]: pairs["AIRFLOW_PASSWORD"]}))
    write_private(connections, json.dumps(_connections(layout, pairs), indent=1))
    backend = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
    arguments = json.dumps({"connections_file_path": str(connections)})
    found = {name: {"slots": slots, "description": what} for name, (slots, what) in _TASKS.items()}
    pools(layout).write_text(json.dumps(found, indent=1))
    url = layout.page("airflow")
    layout.own_dags.mkdir(parents=True, exist_ok=True)
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    folders = {"dags-folder": {}, "own": {"path": str(layout.own_dags)}}  # without a path: dags_folder
    bundles = [{"name": name, "classpath": local, "kwargs": kwargs} for name, kwargs in folders.items()]
    sections: dict[str, dict[str, object]] = {
        "core": {
            "dags_folder": REPOSITORY / "dags",
            "load_examples": False,
            "executor": "LocalExecutor",
            "parallelism": sum(slots for slots, _ in _TASKS.values()),
            "dags_are_paused_at_creation": False,
            "fernet_key": pairs["AIRFLOW_FERNET_KEY"],
            "simple_auth_manager_users": f"{pairs['AIRFLOW_USER']}:admin",
            "simple_auth_manager_passwords_file": passwords,
            "execution_api_server_url": f"{layout.url('airflow')}/execution/",
            "default_timezone": "utc",
        },
        "api": {"base_url": url, "secret_key": pairs["AIRFLOW_SECRET_KEY"], "workers": 1, "instance_name": "StreamOps"},
        "api_auth": {"jwt_secret": pairs["AIRFLOW_JWT_SECRET"]},
        "database": {"sql_alchemy_conn": pairs.get("AIRFLOW_DATABASE") or postgres.url(layout, pairs)},
        # Airflow's own switch, remote_logging, stays off: it knows providers' stores only, and refuses any other.
        "logging": {
            "base_log_folder": layout.airflow / "logs",
            "logging_config_class": "streamops_airflow.task_logs.LOGGING_CONFIG",
            "remote_log_conn_id": "streamops_logs",
            # Of each reading of a file the log would be one line more, for ever: Airflow removes none of these logs.
            "namespace_levels": "airflow.dag_processing.dagbag=WARNING",
        },
        "dag_processor": {
            "dag_bundle_config_list": json.dumps(bundles),
            "refresh_interval": 15,
            "min_file_process_interval": 300,
            "parsing_processes": 1,
        },
        # A scheduler that dies is replaced within seconds; the tasks it leaves behind are noticed soon after. What a
        # failure leaves out is passed on one task in each turn: a second between turns held a refusal up by ten.
        "scheduler": {
            "scheduler_idle_sleep_time": 0.3,
            "enable_health_check": False,
            "orphaned_tasks_check_interval": 20,
            "task_instance_heartbeat_timeout": 120,
        },
        "secrets": {"backend": backend, "backend_kwargs": arguments},
        "workers": {"secrets_backend": backend, "secrets_backend_kwargs": arguments},
        "usage_data_collection": {"enabled": False},
    }
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {str(value).replace('%', '%%')}\n" for key, value in section.items()) + "\n"
        for name, section in sections.items()
    )
    write_private(layout.airflow / "airflow.cfg", text)


def _connections(layout: Layout, pairs: dict[str, str]) -> dict[str, object]:
    host, port = pairs["SPARK_MASTER"].removeprefix("spark://").split(":")
    spark_home = pairs["SPARK_HOME"]
    return {
        "streamops_s3": {
            "conn_type": "aws",
            "login": pairs["S3_ACCESS_KEY"],
            "password": pairs["S3_SECRET_KEY"],
            "extra": {"endpoint_url": pairs["S3_ENDPOINT"], "bucket": pairs["S3_BUCKET"]},
        },
        # Its own connection, because only what removes snapshots or jobs may use it.
        "streamops_s3_retention": {
            "conn_type": "aws",
            "login": pairs["S3_RETENTION_ACCESS_KEY"],
            "password": pairs["S3_RETENTION_SECRET_KEY"],
        },
        # Airflow's own, of no installation: the logs of its tasks.
        "streamops_logs": {
            "conn_type": "aws",
            "login": pairs["S3_LOGS_ACCESS_KEY"],
            "password": pairs["S3_LOGS_SECRET_KEY"],
            "extra": {"endpoint_url": pairs["S3_ENDPOINT"], "bucket": pairs["S3_LOGS_BUCKET"]},
        },
        "streamops_spark": {
            "conn_type": "spark",
            "host": f"spark://{host}",
            "port": int(port),
            "extra": {
                "deploy-mode": "cluster",
                "spark-binary": "spark-submit",
                "spark_binary_path": str(Path(spark_home) / "bin" / "spark-submit"),
                "spark_home": spark_home,
                "spark_conf_dir": pairs["SPARK_CONF_DIR"],
                "node_dir": pairs["NODE_DIR"],
                "spark_ui": pairs["SPARK_UI"],
                "nodes_file": pairs["NODES_FILE"],
                "nodes_private_file": pairs["NODES_PRIVATE_FILE"],
            },
        },
        "streamops_kafka": {"conn_type": "kafka", "extra": {"bootstrap.servers": pairs["KAFKA_BOOTSTRAP_SERVERS"]}},
        # Its own connection, because it is no credential of a server: who has it can make snapshots that are believed.
        "streamops_snapshots": {"conn_type": "generic", "password": pairs["SNAPSHOT_KEYS"]},
        "streamops_influx": {
            "conn_type": "generic",
            "host": pairs["INFLUX_URL"],
            "login": pairs["INFLUX_ORG"],
            "password": pairs["INFLUX_TOKEN"],
            "extra": {"bucket": pairs["INFLUX_BUCKET"]},
        },
    }
