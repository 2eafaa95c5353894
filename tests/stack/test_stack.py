"""The running stack keeps its promises: private, on loopback, complete, and back after a crash."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import reach
from fresh_job import as_root
from secrecy import secrets_of
from stack import configure, lifecycle, supervision
from stack.layout import Layout
from stack.programs import GENERATOR, Traffic
from streamops.clients.kafka import Ledger
from streamops.clients.supervisor import Supervisor
from streamops.cluster import record as cluster_record
from streamops.model.errors import UnreachableError
from streamops.settings import Settings, read_pairs
from streamops.spark import submission
from streamops.spark.submitter import SparkSubmitter
from streamops.store import waiting
from streamops.store.object_store import ObjectStore

pytestmark = [pytest.mark.stack, pytest.mark.full]

NAMED_IN_THE_MANUAL = """KAFKA_BOOTSTRAP_SERVERS S3_ENDPOINT S3_ACCESS_KEY S3_SECRET_KEY S3_BUCKET INFLUX_URL INFLUX_ORG
INFLUX_TOKEN INFLUX_BUCKET SPARK_MASTER SPARK_UI AIRFLOW_URL AIRFLOW_USER AIRFLOW_PASSWORD""".split()


@pytest.fixture
def layout(stack: Settings) -> Layout:
    return Layout.find()


def until(condition: Callable[[], bool], deadline_s: float = 60) -> None:
    assert waiting.until(condition, deadline_s, 0.2), "the condition did not come true in time"


def encoded(layout: Layout) -> dict[str, bytes]:
    return {key: value.encode() for key, value in secrets_of(layout).items()}


def test_every_file_with_a_secret_is_readable_by_its_owner_only(layout: Layout) -> None:
    secrets = encoded(layout)
    assert len(secrets) >= 10
    # What servers store is their own; everything that the stack writes is looked at.
    files = [path for path in layout.home.rglob("*") if path.is_file() and layout.data not in path.parents]
    holding = []
    for path in files:
        with suppress(FileNotFoundError):  # a driver at work removes files of its own meanwhile
            body = path.read_bytes()
            holding += [path] if any(secret in body for secret in secrets.values()) else []
    assert layout.env_file in holding
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}
    assert stat.S_IMODE(layout.home.stat().st_mode) == 0o700


def test_no_secret_is_in_a_process_list_or_a_log(layout: Layout) -> None:
    secrets = encoded(layout)
    looked_at = 0
    for process in lifecycle.processes(layout):
        try:
            environment = process.environ()
            environment.pop("_SPARK_AUTH_SECRET", None)  # how Spark's worker tells its children
            shown = "\0".join([*process.cmdline(), *environment.values()]).encode()
        except psutil.Error:
            continue
        looked_at += 1
        assert [key for key, value in secrets.items() if value in shown] == [], process.name()
    assert looked_at >= 10
    logs = [path for path in layout.log.rglob("*") if path.is_file()]
    logs += [path for path in (layout.airflow / "logs").rglob("*") if path.is_file()]
    logs += [path for path in layout.node.glob("work-*/**/std*") if path.is_file()]
    assert len(logs) >= 10
    for log in logs:
        text = log.read_bytes()
        assert [key for key, value in secrets.items() if value in text] == [], log


def test_everything_listens_on_loopback_only(layout: Layout) -> None:
    listening = [
        connection.laddr
        for process in lifecycle.processes(layout)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {layout.port(name) for name in ("kafka", "minio", "influxd", "airflow", "spark-master", "supervisor")} <= {
        address.port for address in listening
    }
    assert {address.ip for address in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user, and makes networks")
def test_another_user_of_the_machine_finds_no_secret_and_another_network_no_server(layout: Layout) -> None:
    secrets = set(secrets_of(layout).values())

    def finds(*more: str, **as_user: Any) -> dict[str, Any]:
        done = subprocess.run(
            ["/usr/bin/python3", "-c", reach.PROGRAM, str(layout.home), *more], input="\n".join(secrets),
            text=True, capture_output=True, check=True, cwd="/", **as_user,
        )  # fmt: skip
        return dict(json.loads(done.stdout))

    assert set(finds()["found"]) == secrets  # whose they are
    other = finds("memory", user=65534, group=65534, extra_groups=[])
    assert (other["found"], other["looked"]["files"]) == ([], 0)

    connect = (
        "import socket, sys\nfor port in sys.argv[1:]: print(socket.socket().connect_ex(('127.0.0.1', int(port))))"
    )
    ports = [str(layout.port(name)) for name in ("kafka", "minio", "influxd", "airflow", "spark-master", "supervisor")]
    here, there = (
        subprocess.run(
            [*network, "/usr/bin/python3", "-c", connect, *ports], text=True, capture_output=True, check=True
        ).stdout.split()
        for network in ((), ("unshare", "--net", "--"))
    )
    assert set(here) == {"0"}
    assert "0" not in there


def test_the_master_takes_no_program_from_whoever_reaches_a_page(layout: Layout) -> None:
    """Spark's REST server would run any, without asking who it comes from."""
    master = psutil.Process(supervision.connect(layout).program("spark-master").pid)
    ports = {item.laddr.port for item in master.net_connections("inet") if item.status == psutil.CONN_LISTEN}
    assert ports == {layout.port("spark-master"), layout.port("spark-master-ui")}


APPLICATION = """
from pyspark.sql import SparkSession
import threading
spark = SparkSession.builder.getOrCreate()
print("UI", spark.sparkContext.uiWebUrl, spark.range(0, 100, 1, 4).repartition(4).count(), flush=True)
threading.Event().wait()
"""


@dataclass
class Cluster:
    """Spark's cluster as someone sees it who has an own copy of the submitter's settings."""

    stack: Settings
    program: Path
    conf: Path  # SPARK_CONF_DIR

    def run(self, *options: str) -> int:
        """spark-submit to its end."""
        command = [f"{self.stack.spark_home}/bin/spark-submit", "--master", self.stack.spark_master, *options]
        environment = submission.submit_environment(self.stack) | {"SPARK_CONF_DIR": str(self.conf)}
        return subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False).returncode

    def application(self) -> int:
        """An application of one's own; it ends at once when it has no say in the cluster, and else not at all."""
        return self.run("--conf", "spark.cores.max=8", "--conf", "spark.ui.port=0", str(self.program))

    def submit(self) -> int:
        """The same as a driver on the cluster, with an executor and an event log."""
        inner = ["--master", self.stack.spark_master, "--properties-file", f"{self.stack.node_dir}/spark-defaults.conf"]
        for setting in (
            *("spark.ui.port=0", "spark.cores.max=8", "spark.executor.memory=512m", "spark.eventLog.enabled=true"),
            *("spark.eventLog.compress=false", f"spark.eventLog.dir=file://{self.program.parent}"),
        ):
            inner += ["--conf", setting]
        options = ("--deploy-mode", "cluster", "--driver-memory", "512m", "--class", submission._MAIN)
        return self.run(*options, str(submission._jar(self.stack)), *inner, str(self.program))

    def end(self, driver: str) -> int:
        return self.run(*submission.end_driver_command(self.stack, driver)[3:])


def test_who_lacks_sparks_secret_runs_ends_and_retires_nothing_and_no_page_tells_it(
    layout: Layout, stack: Settings, tmp_path: Path
) -> None:
    submitter, program = SparkSubmitter(stack), tmp_path / "program.py"
    program.write_text(APPLICATION)
    secret, real = read_pairs(layout.env_file)["SPARK_SECRET"], layout.submit_conf / "spark-defaults.conf"

    def look() -> tuple[dict[str, str], set[str]]:
        found = submitter.master()
        return {driver.id: driver.state for driver in found.drivers}, {item.id for item in found.applications}

    def stranger(name: str, conf: str) -> Cluster:
        (tmp_path / name).mkdir()
        (tmp_path / name / "spark-defaults.conf").write_text(conf)
        return Cluster(stack, program, tmp_path / name)

    before = look()
    assert Cluster(stack, program, layout.submit_conf).submit() == 0
    (driver,) = look()[0].keys() - before[0].keys()
    said: list[str] = []

    def counted() -> bool:  # by an executor
        outputs = [path.read_text() for path in layout.node.glob(f"work-*/{driver}/stdout")]
        said[:] = [word for text in outputs for line in text.splitlines() for word in line.split()]
        return said[-1:] == ["100"]

    until(counted, 180)
    running = look()
    assert running[0][driver] == "RUNNING"
    none, guesses = stranger("none", ""), stranger("guesses", real.read_text().replace(secret, "0" * 64))
    with ThreadPoolExecutor(2) as pool:
        codes = [pool.submit(none.application)]
        codes += [pool.submit(who.submit) for who in (none, guesses)]
        codes += [pool.submit(who.end, driver) for who in (none, guesses)]
        assert 0 not in [code.result() for code in codes]
    httpx.post(f"{stack.spark_ui}/driver/kill/", data={"id": driver, "terminate": "true"}, timeout=60)
    httpx.post(f"{stack.spark_ui}/workers/kill/", data={"host": layout.here}, timeout=60)
    assert look() == running
    workers = [worker for worker in submitter.master().workers if worker.state != "DEAD"]
    assert {worker.state for worker in workers} == {"ALIVE"}

    (application,) = running[1] - before[1]
    own, of = said[said.index("UI") + 1], f"api/v1/applications/{application}/environment"
    pages = [f"{own}/{page}" for page in ("jobs/", "environment/", "executors/", of)]
    pages += [f"{stack.spark_ui}/{page}" for page in ("", "json/", "environment/", f"app/?appId={application}")]
    pages += [f"{worker.page}/{page}" for worker in workers for page in ("", "json/")]
    with httpx.Client(follow_redirects=True, timeout=60) as browser:  # the driver's first page compiles what draws it
        texts = {page: browser.get(page).raise_for_status().text for page in pages}
    texts |= {str(path): path.read_text() for path in tmp_path.rglob(f"*{application}*/events*")}
    assert len(texts) > len(pages)  # the event log among them
    assert [page for page, text in texts.items() if secret in text] == []
    assert [page for page, text in texts.items() if "/kill" in text] == []
    submitter.end_driver(driver)
    until(lambda: look() == before)
    submitter.end_driver(driver)  # one that is not there is let be


def test_a_second_up_changes_nothing(layout: Layout, stack: Settings) -> None:
    def pids() -> dict[str, int]:
        return {program.name: program.pid for program in lifecycle.status().programs}

    before, said = pids(), list[str]()
    assert lifecycle.up(generator=False, say=said.append) == stack
    assert pids() == before
    assert said == [f"The stack in {layout.home} is running already."]


def test_env_prints_every_endpoint_and_credential(stack: Settings) -> None:
    command = [sys.executable, "-m", "stack", "env"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = dict(line.split("=", 1) for line in lines)
    assert list(pairs) == NAMED_IN_THE_MANUAL
    assert all(pairs.values())
    assert pairs["S3_SECRET_KEY"] == stack.s3_secret_key.get_secret_value()


def test_the_bucket_keeps_old_versions(stack: Settings) -> None:
    store = ObjectStore(stack)
    store.put("stack-test/versions", b"one")
    version = store.copy("stack-test/versions", "stack-test/copy", 1).version_id
    store.put("stack-test/copy", b"two")
    assert store.get("stack-test/copy", version).body == b"one"
    ObjectStore(as_root(stack)).delete(["stack-test/versions", "stack-test/copy"])


@pytest.mark.parametrize("name", ["minio", "spark-worker-2"])
def test_a_killed_server_comes_back_by_itself(layout: Layout, stack: Settings, name: str) -> None:
    supervisor = supervision.connect(layout)
    killed = supervisor.program(name).pid
    supervisor.signal(name, "KILL")
    until(lambda: supervisor.program(name).pid not in (0, killed))
    lifecycle.up(generator=False, say=lambda _: None)  # waits until everything is ready again
    assert supervisor.program(name).state == "RUNNING"


def test_a_wrong_supervisor_password_is_refused_and_not_repeated(stack: Settings) -> None:
    pairs = read_pairs(Layout.find().env_file)
    with pytest.raises(UnreachableError) as refused:
        Supervisor(pairs["SUPERVISOR_URL"], pairs["SUPERVISOR_USER"], "not-the-password").programs()
    assert "Unauthorized" in str(refused.value)
    assert "not-the-password" not in str(refused.value)


def test_the_generator_starts_at_the_asked_rate_and_stops(layout: Layout, stack: Settings) -> None:
    ledger, supervisor = Ledger.at(stack.kafka_bootstrap_servers), supervision.connect(layout)

    def count() -> int:
        return sum(ledger.end_offsets("trades").values())

    before = count()
    lifecycle.generator_start(traffic=Traffic(rate=500, symbols=10))
    try:
        until(lambda: count() > before)
        assert "500" in psutil.Process(supervisor.program(GENERATOR).pid).cmdline()
    finally:
        lifecycle.generator_stop()
    assert supervisor.program(GENERATOR).state == "STOPPED"


def test_data_secrets_and_members_outlive_a_stop_of_the_whole_stack(layout: Layout, stack: Settings) -> None:
    ObjectStore(stack).put("stack-test/kept", b"kept")
    offsets = Ledger.at(stack.kafka_bootstrap_servers).end_offsets("trades")
    cluster_record.change(ObjectStore(stack), {"nodes": ("node-1", "node-3")})  # as a scale leaves it
    lifecycle.down(say=lambda _: None)
    assert list(lifecycle.processes(layout)) == []
    try:
        again = lifecycle.up(generator=False, say=lambda _: None)
        workers = {item.name: item.state for item in lifecycle.status().programs if item.name.startswith("spark-w")}
        assert workers == {"spark-worker-1": "RUNNING", "spark-worker-2": "STOPPED", "spark-worker-3": "RUNNING"}
    finally:
        cluster_record.change(ObjectStore(stack), {"nodes": ()})
        lifecycle.up(generator=False, say=lambda _: None)
        supervision.connect(layout).stop("spark-worker-3")
    assert again == stack
    assert ObjectStore(again).get("stack-test/kept").body == b"kept"
    assert Ledger.at(again.kafka_bootstrap_servers).end_offsets("trades") == offsets
    ObjectStore(as_root(again)).delete(["stack-test/kept"])


def test_the_node_has_this_checkouts_bootstrap(layout: Layout) -> None:
    source = Path(configure.__file__).parents[2] / "spark_jobs" / "streamops_runtime" / "bootstrap.py"
    configure.refresh(layout)
    assert (layout.node / "bootstrap.py").read_bytes() == source.read_bytes()
