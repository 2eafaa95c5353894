"""Steps while they happen: a live table on a terminal, one line an event elsewhere."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from streamops.cli.console import duration
from streamops.operations.follow import StepState, StepView

_SIGNS: dict[StepState, str] = {
    "waiting": "[dim]·[/]",
    "running": "[yellow]►[/]",
    "done": "[green]✓[/]",
    "failed": "[red]✗[/]",
    "undone": "[yellow]↶[/]",
}


class Progress:
    """Shows the steps of one operation; use as a context manager, unless ``live`` is False."""

    def __init__(self, console: Console, live: bool | None = None) -> None:
        self._console = console
        live = console.is_terminal if live is None else live
        # A live table needs the terminal's true width.
        self._live = Live(console=Console(highlight=False, stderr=console.stderr), auto_refresh=False) if live else None
        self._known: dict[str, StepState] = {}

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line above the steps."""
        (self._live.console if self._live else self._console).print(escape(text))

    def show(self, steps: tuple[StepView, ...]) -> None:
        """Show the steps as they are now."""
        if self._live:
            self._live.update(_table(steps), refresh=True)
            return
        for step in steps:
            if step.state in ("waiting", self._known.get(step.name)):
                continue
            self._known[step.name] = step.state
            told = "..." if step.state == "running" else f" {step.state} after {duration(step.seconds)}"
            facts = f" ({step.facts})" if step.facts and step.state != "running" else ""
            self._console.print(escape(f"  {step.title}{told}{facts}"))


def _table(steps: tuple[StepView, ...]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(width=1)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim", overflow="ellipsis", no_wrap=True)
    for step in steps:
        seconds = duration(step.seconds) if step.seconds is not None else ""
        table.add_row(_SIGNS[step.state], escape(step.title), seconds, escape(step.facts))
    return table
