"""``snapshots``: the list of named snapshots."""

from __future__ import annotations

from typing import Annotated

import typer

from streamops import snapshots as catalogue
from streamops.cli import console
from streamops.names import checked

app = console.noun("List snapshots.")


@app.command("list")
@console.guarded
def list_(
    job: Annotated[str | None, typer.Argument(help="Only this job's.")] = None,
    json: console.Json = False,
) -> None:
    """List snapshots, newest last."""
    if job is not None:
        checked("job", job)
    found = sorted(catalogue.list(console.store(), job), key=lambda row: row.created)
    if json:
        console.show_json([_row(row) for row in found])
        return
    rows = console.table("TIME", "SIZE (bytes)", "JOB NAME", "SNAPSHOT NAME", right=("SIZE (bytes)",))
    for row in found:
        rows.add_row(console.when(row.created), f"{row.size:,}", row.job, row.name)
    console.out.print(rows)


def _row(manifest: catalogue.Manifest) -> dict[str, object]:
    return {
        "time": manifest.created,
        "size": manifest.size,
        "job": manifest.job,
        "snapshot": manifest.name,
        "version": manifest.version,
        "deployment": manifest.deployment,
        "live": manifest.live,
        "operation": manifest.operation,
        "objects": len(manifest.objects),
        "stages": {name: stage.batch for name, stage in manifest.stages.items()},
    }
