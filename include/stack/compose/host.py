"""Starting and stopping the containers from the host: ``python -m stack.compose.host up|down|secrets``."""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from stack import ready
from stack.compose import engine
from stack.layout import REPOSITORY, Layout
from stack.private import kept_or_generated, read_pairs, render_pairs, write_private
from streamops.errors import StreamOpsError

ENV = REPOSITORY / ".env"
PAGES = {
    "Grafana": ("http://127.0.0.1:3000", "admin", "GRAFANA_PASSWORD"),
    "Airflow": ("http://127.0.0.1:8080", "admin", "AIRFLOW_PASSWORD"),
    "Spark": ("http://127.0.0.1:8090", "", ""),
    "MinIO": ("http://127.0.0.1:9001", "MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD"),
    "InfluxDB": ("http://127.0.0.1:8086", "admin", "INFLUX_PASSWORD"),
}
_ONLY_HERE = ("POSTGRES_PASSWORD", "GRAFANA_PASSWORD")  # of servers that the local stack does not have
Say = Callable[[str], None]


def write_secrets(path: Path = ENV) -> None:
    """Write the private file that Compose takes the containers' secrets from; those that it has are kept."""
    kept = read_pairs(path)
    pairs = kept | kept_or_generated(path)
    pairs |= {name: kept.get(name) or secrets.token_hex(16) for name in _ONLY_HERE}
    write_private(path, render_pairs("Private: secrets of the containers.", pairs))


def up(say: Say = print, without: Sequence[str] = ()) -> None:
    """Build and start whatever does not run, and wait until all of it is ready.

    Args:
        say: receives lines for a person.
        without: services that are left out.

    Raises:
        StreamOpsError: no engine, one that is too old, a port in use, too little memory, or a server that did not
            become ready; the message says which, and what to do.
    """
    write_secrets()  # without them Compose does not even read its file
    found = engine.check(say=say)
    began = time.monotonic()
    _compose(found, "up", "--build", "--detach", "--wait", *_others(found, without))
    host = Layout(REPOSITORY)
    ready.wait("spark-master", ready.workers(1), host, 180)
    ready.wait("airflow-api-server", ready.airflow, host, 300)
    say(f"The containers are ready after {time.monotonic() - began:.0f} s.")
    shown = {name: page for name, page in PAGES.items() if name.lower() not in without}
    for name, (address, user, password) in shown.items():
        say(f"  {name:9} {address:22} {f'user {user}, password {password} in {ENV}' if password else ''}".rstrip())
    say("  Command line: docker compose run --rm cli jobs")


def down(say: Say = print) -> None:
    """Stop and remove the containers; the volumes and the secrets stay for the next start.

    Raises:
        StreamOpsError: no engine, or it failed.
    """
    write_secrets()
    found = engine.find(say)
    _compose(found, "down")
    say("The containers are stopped; their volumes stay. 'docker compose down --volumes' removes those as well.")


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
            f"'{' '.join(['docker compose', *arguments])}' failed; read what it says above, and "
            "'docker compose logs' for what the servers say."
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
