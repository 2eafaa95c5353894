"""Starting and stopping the containers from the host: ``python -m stack.compose.host up|down|secrets``."""

from __future__ import annotations

import argparse
import fcntl
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from stack import builds, ready
from stack.compose import engine
from stack.compose.container import NODES
from stack.layout import REPOSITORY, Layout
from stack.private import generated, render_pairs, supervisor, write_private
from streamops.cluster.supervised_nodes import MASTER
from streamops.model.errors import RefusedError, StreamOpsError
from streamops.settings import read_pairs

ENV = REPOSITORY / ".env"
# Compose takes what the caller's environment has before what '.env' says: no name of another program may match.
PREFIX = "STREAMOPS_SECRET_"
PROJECT = "streamops"
_HERE = Layout(REPOSITORY)
PAGES = {
    "Grafana": ("http://127.0.0.1:3000", "admin", "GRAFANA_PASSWORD"),
    "Airflow": (_HERE.page("airflow"), "admin", "AIRFLOW_PASSWORD"),
    "Spark": (_HERE.page("spark-master-ui"), "", ""),
    "MinIO": (_HERE.page("minio-console"), f"{PREFIX}MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD"),
    "InfluxDB": (_HERE.page("influxd"), "admin", "INFLUX_PASSWORD"),
}
Say = Callable[[str], None]


def write_secrets(path: Path = ENV) -> None:
    """Write the private file that Compose takes the containers' secrets from; those that it has are kept."""
    kept = read_pairs(path)
    # What the local stack does not have: Grafana, and machines of their own.
    passwords = ("GRAFANA_PASSWORD", *map(supervisor, (MASTER, *NODES)))
    wanted = generated() | {name: secrets.token_hex(16) for name in passwords}
    fresh = {f"{PREFIX}{name}": value for name, value in wanted.items()}
    write_private(path, render_pairs("Private: secrets of the containers.", fresh | kept))


def up(say: Say = print, without: Sequence[str] = ()) -> None:
    """Build and start whatever does not run, and wait until all of it is ready.

    Args:
        say: receives lines for a person.
        without: services that are left out.

    Raises:
        StreamOpsError: no engine, one that is too old, a port in use, too little memory, or a server that did not
            become ready; the message says which, and what to do.
    """
    with _alone():
        found = engine.check(say=say)
        _secrets_fit(found)
        write_secrets()
        began = time.monotonic()
        _compose(found, "up", "--build", "--detach", "--wait", *_others(found, without))
        ready.wait("airflow-api-server", ready.airflow, _HERE, 300)
        say(f"The containers are ready after {time.monotonic() - began:.0f} s.")
    command = f"{' '.join(found.compose)} run --rm cli"
    try:
        ready.wait("spark-master", ready.workers(1), _HERE, 60)
    except StreamOpsError:
        say(f"  No worker has joined Spark's master: if the cluster was shut down, run '{command} cluster restart'.")
    shown = {name: page for name, page in PAGES.items() if name.lower() not in without}
    for name, (address, user, password) in shown.items():
        login = f"user {user}, password {PREFIX}{password} in {ENV}" if password else ""
        say(f"  {name:9} {address:22} {login}".rstrip())
    say(f"  Command line: {command} jobs")


def down(say: Say = print) -> None:
    """Stop and remove the containers; the volumes and the secrets stay for the next start.

    Raises:
        StreamOpsError: no engine, or it failed.
    """
    with _alone():
        found = engine.find(say)
        _compose(found, "down")
    command = f"{' '.join(found.compose)} down --volumes"
    say(f"The containers are stopped; their volumes stay. '{command}' removes those too.")


@contextmanager
def _alone() -> Iterator[None]:
    """One start or stop at a time; a second caller waits, or both would generate secrets."""
    builds.cache().mkdir(parents=True, exist_ok=True)
    with (builds.cache() / "compose.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _secrets_fit(found: engine.Tools) -> None:
    """Refuse to make new secrets for servers that know others."""
    if ENV.is_file():
        return
    label = f"label=com.docker.compose.project={os.environ.get('COMPOSE_PROJECT_NAME') or PROJECT}"
    command = [*found.docker, "volume", "ls", "--quiet", "--filter", label]
    if subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip():
        raise RefusedError(
            f"There are volumes of an earlier start, and {ENV}, which has their secrets, is gone. Bring it back, or "
            f"remove the data with '{' '.join(found.compose)} down --volumes', and run this again."
        )


def _others(found: engine.Tools, without: Sequence[str]) -> list[str]:
    """The services to name when some are left out."""
    if not without:
        return []
    command = [*found.compose, "config", "--services"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split() if name not in without]


def _compose(found: engine.Tools, *arguments: str) -> None:
    command = [*found.compose, *arguments]
    if subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
        raise StreamOpsError(
            f"'{' '.join(command)}' failed; read what it says above, and '{' '.join(found.compose)} logs' for what the "
            "servers say."
        )


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="stack.compose.host", description=__doc__)
    parser.add_argument("verb", choices=("up", "down", "secrets"))
    parser.add_argument("--without", action="append", default=[], metavar="SERVICE", help="leave it out; repeatable")
    chosen, say = parser.parse_args(argv), partial(print, flush=True)
    try:
        match chosen.verb:
            case "up":
                up(say, chosen.without)
            case "down":
                down(say)
            case "secrets":
                write_secrets()
    except StreamOpsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
