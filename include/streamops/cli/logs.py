"""``logs``: what the drivers of a job have logged, in one place."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

import typer

from streamops.cli import console
from streamops.cli.jobs import read_job
from streamops.cli.prove import moment
from streamops.model import records
from streamops.model.errors import RefusedError, UnreachableError
from streamops.settings import Settings
from streamops.spark import worker_logs
from streamops.spark.submitter import SparkSubmitter
from streamops.store import joblogs, jobs, keys
from streamops.store.joblogs import Line
from streamops.store.object_store import ObjectStore

POLL_S = 1.0


def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines; stop with ctrl-c.")] = False,
    level: Annotated[
        str, typer.Option(metavar="LEVEL", help="At least this level: TRACE, DEBUG, INFO, WARNING or ERROR.")
    ] = "TRACE",
    logger: Annotated[str, typer.Option(metavar="NAME", help="Only this logger, and those below it.")] = "",
    since: Annotated[str | None, typer.Option(metavar="WHEN", help="Not older than this: 10m, 2h, or a time.")] = None,
    executors: Annotated[bool, typer.Option(help="Also show logs of executors on nodes that answer.")] = True,
    json: console.Json = False,
) -> None:
    """Show what a job has logged: all its launches, on whatever node they ran."""
    wanted = level.upper()
    if wanted not in joblogs.ORDER:
        raise RefusedError(f"There is no level {level!r}; choose one of {', '.join(joblogs.ORDER)}.")
    store = console.store()
    read_job(store, job)  # refuses a job that is not there
    begin: datetime | None = moment(since, records.now()) if since else None
    reader = joblogs.Reader(store, job)
    others = Executors(console.settings(), store, job) if executors else None
    while True:
        lines = reader.more() + (others.more() if others else [])
        for line in joblogs.keep(sorted(lines, key=lambda line: line.time), wanted, logger, begin):
            console.out.print(joblogs.plain(line) if json else shown(line), markup=False, highlight=False)
        if not follow:
            return
        time.sleep(POLL_S)  # the interval at which the object store is asked


class Executors:
    """What executors on nodes that answer have logged; their nodes keep it, so a node that is gone takes it along."""

    def __init__(self, settings: Settings, store: ObjectStore, job: str) -> None:
        self._settings, self._store, self._job = settings, store, job
        self._seen: set[Line] = set()
        self._told: set[str] = set()

    def more(self) -> list[Line]:
        """New lines."""
        try:
            lines, trouble = worker_logs.read(SparkSubmitter(self._settings).master().workers, self._apps())
        except UnreachableError as error:
            lines, trouble = [], [str(error)]
        for text in trouble:
            if text not in self._told:
                console.err.print(f"Executors' logs are left out: {text}", markup=False)
        self._told |= set(trouble)
        fresh = [line for line in lines if line not in self._seen]
        self._seen |= set(fresh)
        return fresh

    def _apps(self) -> dict[str, str]:
        found = {}
        for launch in keys.names_in(self._store.prefixes(keys.launches(self._job))):
            status = jobs.status(self._store, self._job, launch)
            if status and status.app_id:
                found[status.app_id] = launch
        return found


def shown(line: Line) -> str:
    """A line as a person reads it: time, level, launch and place, logger, text."""
    place = f"{line.where}@{line.host}" if line.host else line.where
    return f"{console.when(line.time)} {line.level:<7} [{line.launch or '-'} {place}] {line.logger}: {line.text}"
