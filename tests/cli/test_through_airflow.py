"""No command changes anything by itself: while Airflow does not answer, the bucket stays as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner, Result

from fakes import object_server
from fakes import shelf as shelves
from fakes.rig import write_env
from fakes.shelf import JOB, Shelf
from streamops.cli import app
from streamops.model.records import RefusedPoint
from streamops.operations.follow import request
from streamops.settings import Settings
from streamops.snapshots import portable
from streamops.store import keys

NOWHERE = "http://127.0.0.1:1"  # where no Airflow is
POINT = RefusedPoint(id="p", measurement="m", tags={}, fields={"value": 1}, time_ms=1, reason="too old")

CHANGES = """
    deploy sums v2; rehearse sums v2; upgrade sums v2 --snapshot u; cancel sums; start sums; snapshot sums u;
    schedule sums --never; rollback sums; restore sums s; delete sums --yes; apply new.yaml;
    jobs pause sums; jobs resume sums; jobs log-level sums sink=DEBUG;
    snapshots pin sums/s; snapshots unpin sums/t; snapshots remove sums/s; snapshots undelete sums/s;
    snapshots prune sums --apply --last 1; snapshots verify sums/s --restore;
    operations resume op; operations abort op; operations abort op --leave-as-is;
    cluster shutdown; cluster restart; cluster scale 3; quarantine drop sums 0123456789abcdef
"""
READS = """
    versions sums; check sums v1 --accept-loss a --accept-loss b; get there.yaml; diff there.yaml; jobs list;
    snapshots list; snapshots show sums/s; snapshots removed sums; snapshots prune sums --last 1;
    snapshots diff sums/s sums/t; snapshots export sums/t t.tar; snapshots schedule;
    jobs graph sums; operations list; operations show op; receipts list; receipts show op; rehearsals list;
    libraries list; quarantine list sums; quarantine export sums points.jsonl
"""
SENDS = {"snapshots import", "quarantine write"}  # a file, which the run then finds
ADDS = {"publish", "libraries publish"}  # what nothing uses yet
ELSEWHERE = {  # what asks other servers or Spark, or works where it is called; a demo runs runbooks as well
    "new", "test", "recount", "logs", "state", "doctor", "demo", "jobs show", "rehearsals show", "cluster list",
    "stack up", "stack down", "stack status", "stack env",
}  # fmt: skip


Run = Callable[[list[str]], Result]


def split(commands: str) -> list[list[str]]:
    return [command.split() for command in commands.split(";")]


@pytest.fixture(scope="module")
def shelf(object_store_server: Settings) -> Shelf:
    """A job with two snapshots, one of them pinned by the operation ``op``."""
    bucket = object_server.fresh_bucket(object_store_server)
    found = Shelf(bucket.model_copy(update={"airflow_url": NOWHERE}))
    found.publish(b"code", b"runtime")
    for name in ("s", "t"):
        found.batches(1)
        found.take(name)
    pin = request("manage_snapshot", job=JOB, action="pin", snapshot="t", reason="kept")
    shelves.engine(found.store, found.retention).run(pin, shelves.ADA, "op")
    return found


@pytest.fixture
def run(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> Run:
    """Run a command on that bucket, in a directory with what it may be given."""
    write_env(tmp_path / "cli.env", shelf.settings, every_secret=True)
    monkeypatch.setenv("STREAMOPS_ENV_FILE", str(tmp_path / "cli.env"))
    monkeypatch.chdir(tmp_path)
    for file, name in (("there", "s"), ("new", "u")):
        Path(f"{file}.yaml").write_text(f"{{kind: snapshot, name: {name}, job: {JOB}}}")
    return lambda words: CliRunner().invoke(app, words)


def versions(shelf: Shelf) -> set[tuple[str, str]]:
    """All there is in the bucket, with what was overwritten or deleted."""
    return {(found.key, found.version_id) for found in shelf.root.versions("")}


@pytest.mark.full
@pytest.mark.parametrize("words", split(CHANGES), ids=" ".join)
def test_what_changes_something_asks_airflow_for_it_and_does_nothing_without(
    shelf: Shelf, run: Run, words: list[str]
) -> None:
    before = versions(shelf)
    ended = run(words)
    assert (ended.exit_code, f"Airflow at {NOWHERE} did not answer" in ended.output) == (1, True), ended.output
    assert versions(shelf) == before


@pytest.mark.full
@pytest.mark.parametrize("words", split(READS), ids=" ".join)
def test_what_reads_changes_nothing(shelf: Shelf, run: Run, words: list[str]) -> None:
    before = versions(shelf)
    ended = run(words)
    assert ended.exit_code == 0, ended.output
    assert versions(shelf) == before


@pytest.mark.full
def test_what_a_run_needs_a_file_for_only_sends_that(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    portable.export(shelf.store, JOB, "s", tmp_path / "s.tar")
    (tmp_path / "points.jsonl").write_text(POINT.model_dump_json())
    archive, points = (hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("s.tar", "points.jsonl"))
    for words, sent in (
        (["snapshots", "import", "s.tar"], keys.snapshot_upload(JOB, archive)),
        (["quarantine", "write", JOB, "points.jsonl"], keys.corrections(JOB, points)),
    ):
        before = versions(shelf)
        ended = run(words)
        assert (ended.exit_code, f"Airflow at {NOWHERE} did not answer" in ended.output) == (1, True), ended.output
        assert {key for key, _ in versions(shelf) - before} == {sent}
        assert versions(shelf) >= before


def test_every_command_is_one_of_these() -> None:
    def leaves(command: Any, *names: str) -> Iterator[str]:
        if not hasattr(command, "commands"):
            yield " ".join(names)
        for name, below in getattr(command, "commands", {}).items():
            yield from leaves(below, *names, name)

    assert isinstance(app, Typer)
    every = set(leaves(get_command(app)))
    given = {" ".join(words) for words in split(CHANGES + ";" + READS)}
    tried = {name for name in every if any(f"{words} ".startswith(f"{name} ") for words in given)}
    assert every == tried | SENDS | ADDS | ELSEWHERE
    assert not tried & (SENDS | ADDS | ELSEWHERE)
