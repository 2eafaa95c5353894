"""``quarantine``: points that InfluxDB refused, and what becomes of them."""

from __future__ import annotations

import json as json_
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from streamops.cli import console
from streamops.clients.influx import Points, line, obstacle
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.records import RefusedPoint, RefusedPoints
from streamops.store import quarantine

app = console.noun("List points that a sink refused, export them, write them after a correction, or drop them.")

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines, one point each.")]


@app.command("list")
def list_(job: Job, json: console.Json = False) -> None:
    """List what is put aside, oldest first, with the reason."""
    columns: dict[str, console.Cell[tuple[RefusedPoints, RefusedPoint]]] = {
        "ID": lambda item: item[1].id,
        "STAGE": lambda item: item[0].stage,
        "PUT ASIDE": lambda item: console.when(item[0].at),
        "MEASUREMENT": lambda item: item[1].measurement,
        "TAGS": lambda item: _short(item[1].tags),
        "FIELDS": lambda item: _short(item[1].fields),
        "REASON": lambda item: item[1].reason,
    }
    found = list(quarantine.read(console.store(), job))
    if json:
        console.show_json([{"stage": group.stage, "at": group.at, **item.model_dump()} for group, item in found])
        return
    console.show_rows(found, columns, json)


@app.command("export")
def export(job: Job, file: File) -> None:
    """Write all points to a file, to be corrected: 'id' stays, everything else may change."""
    points = [item for _, item in quarantine.read(console.store(), job)]
    file.write_text("".join(f"{item.model_dump_json()}\n" for item in points), encoding="utf-8")
    console.say(f"{len(points):,} points are in {file}. Correct them, then 'streamops quarantine write {job} {file}'.")


@app.command("write")
def write(job: Job, file: File) -> None:
    """Write corrected points to InfluxDB, and take those out of the quarantine whose id the file names."""
    points = _read(file)
    lines = []
    for number, item in enumerate(points, 1):
        if reason := obstacle(item.tags, item.fields):
            raise RefusedError(f"{file}, line {number}: {reason}; correct it. Nothing was written.")
        lines.append(line(item.measurement, item.tags, item.fields, item.time_ms))
    with closing(Points(console.settings())) as target:
        target.write_lines(lines)
    gone = quarantine.remove(console.store(), job, {item.id for item in points})
    console.say(f"{len(lines):,} points are written, and {gone:,} are no longer in the quarantine.")


@app.command("drop")
def drop(
    job: Job,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Points, as 'quarantine list' shows them.")],
) -> None:
    """Forget points for good."""
    gone = quarantine.remove(console.store(), job, ids)
    if not gone:
        raise NotFoundError(f"None of these is in the quarantine of {job}; 'streamops quarantine list {job}' has them.")
    console.say(f"{gone:,} points are forgotten.")


def _read(file: Path) -> list[RefusedPoint]:
    found = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(RefusedPoint.model_validate_json(text))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise RefusedError(f"{file}, line {number}: {where}: {first['msg']}. Nothing was written.") from None
    return found


def _short(values: dict[str, str] | dict[str, float | int | str]) -> str:
    text = ", ".join(f"{name}={json_.dumps(value)}" for name, value in values.items())
    return text if len(text) <= 60 else f"{text[:57]}..."
