"""Airflow's database: a real server on a socket of its own, which only the stack's user can use."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest
from sqlalchemy.engine import make_url

from stack import builds, configure, lifecycle, ports, postgres, supervision
from stack.layout import PORTS, Layout
from stack.private import prepare_env, render_pairs, write_private
from stack.programs import Traffic, programs
from streamops.model.errors import NotFoundError, RefusedError, StreamOpsError
from streamops.settings import read_pairs


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = Layout(tmp_path / "home")
    place.log.mkdir(mode=0o700, parents=True)
    place.home.chmod(0o700)
    prepare_env(place, tmp_path / "spark")
    return place


def secret(layout: Layout) -> str:
    return read_pairs(layout.env_file)["POSTGRES_PASSWORD"]


@contextmanager
def running(layout: Layout) -> Iterator[psutil.Process]:
    """The server as supervisord starts it; ended as by a power cut, unless the test has ended it."""
    postgres.prepare(layout)
    postgres.initialise(layout, {"POSTGRES_PASSWORD": secret(layout)})
    with (
        (layout.log / "postgres.log").open("a") as log,
        subprocess.Popen(postgres.command(layout), stdout=log, stderr=log) as server,
    ):
        try:
            end = time.monotonic() + 60
            while told := postgres.probe(layout):
                assert server.poll() is None, (layout.log / "postgres.log").read_text()
                assert time.monotonic() < end, told
                time.sleep(0.1)
            yield psutil.Process(server.pid)
        finally:
            with suppress(psutil.Error):
                left = psutil.Process(server.pid).children()
                server.kill()
                psutil.wait_procs(left, timeout=30)


def connect(layout: Layout, **changed: str) -> None:
    who = {"user": postgres.USER, "dbname": postgres.DATABASE, "password": secret(layout)} | changed
    psycopg2.connect(host=str(postgres.host(layout)), **who).close()


def execute(layout: Layout, statement: str) -> list[Any]:
    connection = psycopg2.connect(
        host=str(postgres.host(layout)), user=postgres.USER, dbname=postgres.DATABASE, password=secret(layout)
    )
    with closing(connection), connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_airflow_and_no_one_else_is_let_in_and_no_network_is_used(layout: Layout) -> None:
    with running(layout) as server:
        connect(layout)
        for wrong in ({"password": "guessed"}, {"user": "postgres"}, {"dbname": "postgres"}):
            with pytest.raises(psycopg2.OperationalError):
                connect(layout, **wrong)
        lasting = tuple(f"postgres: {postgres.name(layout)}: {work}" for work in ("checkpointer", "walwriter"))
        titles = {other: " ".join(other.info["cmdline"] or ()) for other in psutil.process_iter(["cmdline"])}
        processes = [server, *(other for other, title in titles.items() if title.startswith(lasting))]
        assert len(processes) == 3
        assert [process.net_connections("inet") for process in processes] == [[]] * len(processes)
        assert all(process.uids().real != 0 for process in processes)
        assert set(processes) <= set(lifecycle.processes(layout))  # so that none is left behind
    assert stat.S_IMODE(postgres.directory(layout).stat().st_mode) == 0o700


@pytest.fixture
def stranger() -> Iterator[psutil.Process]:
    """A process of the server's user that is none of the server's."""
    user = postgres._account()[0] if os.geteuid() == 0 else None
    with subprocess.Popen(["sleep", "600"], user=user) as process:
        yield psutil.Process(process.pid)
        process.kill()


def test_a_power_cut_costs_neither_the_creation_nor_the_data_even_if_another_process_has_the_servers_number(
    layout: Layout, stranger: psutil.Process
) -> None:
    half = postgres.directory(layout).with_name("postgres.new")  # of a creation that was interrupted
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("15\n")
    with running(layout):
        execute(layout, "CREATE TABLE kept AS SELECT 42 AS number")
    assert not half.exists()
    for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
        left = postgres.directory(layout) / name
        lines = left.read_text().splitlines()  # an orderly end would have removed it
        left.write_text("\n".join([str(stranger.pid), *lines[1:], ""]))
    with running(layout):
        assert execute(layout, "SELECT number FROM kept") == [(42,)]
    assert stranger.is_running()


def test_a_failed_creation_names_its_log_and_leaves_nothing_that_looks_complete(layout: Layout) -> None:
    with pytest.raises(StreamOpsError, match=r"postgres-initialise\.log"):
        postgres.initialise(layout, {"POSTGRES_PASSWORD": "it's not SQL"})
    assert not postgres.directory(layout).exists()


def test_a_deep_folder_is_reached_through_a_short_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Path(tempfile.mkdtemp(prefix="pg-"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    deep = Layout(tmp_path / ("deep" * 20) / "home")
    deep.log.mkdir(parents=True)
    prepare_env(deep, tmp_path / "spark")
    try:
        with running(deep):
            connect(deep)
        assert postgres.host(deep).resolve() == postgres.directory(deep).resolve()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("deep" * 20)))
        with pytest.raises(RefusedError, match="too long for a socket"):
            postgres.prepare(deep)
    finally:
        shutil.rmtree(cache)


def test_a_stack_with_airflows_runs_in_sqlite_is_told_what_to_do_before_anything_starts(layout: Layout) -> None:
    layout.airflow.mkdir()
    old = layout.airflow / "airflow.db"
    old.touch()
    with pytest.raises(RefusedError, match=f"SQLite.* remove {re.escape(str(old))}"):
        postgres.prepare(layout)


@pytest.mark.parametrize("lacks", ["postgres", "pools", "S3_LOGS_SECRET_KEY"])
def test_a_stack_that_an_earlier_version_started_is_told_to_be_stopped_first(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    offset = next(
        offset
        for offset in range(21_000, 27_000, 37)
        if not any(ports.holder(port + offset) for port in PORTS.values())
    )
    monkeypatch.delenv("XDG_CACHE_HOME")  # where the servers are
    monkeypatch.setenv("STREAMOPS_PORT_OFFSET", str(offset))
    older = Layout.find(layout.home)
    pairs = prepare_env(older, builds.spark_home())
    with monkeypatch.context() as before:
        known = [one for one in programs(older, Traffic()) if one.name != lacks]
        before.setattr(supervision, "programs", lambda *_: known)
        supervision.write_configuration(older, pairs, Traffic())
    supervision.start(older)
    try:
        configure.write_all(older, pairs)
        if lacks == "pools":
            configure.pools(older).unlink()
        if pairs.pop(lacks, None):
            write_private(older.env_file, render_pairs("", pairs))
        with pytest.raises(RefusedError, match="earlier version: run 'make down'"):
            lifecycle.up(older.home)
    finally:
        lifecycle.down(older.home, say=lambda _: None)
    assert list(lifecycle.processes(older)) == []


def test_data_is_read_by_the_release_that_wrote_it_and_new_data_is_written_by_the_newest(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = {name: Path(f"/usr/lib/postgresql/{name}/bin") for name in ("9", "15", "17")}
    monkeypatch.setattr(builds, "postgres", lambda: releases)
    assert postgres._binaries(layout) == releases["17"]
    postgres.directory(layout).mkdir(parents=True)
    (postgres.directory(layout) / "PG_VERSION").write_text("15\n")
    assert postgres._binaries(layout) == releases["15"]
    del releases["15"]
    with pytest.raises(NotFoundError, match=r"PostgreSQL 15, which is not installed any more"):
        postgres._binaries(layout)


def test_airflow_is_given_both_drivers_the_same_socket(layout: Layout) -> None:
    configure.airflow(layout, prepare_env(layout, layout.home / "spark"))
    config = ConfigParser()
    config.read(layout.airflow / "airflow.cfg")
    url = make_url(config["database"]["sql_alchemy_conn"])
    for driver in ("psycopg2", "asyncpg"):
        _, known = (
            url.set(drivername=f"postgresql+{driver}")
            .get_dialect()()
            .create_connect_args(url.set(drivername=f"postgresql+{driver}"))
        )
        assert known["host"] == str(postgres.host(layout))
        assert known["password"] == secret(layout)
