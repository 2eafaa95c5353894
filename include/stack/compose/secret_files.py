"""The containers' secrets: made once inside the containers, and handed to those that need them, each in its volume.

The service ``secrets`` of docker-compose.yaml runs first at each start. Every group of services below has a volume of
its own, which this service writes and which its services mount, read-only, at ``/run/secrets``: a file for each
secret, and nothing of the others.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from stack import programs
from stack.layout import REPOSITORY, Layout
from stack.private import generated, supervisor, write_private
from streamops.cluster.supervised_nodes import MASTER
from streamops.model.errors import RefusedError

NODES = tuple(f"node-{number}" for number in range(1, len(programs.WORKERS + programs.SPARE_WORKERS) + 1))
PREFIX = "STREAMOPS_SECRET_"  # of the lines of '.env', where earlier releases kept the secrets
TAKE = "docker compose run --rm -T secrets take < .env"
SHOW = "docker compose run --rm secrets show"

_SUPERVISORS = frozenset(map(supervisor, (MASTER, *NODES)))
_OPERATIONS = {"S3_ACCESS_KEY", "S3_SECRET_KEY", "S3_RETENTION_ACCESS_KEY", "S3_RETENTION_SECRET_KEY", "SNAPSHOT_KEYS"}
_LOGS = {"S3_LOGS_ACCESS_KEY", "S3_LOGS_SECRET_KEY"}
_JOBS = {"S3_JOBS_ACCESS_KEY", "S3_JOBS_SECRET_KEY"}
_SPARK = _JOBS | {"SPARK_SECRET"}
_ROOT = {"MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD"}
_AIRFLOW = {"AIRFLOW_PASSWORD", "AIRFLOW_SECRET_KEY", "AIRFLOW_JWT_SECRET", "AIRFLOW_FERNET_KEY"}
GROUPS: Mapping[str, frozenset[str]] = {
    "postgres": frozenset({"POSTGRES_PASSWORD"}),
    "minio": frozenset(_ROOT),
    "grafana": frozenset({"GRAFANA_PASSWORD", "INFLUX_TOKEN"}),
    "init": frozenset(
        _ROOT | _OPERATIONS | _JOBS | _LOGS | _AIRFLOW | {"INFLUX_PASSWORD", "INFLUX_TOKEN", "POSTGRES_PASSWORD"}
    ),
    **{name: frozenset(_SPARK | {supervisor(MASTER if name == "spark-master" else name)})
       for name in ("spark-master", *NODES)},
    "airflow": _SUPERVISORS | _OPERATIONS | _LOGS | _AIRFLOW | {"SPARK_SECRET", "INFLUX_TOKEN", "POSTGRES_PASSWORD"},
    # A user's code runs in it: nothing that only Airflow's own processes need.
    "cli": _SUPERVISORS | _OPERATIONS | {"SPARK_SECRET", "INFLUX_TOKEN", "AIRFLOW_PASSWORD"},
}  # fmt: skip
NAMES = frozenset().union(*GROUPS.values())

_HERE = Layout(REPOSITORY)
PAGES = {  # address, user, password: secrets by their names
    "Grafana": ("http://127.0.0.1:3000", "admin", "GRAFANA_PASSWORD"),
    "Airflow": (_HERE.page("airflow"), "admin", "AIRFLOW_PASSWORD"),
    "Spark": (_HERE.page("spark-master-ui"), "", ""),
    "MinIO": (_HERE.page("minio-console"), "MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD"),
    "InfluxDB": (_HERE.page("influxd"), "admin", "INFLUX_PASSWORD"),
}


def make(place: Layout) -> None:
    """Make the secrets that are missing, and hand out all; what is there is kept.

    Raises:
        RefusedError: the servers were set up with secrets that are gone.
    """
    with _alone(place.secrets):
        kept = read(place.secrets)
        if not kept and place.influx_writer.exists():
            raise RefusedError(
                "The servers were set up with secrets that are not here. Hand them over from the '.env' that an "
                f"earlier release kept them in ('{TAKE}'), or remove the data with 'docker compose down --volumes'."
            )
        passwords = {name: secrets.token_hex(16) for name in ("GRAFANA_PASSWORD", *_SUPERVISORS)}
        _hand_out(place.secrets, generated() | passwords | kept)


def take(place: Layout, lines: Iterable[str]) -> None:
    """Hand out the secrets of an installation whose secrets an earlier release kept in '.env'.

    Raises:
        RefusedError: the lines name none, or there are other secrets already.
    """
    pairs = dict(line.strip().removeprefix(PREFIX).split("=", 1) for line in lines if line.startswith(PREFIX))
    handed = {name: value for name, value in pairs.items() if name in NAMES}
    if not handed:
        raise RefusedError(f"No line of what was given begins with {PREFIX}. It is called as '{TAKE}'.")
    with _alone(place.secrets):
        if not read(place.secrets).items() <= handed.items():
            raise RefusedError("This installation has secrets of its own already; nothing was changed.")
        _hand_out(place.secrets, handed)


def pages(known: Mapping[str, str], without: Sequence[str] = ()) -> list[str]:
    """A line for each page: its address, and the user and password of those that are known."""
    return [
        f"{name:9} {address:22} {known.get(user, '' if user in NAMES else user):14} {known.get(password, '')}".rstrip()
        for name, (address, user, password) in PAGES.items()
        if name.lower() not in without
    ]


def read(directory: Path) -> dict[str, str]:
    """The secrets that are there, of whatever group."""
    return {name: value for group in GROUPS for name, value in given(directory / group).items()}


def given(directory: Path) -> dict[str, str]:
    """The secrets of one group, as its containers see them."""
    if not directory.is_dir():
        return {}
    return {file.name: file.read_text().strip() for file in directory.iterdir() if not file.name.startswith(".")}


def _hand_out(directory: Path, values: Mapping[str, str]) -> None:
    """Killed in between, the next start finds each value in some group and hands it to the others."""
    for group, names in GROUPS.items():
        there = given(directory / group)
        for name in names & values.keys():
            file = directory / group / name
            if there.get(name) != values[name]:
                write_private(file, f"{values[name]}\n")
            file.chmod(0o444)  # the servers run as users of their own, and only they have the volume
        for file in (directory / group).iterdir():  # of a write that was ended, or of a release in which they had it
            if file.name not in names:
                file.unlink()


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One at a time, or two would make two of each."""
    (directory / "init").mkdir(parents=True, exist_ok=True)
    held = os.open(directory / "init", os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
