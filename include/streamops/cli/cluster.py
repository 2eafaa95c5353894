"""``cluster``: its state, size and members; shut it down, start it again, scale it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any

import typer

from streamops.cli import console, options, verbs
from streamops.cluster import record as cluster_record
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.cluster.view import Shares, View, view
from streamops.model.errors import DamagedError, RefusedError
from streamops.operations.cluster_checks import should_run
from streamops.operations.facts import ClusterChecked, Jobs, JobsCaughtUp, Members
from streamops.settings import Settings
from streamops.store import jobs
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts

app = console.noun("Show the cluster; shut it down, start it again, or scale it.")


@app.command("list", hidden=True)
def show(json: console.Json = False) -> None:
    """Show state, version, size and members. Exit code 1 unless all members are there."""
    found = look(console.settings(), console.store())
    if json:
        console.show_json(found)
    else:
        print_view(found)
    if found.state != "running":
        raise typer.Exit(1)


def _shut_down(given: dict[str, Any]) -> None:
    done = verbs.run(given["json"], "shutdown_cluster", **SHUTDOWN.values(given))
    stopped = done.reported("record_set", Jobs).jobs
    verbs.say(given["json"], done, f"The cluster is stopped; a restart brings back {', '.join(stopped) or 'no job'}.")


def _restart(given: dict[str, Any]) -> None:
    done = verbs.run(given["json"], "restart_cluster", **RESTART.values(given))
    for job, told in done.reported("caught_up", JobsCaughtUp).jobs.items():
        if not given["json"]:
            console.say(f"{job}: caught up with {told.events:,} events in {told.seconds} s")
    missing = done.reported("members", Members).missing
    verbs.say(given["json"], done, f"The cluster runs{f', without {chr(44).join(missing)}' if missing else ''}.")


def _scale(given: dict[str, Any]) -> None:
    size = given["size"]
    digits = size.removeprefix("+").removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 4:
        raise RefusedError(f"{size!r} is not a size; say 3, +1 or -1.")
    wanted: dict[str, Any] = {"change" if size[0] in "+-" else "size": int(size)}
    done = verbs.run(given["json"], "scale_cluster", **wanted, **SCALE.values(given))
    verbs.say(given["json"], done, f"The cluster has {done.reported('check', ClusterChecked).size} members.")


SIZE = Annotated[str, typer.Argument(metavar="N|+N|-N", help="The size to reach, or how many more or fewer.")]
SHUTDOWN, RESTART = options.Options("shutdown_cluster"), options.Options("restart_cluster")
SCALE = options.Options("scale_cluster", without=("size", "change"))
app.command("shutdown")(SHUTDOWN.command(_shut_down))
app.command("restart")(RESTART.command(_restart))
app.command("scale", context_settings={"ignore_unknown_options": True})(  # -1 is a size
    SCALE.command(_scale, first=(options.argument("size", SIZE),))
)


def look(settings: Settings, store: ObjectStore) -> View:
    """The cluster now."""
    nodes = SupervisedNodes(settings)
    running = {}
    for record in should_run(store):
        status = jobs.status(store, record.job, record.launch) if record.launch else None
        definition = None
        with suppress(DamagedError):  # of one job, which is no reason to show nothing of the others
            definition = artifacts.current(store, record)
        if status and status.driver:
            running[record.job] = status, definition
    return view(nodes.inventory, cluster_record.read(store), nodes.master(), running)


def print_view(found: View) -> None:
    """State, version, size, a table of the members, and one of the jobs on them."""
    console.say(f"State:   {found.state}")
    console.say(f"Version: {found.version or 'unknown'}")
    console.say(f"Size:    {found.ready}/{found.desired}")
    if found.waiting:
        console.say(f"Jobs:    a restart brings back {', '.join(found.waiting)}")
    rows = console.table(
        "NODE", "STATE", "ADDRESS", "ID", "CORES USED/FREE", "MEMORY USED/FREE", "DRIVERS", "EXECUTORS",
        right=("CORES USED/FREE", "MEMORY USED/FREE"),
    )  # fmt: skip
    for member in found.members:
        rows.add_row(
            member.node,
            member.state,
            member.address,
            member.id,
            f"{member.cores_used}/{member.cores_free}",
            f"{member.memory_used:,}/{member.memory_free:,} MiB",
            counted(member.drivers),
            counted(member.executors),
        )
    console.out.print(rows)
    if found.jobs:
        console.say("")
        rows = console.table("JOB", "MEMBERS", "ON", right=("MEMBERS",))
        for job, members in found.jobs.items():
            rows.add_row(job, str(len(members)), placed(members))
        console.out.print(rows)


def placed(members: Shares) -> str:
    """What each member has of a job, in one line."""
    return ", ".join(f"{name} ({share})" for name, share in members.items()) or "-"


def counted(names: Iterable[str]) -> str:
    """Names, each once, with how often."""
    return ", ".join(f"{name} ({times})" if times > 1 else name for name, times in Counter(names).items()) or "-"
