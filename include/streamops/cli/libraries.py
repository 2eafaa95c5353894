"""``libraries``: code that several jobs share, published apart from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamops.cli import console
from streamops.model.errors import NotFoundError
from streamops.store import jobs
from streamops.store.object_store import ObjectStore
from streamops.versions import libraries
from streamops.versions.libraries import LibraryManifest

app = console.noun("List shared libraries, or publish one.")


@app.command("list")
def list_(json: console.Json = False) -> None:
    """List published versions, and which jobs use each."""
    store = console.store()
    users = used_by(store)
    columns: dict[str, console.Cell[LibraryManifest]] = {
        "LIBRARY": lambda item: item.library,
        "VERSION": lambda item: item.version,
        "PUBLISHED": lambda item: console.when(item.published),
        "BY": lambda item: item.publisher.label(),
        "SHA256": lambda item: item.sha256[:12],
        "USED BY": lambda item: ", ".join(users.get(item.use.label, ())) or "-",
        "DESCRIPTION": lambda item: item.description,
    }
    found = [item for name in libraries.names(store) for item in libraries.versions(store, name)]
    console.show_rows(found, columns, json)


@app.command("publish")
def publish(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The library's directory, with library.yaml.")],
    json: console.Json = False,
) -> None:
    """Upload a version of a library; jobs get it when they are deployed, upgraded, or brought back on it."""
    if not directory.is_dir():
        raise NotFoundError(f"{directory} is not a directory; give the directory that holds {libraries.FILE}.")
    done = libraries.publish(console.store(), directory)
    if json:
        console.show_json(done)
        return
    console.say(
        f"Published library {done.use.label} ({done.size:,} bytes, sha256 {done.sha256[:12]}). Jobs that run keep "
        f"theirs; 'streamops cluster shutdown --library {done.use.label}' brings them back on it."
    )


def used_by(store: ObjectStore) -> dict[str, list[str]]:
    """LIBRARY/VERSION -> jobs whose current deployment uses it."""
    found: dict[str, list[str]] = {}
    for name in jobs.names(store):
        record = jobs.record(store, name)
        used = jobs.deployment(store, name, record.deployment).library if record and record.deployment else None
        if used:
            found.setdefault(used.label, []).append(name)
    return found
