"""Starting and stopping the containers from the host: ``python -m stack.compose.host up|down``."""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from stack import builds, ready
from stack.compose import engine, secret_files
from stack.layout import REPOSITORY, Layout
from streamops.model.errors import StreamOpsError

_HERE = Layout(REPOSITORY)
Say = Callable[[str], None]


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
        began = time.monotonic()
        _compose(found, "up", "--build", "--detach", "--wait", *_others(found, without))
        ready.wait("airflow-api-server", ready.airflow, _HERE, 300)
        say(f"The containers are ready after {time.monotonic() - began:.0f} s.")
    command = f"{' '.join(found.compose)} run --rm cli"
    try:
        ready.wait("spark-master", ready.workers(1), _HERE, 60)
    except StreamOpsError:
        say(f"  No worker has joined Spark's master: if the cluster was shut down, run '{command} cluster restart'.")
    for line in secret_files.pages({}, without):
        say(f"  {line}")
    say(f"  Passwords:    {' '.join(found.compose)} run --rm secrets show")
    say(f"  Command line: {command} jobs")


def down(say: Say = print) -> None:
    """Stop and remove the containers; the volumes, the secrets among them, stay for the next start.

    Raises:
        StreamOpsError: no engine, or it failed.
    """
    with _alone():
        found = engine.find(say)
        _compose(found, "--profile", "*", "down")  # also what was started with a profile
    command = f"{' '.join(found.compose)} down --volumes"
    say(f"The containers are stopped; their volumes stay. '{command}' removes those too.")


@contextmanager
def _alone() -> Iterator[None]:
    """One start or stop at a time; a second caller waits."""
    builds.cache().mkdir(parents=True, exist_ok=True)
    with (builds.cache() / "compose.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
    parser.add_argument("verb", choices=("up", "down"))
    parser.add_argument("--without", action="append", default=[], metavar="SERVICE", help="leave it out; repeatable")
    chosen, say = parser.parse_args(argv), partial(print, flush=True)
    try:
        match chosen.verb:
            case "up":
                up(say, chosen.without)
            case "down":
                down(say)
    except StreamOpsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
