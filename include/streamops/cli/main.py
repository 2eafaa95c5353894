"""All commands in one place: verbs act on a job, plural nouns list, show and manage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from streamops.cli import (
    authoring,
    check,
    cluster,
    declarative,
    doctor,
    jobs,
    libraries,
    logs,
    operations,
    prove,
    quarantine,
    receipts,
    rehearsals,
    snapshots,
    stack,
    state,
    story,
    verbs,
)
from streamops.cli.console import App, choose_context, guarded

app = App(
    name="streamops",
    help="Deploy, upgrade, snapshot and prove stateful streaming jobs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,  # a local may hold a password
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
@guarded
def common(
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            help="Another installation: a name below ~/.config/streamops/contexts, or the path of its env file.",
        ),
    ] = None,
) -> None:
    """Choose the installation before any command runs."""
    choose_context(context)


COMMANDS: dict[str, Callable[..., None]] = {
    "new": authoring.new,
    "test": authoring.try_out,
    "publish": authoring.publish,
    "versions": authoring.versions,
    "check": check.check,
    "deploy": verbs.deploy,
    "rehearse": verbs.rehearse,
    "upgrade": verbs.upgrade,
    "cancel": verbs.cancel,
    "start": verbs.start,
    "snapshot": verbs.snapshot,
    "schedule": verbs.schedule,
    "rollback": verbs.rollback,
    "restore": verbs.restore,
    "recount": prove.recount,
    "logs": logs.logs,
    "state": state.state,
    "apply": declarative.apply,
    "diff": declarative.diff,
    "get": declarative.get,
    "delete": declarative.delete,
    "doctor": doctor.doctor,
    "demo": story.demo,
}
for name, command in COMMANDS.items():
    app.command(name)(command)

app.add_typer(jobs.app, name="jobs")
app.add_typer(snapshots.app, name="snapshots")
app.add_typer(operations.app, name="operations")
app.add_typer(receipts.app, name="receipts")
app.add_typer(rehearsals.app, name="rehearsals")
app.add_typer(libraries.app, name="libraries")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(cluster.app, name="cluster")
app.add_typer(stack.app, name="stack")

__all__ = ["app"]
