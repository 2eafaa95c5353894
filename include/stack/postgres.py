"""Airflow's database: a PostgreSQL server of the stack's own, on a Unix socket in the stack's folder.

PostgreSQL refuses to run as root. Where the stack does, the server runs as the user ``postgres``, who may be unable to
reach a folder below directories that are root's alone. It is handed its directory open, and works from there.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import psycopg2

from stack import builds
from stack.layout import Layout
from streamops.model.errors import NotFoundError, RefusedError, StreamOpsError
from streamops.settings import read_pairs

USER = DATABASE = "airflow"
_ADMINISTRATOR = "postgres"  # of the database; no one can connect as this one
_ACCOUNT = "postgres"  # of the machine; Debian's package makes it
_SOCKET = ".s.PGSQL.5432"  # there is no port; the socket's name has a number all the same
_LONGEST_SOCKET = 107  # bytes of a path, unix(7)
_OPEN_DIRECTORY = "/proc/self/fd/9"
_SETTINGS = {
    "listen_addresses": "",  # no network at all
    "unix_socket_directories": ".",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "max_wal_size": "256MB",
}


def directory(layout: Layout) -> Path:
    """Where the server has its data and its socket."""
    return layout.data / "postgres"


def name(layout: Layout) -> str:
    """What marks each of the server's processes; their titles take the place of their environment."""
    return f"streamops-{_digest(layout)}"


def host(layout: Layout) -> Path:
    """The directory of the socket as clients name it: a link to it, where its own path is too long for a socket."""
    own = directory(layout)
    return own if _fits(own) else builds.cache() / "postgres" / _digest(layout)


def url(layout: Layout, pairs: dict[str, str]) -> str:
    """Airflow's connection; private, because it holds the password."""
    secret, place = quote(pairs["POSTGRES_PASSWORD"], safe=""), quote(str(host(layout)), safe="")
    return f"postgresql+psycopg2://{USER}:{secret}@/{DATABASE}?host={place}"


def command(layout: Layout) -> tuple[str, ...]:
    """The server's command line. Raises NotFoundError when there is no server that fits its data."""
    settings = _SETTINGS | {"cluster_name": name(layout)}
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    return _unprivileged(directory(layout), _binaries(layout) / "postgres", *options)


def prepare(layout: Layout) -> None:
    """Before a start, when no process of the stack is left.

    Raises:
        RefusedError: the stack has Airflow's history in SQLite, or the socket's path is too long.
    """
    old = layout.airflow / "airflow.db"
    if old.exists():
        raise RefusedError(
            f"Airflow's runs of this stack are in SQLite, which is no longer used: run 'make down', remove {old}, and "
            "run this again; jobs, snapshots, operations and receipts are not in it and stay."
        )
    for left in ("postmaster.pid", f"{_SOCKET}.lock"):  # after a power cut, another process may have that number
        (directory(layout) / left).unlink(missing_ok=True)
    place = host(layout)
    if not _fits(place):
        raise RefusedError(
            f"The path {place / _SOCKET} is too long for a socket; set STREAMOPS_HOME or XDG_CACHE_HOME to a shorter "
            "one and run this again."
        )
    if place != directory(layout):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(directory(layout))


def initialise(layout: Layout, pairs: dict[str, str]) -> None:
    """Create the database where there is none; what was interrupted begins again. Raises StreamOpsError."""
    place = directory(layout)
    if place.is_dir():
        return
    fresh, binaries = place.with_name("postgres.new"), _binaries(layout)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700, parents=True)
    if os.geteuid() == 0:
        os.chown(fresh, *_account())
    how = ("--encoding=UTF8", "--no-locale", f"--username={_ADMINISTRATOR}", "--auth=reject")
    _run(_unprivileged(fresh, binaries / "initdb", *how), layout)
    secret = pairs["POSTGRES_PASSWORD"]  # of letters and digits
    statements = (f"CREATE ROLE {USER} LOGIN PASSWORD '{secret}'", f"CREATE DATABASE {DATABASE} OWNER {USER}")
    alone = _unprivileged(
        fresh, binaries / "postgres", "-c", "exit_on_error=on", first=("--single",), last=("postgres",)
    )
    _run(alone, layout, statements)
    (fresh / "pg_hba.conf").write_text(f"local {DATABASE} {USER} scram-sha-256\n")
    os.replace(fresh, place)


def probe(layout: Layout) -> str:
    """Empty when the database lets Airflow in; else why not."""
    secret = read_pairs(layout.env_file)["POSTGRES_PASSWORD"]
    try:
        psycopg2.connect(host=str(host(layout)), user=USER, password=secret, dbname=DATABASE).close()
    except psycopg2.OperationalError as error:
        return str(error).strip().splitlines()[0]
    return ""


def _digest(layout: Layout) -> str:
    return hashlib.sha256(os.fsencode(layout.home)).hexdigest()[:12]


def _fits(place: Path) -> bool:
    return len(os.fsencode(place / _SOCKET)) <= _LONGEST_SOCKET


def _binaries(layout: Layout) -> Path:
    """Data is read by the release that wrote it; new data is written by the newest one."""
    servers, version = builds.postgres(), directory(layout) / "PG_VERSION"
    wanted = version.read_text().strip() if version.is_file() else max(servers, key=int, default="")
    if wanted in servers:
        return servers[wanted]
    if not wanted:
        raise NotFoundError("PostgreSQL is not installed; run 'make setup'.")
    raise NotFoundError(
        f"Airflow's database was written by PostgreSQL {wanted}, which is not installed any more: install it, or "
        f"remove {directory(layout)}, and Airflow begins with an empty history."
    )


def _unprivileged(
    place: Path, program: Path, *options: str, first: tuple[str, ...] = (), last: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """A program of PostgreSQL at work in a directory, as a user who is not root."""
    if os.geteuid():
        return (str(program), *first, "-D", str(place), *options, *last)
    opened = ("sh", "-c", 'exec 9<"$0" && cd / && exec "$@"', str(place))
    user, group = map(str, _account())
    changed = ("setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--inh-caps=-all", "--")
    return (*opened, *changed, str(program), *first, "-D", _OPEN_DIRECTORY, *options, *last)


def _account() -> tuple[int, int]:
    """User and group that the server has where the stack's own is root."""
    try:
        found = pwd.getpwnam(_ACCOUNT)
    except KeyError as error:
        told = f"PostgreSQL does not run as root, and there is no user {_ACCOUNT!r}; add one and run this again."
        raise StreamOpsError(told) from error
    return found.pw_uid, found.pw_gid


def _run(command: tuple[str, ...], layout: Layout, statements: tuple[str, ...] = ()) -> None:
    log = layout.log / "postgres-initialise.log"
    said = "".join(f"{statement}\n" for statement in statements)
    with log.open("a") as output:
        done = subprocess.run(command, input=said, text=True, stdout=output, stderr=output, check=False)
    if done.returncode:
        raise StreamOpsError(f"A first-time step of PostgreSQL failed; read {log} and run 'make up' again.")
