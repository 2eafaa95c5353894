"""``receipts``: what was asked for, and what happened."""

from __future__ import annotations

import json as json_module
from datetime import datetime
from typing import Annotated, Any

import typer

from streamops import keys
from streamops.adapters.object_store import ObjectStore
from streamops.cli import console
from streamops.cli.jobs import jobs_in
from streamops.errors import NotFoundError
from streamops.names import CLUSTER, checked

app = console.noun("List receipts, or show one.")


@app.command("list")
@console.guarded
def list_(
    job: Annotated[str | None, typer.Argument(help="Only this job's.")] = None,
    json: console.Json = False,
) -> None:
    """List receipts, newest last."""
    if job is not None:
        checked("job", job)
    store = console.store()
    jobs = [job] if job is not None else [CLUSTER, *jobs_in(store)]
    found = [receipt for name in jobs for receipt in read_all(store, name)]
    found.sort(key=lambda receipt: str(receipt.get("finished") or ""))
    if json:
        console.show_json(found)
        return
    rows = console.table("FINISHED", "JOB", "RUNBOOK", "OUTCOME", "OPERATION")
    for receipt in found:
        finished = receipt.get("finished")
        moment = console.when(datetime.fromisoformat(finished)) if finished else "-"
        rows.add_row(moment, *(str(receipt.get(key) or "-")[:60] for key in ("job", "runbook", "state", "id")))
    console.out.print(rows)


@app.command("show")
@console.guarded
def show(operation: Annotated[str, typer.Argument(metavar="ID", help="The operation.")]) -> None:
    """Show one receipt as JSON."""
    checked("snapshot", operation)
    store = console.store()
    for job in [CLUSTER, *jobs_in(store)]:
        try:
            console.show_json(json_module.loads(store.get(keys.receipt(job, operation)).body))
            return
        except NotFoundError:
            continue
    raise NotFoundError(f"There is no receipt {operation!r}; 'streamops receipts' lists them.")


def read_all(store: ObjectStore, job: str) -> list[dict[str, Any]]:
    """All receipts of a job."""
    return [json_module.loads(store.get(info.key).body) for info in store.list(keys.receipts(job))]
