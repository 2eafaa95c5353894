"""``stack``: the local servers."""

from __future__ import annotations

from typing import Annotated

import typer

from streamops.cli import console

app = console.App(help="The local servers.", no_args_is_help=True)


@app.command()
def up(
    generator: Annotated[bool, typer.Option(help="Start the trade generator too.")] = True,
) -> None:
    """Start what does not run, and wait until it is ready."""
    from stack import lifecycle

    lifecycle.up(generator=generator, say=console.say)
    addresses()


@app.command()
def down() -> None:
    """Stop everything; data stays, and the jobs that should run come back with the next 'up'."""
    from stack import lifecycle

    lifecycle.down(say=console.say)


@app.command()
def status(json: console.Json = False) -> None:
    """Show what is running. Exit code 1 unless everything but spare workers is."""
    from stack import lifecycle
    from stack.programs import SPARE_WORKERS

    found = lifecycle.status()
    if json:
        console.show_json(found)
    elif not found.running:
        console.say(f"The stack in {found.home} is not running; start it with 'make up'.")
    else:
        rows = console.table("PROGRAM", "STATE", "DETAIL")
        for program in found.programs:
            rows.add_row(program.name, program.state, program.detail)
        console.out.print(rows)
        addresses()
    needed = [program for program in found.programs if program.name not in SPARE_WORKERS]
    if not found.running or any(program.state != "RUNNING" for program in needed):
        raise typer.Exit(1)


@app.command()
def env() -> None:
    """Print endpoints and credentials as KEY=VALUE lines; keep them to yourself."""
    from stack import lifecycle

    for key, value in lifecycle.env().items():
        console.say(f"{key}={value}")


def addresses() -> None:
    """Print where to look, and where the login is; never the login itself."""
    from stack import lifecycle

    found = lifecycle.status()
    for name, address in found.addresses.items():
        console.say(f"  {name:9} {address}")
    console.say("  login     .venv/bin/streamops stack env | grep AIRFLOW")
