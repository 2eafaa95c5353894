"""Start, stop and look at a stack."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from stack import builds, configure, ports, postgres, ready, supervision
from stack.layout import Layout
from stack.private import generated, prepare_env
from stack.programs import AIRFLOW, FLEET, GENERATOR, SPARE_WORKERS, WORKERS, Traffic
from streamops.clients.supervisor import Program, Supervisor
from streamops.cluster import nodes
from streamops.cluster import record as cluster_record
from streamops.model.errors import RefusedError, StreamOpsError
from streamops.settings import Settings, read_pairs
from streamops.store.object_store import ObjectStore

Say = Callable[[str], None]

# The keys that `env` prints; the file holds more, which only the stack itself needs.
PUBLISHED = (
    "KAFKA_BOOTSTRAP_SERVERS S3_ENDPOINT S3_ACCESS_KEY S3_SECRET_KEY S3_BUCKET INFLUX_URL INFLUX_ORG INFLUX_TOKEN "
    "INFLUX_BUCKET SPARK_MASTER SPARK_UI AIRFLOW_URL AIRFLOW_USER AIRFLOW_PASSWORD"
).split()


@dataclass(frozen=True)
class Status:
    """A stack at one moment; ``programs`` is empty when it is down."""

    home: Path
    running: bool
    programs: tuple[Program, ...]
    addresses: dict[str, str]


def up(home: Path | str | None = None, *, generator: bool = True, say: Say = print) -> Settings:
    """Start whatever of the stack does not run, and wait until all of it is ready.

    Raises:
        RefusedError: a port is taken by someone else, or the stack is one of an earlier version; nothing was started.
        StreamOpsError: a server did not become ready in time; names its log.
    """
    layout = Layout.find(home)
    began = time.monotonic()
    with _alone(layout):
        supervisor = supervision.running(layout)
        if supervisor and _of_an_earlier_version(layout, supervisor):
            raise RefusedError(
                f"The stack in {layout.home} was started by an earlier version: run 'make down', and this again."
            )
        if supervisor and _complete(layout, supervisor, generator):
            say(f"The stack in {layout.home} is running already.")
            return Settings.load(layout.env_file)
        if supervisor is None:
            _end_leftovers(layout, say)
            ports.check(layout)
            postgres.prepare(layout)
            try:
                pairs = prepare_env(layout, builds.spark_home())
            except builds.BuildError as error:
                raise StreamOpsError(str(error)) from error
            configure.write_all(layout, pairs)
            supervision.write_configuration(layout, pairs, supervision.traffic(layout))
            supervisor = supervision.start(layout)
        _start_all(layout, supervisor, lambda text: say(f"[{time.monotonic() - began:5.1f} s] {text}"))
        if generator:
            supervisor.start(GENERATOR)
        say(f"The stack in {layout.home} is ready after {time.monotonic() - began:.0f} s.")
    return Settings.load(layout.env_file)


def down(home: Path | str | None = None, *, say: Say = print) -> None:
    """Stop every process of the stack; data and secrets stay for the next start."""
    layout = Layout.find(home)
    with _alone(layout):
        supervisor = supervision.running(layout)
        if supervisor is None:
            _end_leftovers(layout, say)
            say(f"The stack in {layout.home} is not running.")
            return
        daemon = psutil.Process(supervisor.pid())
        # The master first: without it no driver counts as lost, so the next start brings each of them back.
        first = [GENERATOR, *FLEET, *AIRFLOW, "spark-master"]
        for stage in (first, list(WORKERS + SPARE_WORKERS)):
            with ThreadPoolExecutor(len(stage)) as pool:
                list(pool.map(lambda name: supervision.connect(layout).stop(name), stage))
        supervisor.shutdown()
        psutil.wait_procs([daemon], timeout=60)
        _end_leftovers(layout, say)
        say(f"The stack in {layout.home} is stopped.")


def status(home: Path | str | None = None) -> Status:
    """Look at the stack; changes nothing."""
    layout = Layout.find(home)
    supervisor = supervision.running(layout)
    addresses = {"Airflow": layout.url("airflow"), "Spark": layout.url("spark-master-ui")}
    addresses |= {"MinIO": layout.url("minio-console"), "InfluxDB": layout.url("influxd")}
    listed = tuple(supervisor.programs()) if supervisor else ()
    return Status(layout.home, supervisor is not None, listed, addresses)


def env(home: Path | str | None = None) -> dict[str, str]:
    """Endpoints and credentials of the stack. Raises NotFoundError when none was ever started."""
    layout = Layout.find(home)
    Settings.load(layout.env_file)
    pairs = read_pairs(layout.env_file)
    return {key: pairs[key] for key in PUBLISHED}


def generator_start(home: Path | str | None = None, traffic: Traffic | None = None) -> None:
    """Start the trade generator; one that runs with the same settings is left alone."""
    layout = Layout.find(home)
    supervisor = supervision.connect(layout)
    if traffic and traffic != supervision.traffic(layout):
        supervision.write_configuration(layout, read_pairs(layout.env_file), traffic)
        supervisor.replace(GENERATOR)
    supervisor.start(GENERATOR)


def generator_stop(home: Path | str | None = None) -> None:
    """Stop the trade generator."""
    supervision.connect(Layout.find(home)).stop(GENERATOR)


def fleet_start(home: Path | str | None = None) -> None:
    """Start the fleet's simulators; those that run are left alone."""
    supervisor = supervision.connect(Layout.find(home))
    for name in FLEET:
        supervisor.start(name)


def fleet_stop(home: Path | str | None = None) -> None:
    """Stop the fleet's simulators."""
    supervisor = supervision.connect(Layout.find(home))
    for name in FLEET:
        supervisor.stop(name)


def _of_an_earlier_version(layout: Layout, supervisor: Supervisor) -> bool:
    """Whether it lacks what this version needs, and gets only at a start: a server, the pools, or a secret."""
    has_postgres = "postgres" in {program.name for program in supervisor.programs()}
    has_secrets = set(generated()) <= set(read_pairs(layout.env_file))
    return not (has_postgres and has_secrets and configure.pools(layout).is_file())


def _complete(layout: Layout, supervisor: Supervisor, generator: bool) -> bool:
    try:
        optional = {*WORKERS, *SPARE_WORKERS, *FLEET} - set(_members(layout))
    except StreamOpsError:
        return False  # without the object store no one knows the members
    if not generator:
        optional.add(GENERATOR)
    running = (program.state == "RUNNING" for program in supervisor.programs() if program.name not in optional)
    return layout.influx_writer.is_file() and all(running)


def _members(layout: Layout) -> list[str]:
    """The workers that the last operation on the cluster left as its members; at first those that are not spare."""
    inventory = nodes.load(layout.nodes_file)
    record = cluster_record.read(ObjectStore(Settings.load(layout.env_file)))
    return [inventory.node(name).program for name in record.wanted(inventory)]


def _start_all(layout: Layout, supervisor: Supervisor, say: Say) -> None:
    """Start in the order of need, everything else at the same time; the first failure is raised."""

    def server(name: str, probe: Callable[[Layout], str], deadline_s: float) -> str:
        supervision.connect(layout).start(name)
        ready.wait(name, probe, layout, deadline_s)
        return name

    def kafka() -> str:
        configure.format_kafka(layout, read_pairs(layout.env_file))
        return server("kafka", ready.kafka, 150)

    def influxd() -> str:
        server("influxd", ready.influxd, 90)
        configure.node_env(layout, read_pairs(layout.env_file))
        return "influxd"

    def spark() -> str:
        server("spark-master", ready.master, 150)
        store.result()  # which has the record of the members
        cluster_record.publish_inventory(ObjectStore(Settings.load(layout.env_file)), nodes.load(layout.nodes_file))
        influxdb.result()  # which tells what drivers write with
        members = _members(layout)
        for worker in members:
            supervision.connect(layout).start(worker)
        ready.wait(members[0], ready.workers(len(members)), layout, 120)
        return f"spark master and {len(members)} workers"

    def airflow() -> str:
        postgres.initialise(layout, read_pairs(layout.env_file))
        supervision.connect(layout).start("postgres", wait=False)
        ready.wait("postgres", postgres.probe, layout, 90)
        configure.migrate_airflow(layout)
        for name in AIRFLOW:
            supervision.connect(layout).start(name, wait=False)
        ready.wait("airflow-api-server", ready.airflow, layout, 300)
        return "airflow"

    with ThreadPoolExecutor(5) as pool:
        store = pool.submit(server, "minio", ready.minio, 90)
        influxdb = pool.submit(influxd)
        others = [pool.submit(task) for task in (airflow, kafka, spark)]
        for done in as_completed([store, influxdb, *others]):
            say(f"{done.result()} ready")


def _end_leftovers(layout: Layout, say: Say, patience_s: float = 15) -> None:
    """End processes of this stack that outlived their supervisor, such as drivers; each carries the stack's mark."""
    left = list(processes(layout))
    if not left:
        return
    say(f"Ending {len(left)} left-over process(es) of the stack.")
    for process in left:
        process.terminate()
    _, stubborn = psutil.wait_procs(left, timeout=patience_s)
    for process in stubborn:
        process.kill()
    psutil.wait_procs(stubborn, timeout=5)


def processes(layout: Layout) -> Iterator[psutil.Process]:
    """Processes of this stack, drivers and executors included, except the caller and its parents."""
    own = psutil.Process()
    spared = {own.pid, *(parent.pid for parent in own.parents())}
    for process in psutil.process_iter():
        try:
            if process.pid not in spared and _belongs(process, layout):
                yield process
        except (psutil.Error, OSError):
            continue  # ended, or another user's


def _belongs(process: psutil.Process, layout: Layout) -> bool:
    # PostgreSQL and Airflow write titles over their environment. The first may be another user's, which hides the rest.
    if any(postgres.name(layout) in word for word in process.cmdline()):
        return True
    if process.environ().get("STREAMOPS_STACK") == str(layout.home):
        return True
    title = (process.cmdline() or [""])[0]
    return bool(title.startswith("airflow") and process.cwd() == str(layout.run))


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """One start or stop of a stack at a time; a second caller waits."""
    layout.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (layout.home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
