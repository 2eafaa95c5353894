"""``demo``: the whole story on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from streamops import demo as demo_module
from streamops.cli import console, stack
from streamops.cli.progress import Progress
from streamops.settings import Settings


def demo(
    traffic_before: Annotated[float, typer.Option(min=5, help="Seconds of traffic with v1.")] = 60.0,
    traffic_after: Annotated[float, typer.Option(min=5, help="Seconds of traffic with v2.")] = 90.0,
) -> None:
    """Deploy, upgrade under load, and prove it.

    Can be run again on the same stack: v2 goes back to v1 through a snapshot first, and the story begins anew.
    """
    settings = start_stack()
    options = demo_module.Options(traffic_before, traffic_after)
    report = demo_module.Demo(settings, options, console.say, lambda: Progress(console.out, live=False).show).tell()
    data, page = demo_module.write(report, options.report)
    console.say("\n== Summary")
    for line in demo_module.summary(report):
        console.say(line)
    console.say(f"\nThe report with pictures: {page}\nIts numbers:              {data}\n\nThe stack is left running:")
    stack.addresses()
    console.say(
        f"\nTry next:\n"
        f"  .venv/bin/streamops jobs show {demo_module.JOB}\n"
        f"  .venv/bin/streamops snapshots {demo_module.JOB}\n"
        f"  .venv/bin/streamops recount {demo_module.JOB} --since 2m\n"
    )
    if not report["recount"]["clean"]:
        console.fail("The recount is not clean: the results are not what the topic says.")


def start_stack() -> Settings:
    """Have the local stack running with the trade generator, at the demo's rate."""
    from stack import lifecycle
    from stack.programs import Traffic

    console.say("== Start the stack")
    settings = lifecycle.up(say=console.say)
    lifecycle.generator_start(traffic=Traffic(rate=demo_module.RATE))
    return settings
