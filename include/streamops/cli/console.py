"""What every command shares: the installation it talks to, output, and errors without tracebacks."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, cast

import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from streamops.model.errors import NotFoundError, StreamOpsError
from streamops.model.names import CLUSTER, JOB_ID, checked
from streamops.settings import ENV_FILE, Settings
from streamops.store import jobs
from streamops.store.object_store import ObjectStore

Command = TypeVar("Command", bound=Callable[..., Any])
Row = TypeVar("Row")
Cell = Callable[[Row], object]

# Wider than a narrow terminal, which then wraps: a value that is cut off is of no use.
out = Console(highlight=False, soft_wrap=True, width=max(160, shutil.get_terminal_size().columns))
err = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script.")]

OnlyJob = Annotated[str | None, typer.Argument(metavar="JOB", help="Only this job's.")]


class Group(TyperGroup):
    """A plural noun: without a verb it lists, and what is not a verb is passed to the list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """Commands, all of them ``guarded``, with help in plain text."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how, rich_markup_mode=None)

    def command(self, name: str | None = None, **how: Any) -> Callable[[Command], Command]:
        register = super().command(name, **how)
        return lambda command: register(guarded(command))


def noun(help_text: str) -> App:
    """A command group whose default verb is ``list``."""
    return App(cls=Group, help=help_text, no_args_is_help=False)


def guarded(command: Command) -> Command:
    """Turn an error that an operator may see into one sentence and exit code 1. An argument ``job`` may be an id."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            if isinstance(given := kwargs.get("job"), str):
                kwargs["job"] = job(given)
            return command(*args, **kwargs)
        except StreamOpsError as error:
            fail(str(error))
        except KeyboardInterrupt:
            err.print("Interrupted. What was already started continues; 'streamops operations' shows it.")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of a pipe has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(0) from None

    return cast(Command, run)


def job(text: str) -> str:
    """The name of a job that was given by its name or its id. Raises as ``jobs.named``."""
    return jobs.named(store(), text) if JOB_ID.fullmatch(text) else checked("job", text)


def fail(message: str, code: int = 1) -> NoReturn:
    """Print one sentence to the error stream and end with this exit code."""
    err.print(f"[bold red]error:[/] {escape(message)}")
    raise typer.Exit(code)


def say(message: str) -> None:
    """Print text as it is, without markup."""
    out.print(escape(message))


def choose_context(name: str | None) -> None:
    """Make this process talk to another installation, named or given by the path of its env file.

    Raises:
        NotFoundError: there is no such file.
    """
    if not name:
        return
    path = Path(name).expanduser()
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) and not path.is_file():
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        path = base / "streamops" / "contexts" / f"{name}.env"
    if not path.is_file():
        raise NotFoundError(
            f"There is no context {name!r}: {path} does not exist; write the output of 'streamops stack env' there."
        )
    os.environ[ENV_FILE] = str(path.resolve())


def settings() -> Settings:
    """The installation that this process talks to."""
    return Settings.load()


def store() -> ObjectStore:
    """Its object store."""
    return ObjectStore(settings())


def store_and_jobs(job_name: str | None = None) -> tuple[ObjectStore, list[str]]:
    """The object store, and in it the job that was asked for, or the cluster and every job."""
    found = store()
    return found, [job_name] if job_name else [CLUSTER, *jobs.names(found)]


def show_json(value: Any) -> None:
    """Print a value as JSON; models, dataclasses, times and secrets included (secrets masked)."""
    out.print(TypeAdapter(Any).dump_json(value, indent=2, fallback=str).decode(), markup=False)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines, readable in a pipe too."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return made


def show_rows(found: Sequence[Row], columns: Mapping[str, Cell[Row]], json: bool, right: tuple[str, ...] = ()) -> None:
    """Print a list, as every list: a table with one line an item, or JSON.

    Args:
        columns: heading -> the text of an item there.
        right: headings of columns that stand to the right.
    """
    if json:
        show_json(found)
        return
    rows = table(*columns, right=right)
    for item in found:
        rows.add_row(*(escape(str(cell(item))) for cell in columns.values()))
    out.print(rows)


def when(time: datetime | None) -> str:
    """A time as in every list: UTC, to the millisecond."""
    if time is None:
        return "-"
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


def duration(seconds: float | None) -> str:
    """A duration that a person can read."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
