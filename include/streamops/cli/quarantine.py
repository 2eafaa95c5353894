"""``quarantine``: points that InfluxDB refused, and what becomes of them."""

from __future__ import annotations

import hashlib
import json as json_
from pathlib import Path
from typing import Annotated, Any

import typer

from streamops.cli import console, verbs
from streamops.model.records import RefusedPoint, RefusedPoints
from streamops.operations.facts import Quarantined
from streamops.operations.runbooks.manage_quarantine import corrected
from streamops.store import keys, quarantine

app = console.noun("List points that a sink refused, export them, write them after a correction, or drop them.")

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines, one point each.")]


@app.command("list")
def list_(job: Job, json: console.Json = False) -> None:
    """List what was set aside, oldest first, with the reason."""
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
    """Write all points to a file for correction: 'id' stays, everything else may change."""
    points = [item for _, item in quarantine.read(console.store(), job)]
    file.write_text("".join(f"{item.model_dump_json()}\n" for item in points), encoding="utf-8")
    console.say(f"{len(points):,} points are in {file}. Correct them, then 'streamops quarantine write {job} {file}'.")


@app.command("write")
def write(job: Job, file: File, without_airflow: verbs.HERE = False, json: console.Json = False) -> None:
    """Write corrected points to InfluxDB, and remove from the quarantine those whose ids the file names."""
    body = file.read_bytes()
    corrected(body)  # refused before it is uploaded
    sha256 = hashlib.sha256(body).hexdigest()
    console.store().put(keys.corrections(console.job(job), sha256), body)
    _manage(job, action="write", file=sha256, without_airflow=without_airflow, json=json)


@app.command("drop")
def drop(
    job: Job,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Points, as 'quarantine list' shows them.")],
    without_airflow: verbs.HERE = False,
    json: console.Json = False,
) -> None:
    """Forget points for good."""
    _manage(job, action="drop", points=ids, without_airflow=without_airflow, json=json)


def _manage(job: str, *, json: bool, **values: Any) -> None:
    done = verbs.run(json, "manage_quarantine", job=job, **values)
    found = done.reported("change", Quarantined)
    verbs.say(json, done, f"{found.written:,} points are written, and {found.gone:,} are no longer in the quarantine.")


def _short(values: dict[str, str] | dict[str, float | int | str]) -> str:
    text = ", ".join(f"{name}={json_.dumps(value)}" for name, value in values.items())
    return text if len(text) <= 60 else f"{text[:57]}..."
