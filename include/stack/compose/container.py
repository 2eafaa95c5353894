"""What runs inside a container of the ``streamops`` image: ``python -m stack.compose.container SERVICE``.

A service of docker-compose.yaml is a host of its own here. Its secrets are the files below /run/secrets, only those
that it needs; from them and from the same definitions as those of the local stack it writes its configuration, and
then it becomes the server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from stack import builds, configure, programs, ready, supervision
from stack.compose import secret_files
from stack.compose.secret_files import NODES
from stack.layout import Layout
from stack.private import endpoints, render_pairs, supervisor, write_private
from streamops.cluster import nodes, record
from streamops.cluster.supervised_nodes import MASTER
from streamops.model.errors import NotFoundError, RefusedError, StreamOpsError
from streamops.settings import Settings
from streamops.store.object_store import ObjectStore

SECRETS = Path("/run/secrets")
DATABASE = "postgresql+psycopg2://airflow:{password}@postgres:5432/airflow"
_SERVICES = {  # by the names of the local stack's servers and programs
    "kafka": "kafka",
    "kafka-controller": "kafka",
    "minio": "minio",
    "minio-console": "minio",
    "influxd": "influxdb",
    "spark-master": "spark-master",
    "spark-master-ui": "spark-master",
    "airflow": "airflow-api-server",
    "fleet-beta": "fleet-beta",
}


def layout(service: str, home: Path | None = None) -> Layout:
    """The stack as the container of ``service`` sees it."""
    workers = dict(zip(programs.WORKERS + programs.SPARE_WORKERS, NODES, strict=True))
    pages = {f"{program}-ui": node for program, node in workers.items()}
    found = Layout.find(home)
    memory = os.environ.get("STREAMOPS_WORKER_MEMORY") or found.worker_memory
    return Layout(found.home, here=service, hosts=_SERVICES | workers | pages, worker_memory=memory)


def prepare(place: Layout, spark_home: Path, given: Path = SECRETS) -> dict[str, str]:
    """Endpoints, and the secrets that this container was given; kept in its private file."""
    secrets = secret_files.given(given)
    pairs = endpoints(place, spark_home) | secrets
    if "POSTGRES_PASSWORD" in secrets:
        pairs["AIRFLOW_DATABASE"] = DATABASE.format(password=secrets["POSTGRES_PASSWORD"])
    write_private(place.env_file, render_pairs("Private: endpoints and secrets of this container.", pairs))
    return pairs


def hand_out(place: Layout, _: dict[str, str]) -> None:
    """Secrets for all containers: make what is missing, ``take`` those of an earlier release, or ``show`` the logins.

    Raises:
        RefusedError: there are servers that know other secrets, or there is no such word.
    """
    match sys.argv[2:]:
        case []:
            secret_files.make(place)
            print(f"Addresses and passwords of the pages: {secret_files.SHOW}")
        case ["take"]:
            secret_files.take(place, sys.stdin)
        case ["show"]:
            print("\n".join(secret_files.pages(secret_files.read(place.secrets))))
        case words:
            raise RefusedError(f"'secrets' knows 'take' and 'show', and not {' '.join(words)!r}.")


def init(place: Layout, pairs: dict[str, str]) -> None:
    """Once at each start: bucket, identities, topic and databases, where they are missing, and what nodes there are.

    Raises:
        StreamOpsError: a server did not answer in time.
    """
    for name, probe in (("minio", ready.minio), ("influxd", ready.influxd), ("kafka", ready.kafka)):
        ready.wait(name, probe, place, 120)
    record.publish_inventory(ObjectStore(Settings.load(place.env_file)), configure.nodes(place))
    configure.airflow(place, pairs)
    configure.migrate_airflow(place, log=None)


def run(service: str) -> None:
    """Become the server of a service, or its command; returns only for ``secrets`` and ``init``.

    Raises:
        NotFoundError: there is no such service.
        StreamOpsError: what it needs did not answer in time, or was refused.
    """
    if service not in SERVICES:
        raise NotFoundError(f"There is no service {service!r}; there are {', '.join(sorted(SERVICES))}.")
    place = layout(service)
    for directory in (place.run, place.log):
        directory.mkdir(parents=True, exist_ok=True)
    SERVICES[service](place, prepare(place, builds.spark_home()))


def _master(place: Layout, pairs: dict[str, str]) -> None:
    configure.node(place, pairs)
    _supervised(place, pairs, MASTER, programs.master(place), start=_record(place).state != "stopped")


def _node(place: Layout, pairs: dict[str, str]) -> None:
    configure.node(place, pairs)
    configure.inventory(place)
    found = _record(place)
    member = found.state != "stopped" and place.here in found.wanted(nodes.load(place.nodes_file))
    _supervised(place, pairs, place.here, programs.worker(place, NODES.index(place.here) + 1), start=member)


def _record(place: Layout) -> record.ClusterRecord:
    """What should be of the cluster, read with the one identity that a node has."""
    return record.read(ObjectStore(Settings.load(place.node / "node.env")))


def _airflow(place: Layout, pairs: dict[str, str]) -> None:
    _acts_on_nodes(place, pairs)
    configure.airflow(place, pairs)
    _become(place, _own(place, programs.airflow(place)))


def _generator(place: Layout, pairs: dict[str, str]) -> None:
    rate = int(os.environ.get("STREAMOPS_RATE") or programs.Traffic.rate)
    _become(place, programs.generator(place, programs.Traffic(rate=rate)))


def _fleet(place: Layout, pairs: dict[str, str]) -> None:
    _become(place, _own(place, programs.fleet(place)))


def _command_line(place: Layout, pairs: dict[str, str]) -> None:
    _acts_on_nodes(place, pairs)
    _become(place, programs.Program("streamops", (str(builds.VENV / "bin" / "streamops"), *sys.argv[2:])))


def _acts_on_nodes(place: Layout, pairs: dict[str, str]) -> None:
    configure.submitter(place, pairs)
    configure.inventory(place)
    configure.supervisors(place, pairs)


def _own(place: Layout, listed: tuple[programs.Program, ...]) -> programs.Program:
    return next(program for program in listed if program.name == place.here)


def _supervised(place: Layout, pairs: dict[str, str], name: str, program: programs.Program, *, start: bool) -> None:
    own = pairs | {"SUPERVISOR_PASSWORD": pairs[supervisor(name)]}
    supervision.write_node_configuration(place, own, program, start=start)
    daemon = (sys.executable, "-m", "supervisor.supervisord", "-c", str(place.supervisor_conf))
    _become(place, programs.Program("supervisord", daemon))


def _become(place: Layout, program: programs.Program) -> None:
    environment = programs.common_environment(place) | dict(program.environment)
    os.execvpe(program.command[0], program.command, environment)


SERVICES: dict[str, Callable[[Layout, dict[str, str]], None]] = {
    "secrets": hand_out,
    "init": init,
    "spark-master": _master,
    **dict.fromkeys(NODES, _node),
    **dict.fromkeys(programs.AIRFLOW, _airflow),
    programs.GENERATOR: _generator,
    "cli": _command_line,
    **dict.fromkeys(programs.FLEET, _fleet),
}


if __name__ == "__main__":
    try:
        run(sys.argv[1])
    except StreamOpsError as error:
        sys.exit(str(error))
