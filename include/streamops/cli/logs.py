"""``logs``: what the drivers of a job have logged, in one place."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

import typer

from streamops import joblogs, records
from streamops.cli import console
from streamops.cli.jobs import read_job
from streamops.cli.prove import moment
from streamops.errors import RefusedError
from streamops.joblogs import Line

POLL_S = 1.0


def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes; ends with ctrl-c.")] = False,
    level: Annotated[str, typer.Option(metavar="LEVEL", help="At least DEBUG, INFO, WARNING or ERROR.")] = "DEBUG",
    logger: Annotated[str, typer.Option(metavar="NAME", help="Only this logger, and those below it.")] = "",
    since: Annotated[str | None, typer.Option(metavar="WHEN", help="Not older: 10m, 2h, or a time.")] = None,
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
    while True:
        for line in joblogs.keep(reader.more(), wanted, logger, begin):
            console.out.print(joblogs.plain(line) if json else shown(line), markup=False, highlight=False)
        if not follow:
            return
        time.sleep(POLL_S)  # the interval at which the object store is asked


def shown(line: Line) -> str:
    """A line as a person reads it: time, level, launch and place, logger, text."""
    place = f"{line.where}@{line.host}" if line.host else line.where
    return f"{console.when(line.time)} {line.level:<7} [{line.launch or '-'} {place}] {line.logger}: {line.text}"
