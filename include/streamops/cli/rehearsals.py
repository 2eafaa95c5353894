"""``rehearsals``: what versions did that were tried beside the running one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamops.cli import console
from streamops.model.names import checked
from streamops.operations import rehearsals
from streamops.operations.rehearsals import Rehearsal
from streamops.store import jobs

app = console.noun("List rehearsals, or show one: on the screen, as JSON, or as a page.")


@app.command("list")
def list_(job: console.OnlyJob = None, json: console.Json = False) -> None:
    """List rehearsals, newest last."""
    store = console.store()
    found = [item for name in ([job] if job else jobs.names(store)) for item in rehearsals.read_all(store, name)]
    columns: dict[str, console.Cell[Rehearsal]] = {
        "TIME": lambda item: console.when(item.at),
        "JOB": lambda item: item.job,
        "VERSION": lambda item: item.new.version,
        "BESIDE": lambda item: item.old.version,
        "FOR": lambda item: console.duration(item.seconds),
        "RESULT": rehearsals.verdict,
        "OPERATION": lambda item: item.id,
    }
    console.show_rows(sorted(found, key=lambda item: item.at), columns, json, right=("FOR",))


@app.command("show")
def show(
    operation: Annotated[str, typer.Argument(metavar="ID", help="The operation.")],
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Write it to an HTML file instead.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Show one rehearsal."""
    store = console.store()
    found = rehearsals.find(store, jobs.names(store), checked("snapshot", operation))
    if page:
        page.write_text(rehearsals.page(found), encoding="utf-8")
        console.say(f"The rehearsal is in {page}.")
    elif json:
        console.show_json(found)
    else:
        for line in rehearsals.lines(found):
            console.say(line)
