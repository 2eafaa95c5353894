"""All commands in one place: verbs act on a job, plural nouns list, show and manage."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from streamops.cli.console import App, choose_context, guarded

# name -> module of this package, and what in it is the command or the group of commands
COMMANDS: dict[str, str] = {
    "new": "authoring:new",
    "test": "authoring:try_out",
    "publish": "authoring:publish",
    "versions": "authoring:versions",
    "check": "check:check",
    "deploy": "verbs:deploy",
    "rehearse": "verbs:rehearse",
    "upgrade": "verbs:upgrade",
    "cancel": "verbs:cancel",
    "start": "verbs:start",
    "snapshot": "verbs:snapshot",
    "schedule": "verbs:schedule",
    "rollback": "verbs:rollback",
    "restore": "verbs:restore",
    "recount": "prove:recount",
    "logs": "logs:logs",
    "state": "state:state",
    "apply": "declarative:apply",
    "diff": "declarative:diff",
    "get": "declarative:get",
    "delete": "declarative:delete",
    "doctor": "doctor:doctor",
    "demo": "story:demo",
    "jobs": "jobs:app",
    "snapshots": "snapshots:app",
    "operations": "operations:app",
    "receipts": "receipts:app",
    "rehearsals": "rehearsals:app",
    "libraries": "libraries:app",
    "quarantine": "quarantine:app",
    "cluster": "cluster:app",
    "stack": "stack:app",
}


class Lazy(UserDict[str, Any]):
    """Commands by their names. The module of one is loaded when it is asked for: all of them cost half a second."""

    def __getitem__(self, name: str) -> Any:
        module, attribute = super().__getitem__(name).split(":")
        found = getattr(import_module(f"streamops.cli.{module}"), attribute)
        if not isinstance(found, App):
            verb, found = found, App(add_completion=False)
            found.command()(verb)
        command = get_command(found)
        command.name = name
        return command


class Commands(TyperGroup):
    """All commands, each loaded when it is called."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.commands = Lazy(COMMANDS)


app = App(
    name="streamops",
    cls=Commands,
    help="Deploy, upgrade, snapshot and prove stateful streaming jobs.",
    no_args_is_help=True,
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


__all__ = ["app"]
