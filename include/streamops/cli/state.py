"""``state``: what a stage knows between its batches, by key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from streamops import snapshots as catalogue
from streamops.cli import console, options
from streamops.cli.jobs import read_job
from streamops.cli.snapshots import address
from streamops.model.errors import RefusedError
from streamops.model.names import checked
from streamops.snapshots import state as reading
from streamops.snapshots.state import Choice, Differences, Found, Place
from streamops.store.object_store import ObjectStore

Bring = Callable[[Path], Place]


def state(
    place: Annotated[str, typer.Argument(metavar="JOB[/SNAPSHOT]", help="The job as it is now, or a snapshot of it.")],
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="The stage.")],
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only rows with this key column, like symbol=ACME; repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Show at most this many rows.")] = 20,
    operator: Annotated[int, typer.Option(min=0, help="Which stateful operator, if the stage has several.")] = 0,
    store: Annotated[str, typer.Option(metavar="NAME", help="Which of the operator's state stores.")] = "default",
    variable: Annotated[str | None, typer.Option(metavar="NAME", help="Which variable of transformWithState.")] = None,
    against: Annotated[
        str | None, typer.Option(metavar="JOB[/SNAPSHOT]", help="Show the keys that differ there.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Show the state of a stage after its last committed batch, by key; or how it differs from another one.

    Local Spark reads a copy; the job runs on, and nothing is written to the object store.
    """
    choice = Choice(
        operator=operator, store=store, variable=variable, keys=options.pairs("--key", key or ()), limit=limit
    )  # fmt: skip
    checked("stage", stage)
    brings = [_bring(wanted, stage) for wanted in (place, against) if wanted]
    with reading.private_directory() as directory:
        first, *second = [bring(directory / str(number)) for number, bring in enumerate(brings)]
        if not json:
            console.err.print("Reading with local Spark ...")
        if against:
            show_differences(reading.differences(first, second[0], choice), place, against, json=json)
            return
        found = reading.rows(first, choice)
    if json:
        console.show_json(found.model_dump() | {"stage": stage, "batch": first.batch, "more": found.more})
        return
    show(found)
    variable_of = f", variable {found.variable}" if found.variable else ""
    where = f"operator {found.store.operator} ({found.store.operator_name}), store {found.store.name}{variable_of}"
    console.say(f"{place} {stage} after batch {first.batch}: {found.total:,} rows in {where}{_more(found)}")


def show_differences(found: Differences, first: str, second: str, *, json: bool) -> None:
    """Print the keys that differ, with what either has."""
    if json:
        console.show_json(found.model_dump() | {"differing": found.differing})
        return
    if found.rows:
        table = console.table("KEY", first, second)
        for row in found.rows:
            sides = ("; ".join(map(_text, row[name])) if row[name] else "-" for name in ("first", "second"))
            table.add_row(escape(_text(row["key"])), *map(escape, sides))
        console.out.print(table)
    left = found.differing - len(found.rows)
    console.say(
        f"{found.equal:,} keys are the same, {found.changed:,} are not, {found.only_first:,} are only in {first} and "
        f"{found.only_second:,} only in {second}{f'; {left:,} more, --limit shows them' if left else ''}"
    )


def show(found: Found) -> None:
    """Print rows as a table: what Spark keeps for each key, and in which partition."""
    if not found.rows:
        return
    columns = list(found.rows[0])
    table = console.table(*(column.upper() for column in columns), right=("PARTITION",))
    for row in found.rows:
        table.add_row(*(escape(_text(row[column])) for column in columns))
    console.out.print(table)


def _bring(place: str, stage: str) -> Bring:
    return _snapshot(place, stage) if "/" in place else _live(console.job(place), stage)


def _live(job: str, stage: str) -> Bring:
    store = console.store()
    _, deployment, _, _ = read_job(store, job)
    if deployment is None:
        raise RefusedError(
            f"Job {job} was never deployed, so it has no state; 'streamops deploy {job} VERSION' runs it."
        )
    _require_stage(stage, deployment.stages, f"Deployment {deployment.number} of {job}")
    number = deployment.number
    return lambda into: reading.bring_live(store, job, number, stage, into)


def _snapshot(text: str, stage: str) -> Bring:
    store: ObjectStore = console.store()
    manifest = catalogue.load(store, *address(text))
    _require_stage(stage, manifest.stages, f"Snapshot {text}")
    return lambda into: reading.bring_snapshot(store, manifest, stage, into)


def _require_stage(stage: str, known: dict[str, Any], what: str) -> None:
    if stage not in known:
        raise RefusedError(f"{what} has no stage {stage!r}; it has {', '.join(known)}.")


def _more(found: Found) -> str:
    return f"; {found.more:,} more, --limit shows them" if found.more else ""


def _text(value: Any) -> str:
    """A struct as its fields: ``symbol=ACME``, nested ones with a dot."""
    if not isinstance(value, dict):
        return "-" if value is None else str(value)
    return ", ".join(f"{name}={field}" for name, field in _fields(value))


def _fields(value: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, field in value.items():
        if isinstance(field, dict):
            found += _fields(field, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", "null" if field is None else str(field)))
    return found
