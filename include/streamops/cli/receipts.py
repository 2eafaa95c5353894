"""``receipts``: what was asked for, and what happened."""

from __future__ import annotations

from typing import Annotated

import typer

from streamops.cli import console
from streamops.model.errors import NotFoundError
from streamops.model.names import checked, label
from streamops.operations import receipts
from streamops.operations.receipts import Receipt
from streamops.store import documents, keys

app = console.noun("List receipts, or show one.")


@app.command("list")
def list_(job: console.OnlyJob = None, json: console.Json = False) -> None:
    """List receipts, newest last."""
    store, jobs = console.store_and_jobs(job)
    found = [receipt for name in jobs for receipt in documents.every(store, keys.receipts(name), Receipt)]
    columns: dict[str, console.Cell[Receipt]] = {
        "FINISHED": lambda item: console.when(item.finished),
        "JOB": lambda item: label(item.job),
        "RUNBOOK": lambda item: item.runbook,
        "OUTCOME": lambda item: item.state,
        "TOOK": lambda item: console.duration(item.seconds),
        "BY": lambda item: item.requested_by or "-",
        "OPERATION": lambda item: item.id,
    }
    console.show_rows(sorted(found, key=lambda item: item.finished), columns, json, right=("TOOK",))


@app.command("show")
def show(
    operation: Annotated[str, typer.Argument(metavar="ID", help="The operation.")], json: console.Json = False
) -> None:
    """Show one receipt."""
    checked("snapshot", operation)
    store, jobs = console.store_and_jobs()
    found = next((receipt for job in jobs if (receipt := receipts.read(store, job, operation))), None)
    if found is None:
        raise NotFoundError(f"There is no receipt {operation!r}; 'streamops receipts' lists them.")
    if json:
        console.show_json(found)
        return
    for line in receipts.lines(found):
        console.say(line)
