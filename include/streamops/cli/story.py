"""``demo``: whole stories on this machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from demos import elasticity, upgrade
from demos.report import elasticity as elasticity_page
from demos.report import fleet as fleet_page
from streamops.cli import console, stack
from streamops.cli.progress import Progress
from streamops.settings import Settings


class Told(StrEnum):
    """The stories."""

    UPGRADE = "upgrade"
    ELASTICITY = "elasticity"
    FLEET = "fleet"
    TRANSACTIONS = "transactions"


def demo(
    told: Annotated[
        Told,
        typer.Argument(
            metavar="STORY",
            help="upgrade: a version under load; elasticity: the cluster under the job; fleet: vehicles on a map; "
            "transactions: declared jobs, from a tutorial.",
        ),
    ] = Told.UPGRADE,
    traffic_before: Annotated[float, typer.Option(min=5, help="Seconds of traffic with v1.")] = 60.0,
    traffic_after: Annotated[float, typer.Option(min=5, help="Seconds of traffic with v2, and with v3.")] = 90.0,
) -> None:
    """Run a story under load, and prove that nothing was lost.

    It can be run again on the same stack: state is continued, and the story starts over.
    """
    if told is Told.FLEET:
        _fleet()
        return
    if told is Told.TRANSACTIONS:
        _transactions()
        return
    settings = start_stack()
    options = upgrade.Options(traffic_before, traffic_after)
    base = upgrade.Demo(settings, options, console.say, lambda: Progress(console.out, live=False).show, pace)
    if told is Told.ELASTICITY:
        report = elasticity.Elasticity(base).tell()
        written = upgrade.write(report, options.report, elasticity.NAME, elasticity_page.page)
        lines, commands = elasticity.summary(report), ("cluster", "receipts", f"jobs show {upgrade.JOB}")
    else:
        report = base.tell()
        written = upgrade.write(report, options.report)
        lines, commands = (
            upgrade.summary(report),
            (
                f"jobs show {upgrade.JOB}",
                f"snapshots {upgrade.JOB}",
                f"recount {upgrade.JOB} --since 2m",
            ),
        )
    _end(report, written, lines, commands)


def _end(report: dict[str, Any], written: tuple[Path, Path], lines: list[str], commands: tuple[str, ...]) -> None:
    """The summary, where to look, and what to try next. Exit code 1 when the recount is not clean."""
    console.say("\n== Summary")
    for line in lines:
        console.say(line)
    data, page = written
    console.say(f"\nThe report with pictures: {page}\nIts numbers:              {data}\n\nThe stack is left running:")
    stack.addresses()
    console.say("\nTry next:\n" + "".join(f"  .venv/bin/streamops {command}\n" for command in commands))
    if not report["recount"]["clean"]:
        console.fail("The recount is not clean: the results are not what the topic says.")


def _fleet() -> None:
    from demos.fleet import story
    from stack import lifecycle

    console.say("== Start the stack")
    settings = lifecycle.up(say=console.say, generator=False)
    lifecycle.fleet_start()
    fleet = story.FleetStory(settings, console.say, lambda: Progress(console.out, live=False).show)
    report = fleet.tell(lifecycle.fleet_stop)
    written = upgrade.write(report, upgrade.Options().report, story.NAME, fleet_page.page)
    lifecycle.fleet_start()  # so that the map is alive
    commands = (f"logs {story.JOB} --follow", "libraries", f"jobs show {story.JOB}")
    _end(report, written, story.summary(report), commands)


def _transactions() -> None:
    from demos.transactions.story import JOB, Transactions
    from stack import lifecycle

    console.say("== Start the stack")
    Transactions(lifecycle.up(say=console.say, generator=False), console.say).tell()
    console.say(
        f"\n== Summary\nVersion 1 logged transactions 1 to 3, version 2, from the snapshot, 4 and 5: each once.\n"
        f"Of {JOB} nothing is left but its receipts: .venv/bin/streamops receipts {JOB}\nThe stack is left running:"
    )
    stack.addresses()


def start_stack() -> Settings:
    """Have the local stack running with the trade generator, at the demo's rate."""
    from stack import lifecycle

    console.say("== Start the stack")
    settings = lifecycle.up(say=console.say)
    pace(upgrade.RATE)
    return settings


def pace(rate: int) -> None:
    """Have the generator write so many trades a second."""
    from stack import lifecycle
    from stack.programs import Traffic

    lifecycle.generator_start(traffic=Traffic(rate=rate))
