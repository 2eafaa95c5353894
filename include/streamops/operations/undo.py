"""Taking an operation back: at the end what ran before runs again, or was never touched.

Made of recorded steps of its own, each of which can be run again, like the steps of the upgrade itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from streamops import snapshots
from streamops.model.errors import StreamOpsError
from streamops.model.records import Control, now
from streamops.operations import cost, going_back, health
from streamops.operations.context import Facts, Work
from streamops.operations.operation import GOING_BACK, Operation
from streamops.operations.steps import give, healthy_now, install, put, submission
from streamops.store import jobs, leases

NOT_NEEDED = "nothing was changed; there is nothing to take back"
HEALTHY = "the new version has passed its probation and runs on"
_LAST_WORD_S = 20.0  # for the new driver to end by itself, so that its batch in flight is not lost work


def route(operation: Operation) -> tuple[str, tuple[str, ...]]:
    """What must be done, decided from what is recorded: a sentence, and the steps."""
    if operation.request.runbook in GOING_BACK:
        return _route_of_going_back(operation)
    if operation.request.runbook != "upgrade_job" or not operation.started("reserve"):
        return NOT_NEEDED, ()
    if operation.done("probation"):
        return HEALTHY, ()
    if not operation.started("request_stop"):
        return "the old version was never asked to stop; the new driver is dismissed", ("dismiss",)
    if not operation.started("hand_over"):
        return (
            "the old version runs again, from its own checkpoint",
            ("dismiss", "take_back", "submit", "healthy"),
        )
    return (
        "the old version runs again, from the snapshot",
        ("dismiss", "restore", "take_back", "submit", "healthy"),
    )


def _route_of_going_back(operation: Operation) -> tuple[str, tuple[str, ...]]:
    """The deployment that ran before still has its own checkpoint, whatever the operation did."""
    if not operation.started("reserve"):
        return NOT_NEEDED, ()
    if operation.done("healthy"):
        return "the job runs from the snapshot, and goes on", ()
    if not operation.started("request_stop"):
        return "what runs was never asked to stop; the new driver is dismissed", ("dismiss",)
    if not operation.facts("check").get("running"):
        return "the job is left as it was found: nothing of it runs", ("dismiss", "leave")
    return "what ran before runs again, from its own checkpoint", ("dismiss", "take_back", "submit", "healthy")


def launch(work: Work) -> str:
    """The launch that brings the old version back."""
    return f"{work.operation.id}-back"


def number(work: Work) -> int:
    """Its deployment: the old one, unless the new version may have written already."""
    if work.operation.started("hand_over") and work.request.runbook not in GOING_BACK:
        return work.number + 1
    return work.before.deployment


def dismiss(work: Work) -> Facts:
    """End the new driver. It may be dead, or not there yet: then it finds its dismissal when it starts."""
    store = work.ports.store
    facts: Facts = {"launch": work.launch, **state_cost(work)}
    jobs.tell(store, work.job, work.launch, Control(command="stop", operation=f"{work.operation.id}-undo"))
    if not work.operation.started("hand_over"):
        update = {"standby": None, "last_deployment": work.number, "changed_by": work.operation.id}
        jobs.change(store, work.job, update)
        return facts
    deadline = time.monotonic() + min(_LAST_WORD_S, work.request.stop_timeout_s)
    while time.monotonic() < deadline:
        found = health.assess_stop(jobs.status(store, work.job, work.launch), work.launch)
        if found.done:
            work.say(f"Launch {work.launch}: {found.why}")
            return facts | {"ended": True}
        work.tick()
        time.sleep(work.ports.look_s)
    work.say(f"Launch {work.launch} did not end by itself; it loses the lease")
    return facts | {"ended": False}


def state_cost(work: Work) -> Facts:
    """Say what the way back from a snapshot costs, before it is gone. What cannot be read is no reason to stop."""
    if not work.operation.started("hand_over") or work.request.runbook in GOING_BACK:
        return {}
    try:
        manifest = snapshots.load(work.ports.store, work.job, work.operation.snapshot)
        price = going_back.price(work, manifest, work.number, work.launch)
    except StreamOpsError as error:
        work.say(f"What the way back costs cannot be said: {error}")
        return {}
    for line in cost.lines(price):
        work.say(line)
    return {"cost": price.model_dump(mode="json"), "events_again": sum(price.again.values())}


def restore(work: Work) -> Facts:
    """A new deployment of the old version, from the snapshot that was taken before the switch."""
    old = jobs.deployment(work.ports.store, work.job, work.before.deployment)
    manifest = snapshots.load(work.ports.store, work.job, work.operation.snapshot)
    version = work.version(old.version)
    return install(work, version, manifest, number(work), launch(work), old.params, old.topics)


def take_back(work: Work) -> Facts:
    """From here on nobody else may write; whoever still runs finds that out before its next write."""
    store = work.ports.store
    granted = leases.grant(store, work.job, launch(work), number(work))
    give(work, work.before.version, number(work), launch(work))
    return {"launch": launch(work), "deployment": number(work), "epoch": granted.value.epoch}


def leave(work: Work) -> Facts:
    """The job record as it was, for a job of which nothing ran; who runs by now loses the lease."""
    store = work.ports.store
    leases.grant(store, work.job, launch(work), number(work))
    before = work.before.model_dump(include={"desired", "version", "deployment", "launch", "standby", "snapshot"})
    jobs.change(store, work.job, {**before, "last_deployment": work.number, "changed_by": work.operation.id})
    return {"desired": work.before.desired}


def submit(work: Work) -> Facts:
    """Start it, cold."""
    version = work.version(work.before.version)
    again = work.operation.undo["submit"].tries > 1
    return put(work, submission(work, version, number(work), launch(work)), again=again)


def healthy(work: Work) -> Facts:
    """Wait until it works."""
    version = work.version(work.before.version)
    look = lambda: healthy_now(work, launch(work), version)  # noqa: E731
    why = work.wait(look, work.request.healthy_timeout_s, "Health of the old version").why
    stopped = work.operation.steps.get("request_stop")
    down_s = round((now() - stopped.started).total_seconds(), 1) if stopped else 0.0
    again = work.operation.undo["dismiss"].facts.get("events_again", 0)
    work.say(f"It cost: {again:,} events are processed again; the old version works again after {down_s} s")
    return {"why": why, "events_again": again, "down_s": down_s}


BODIES: dict[str, Callable[[Work], Facts]] = {
    "dismiss": dismiss,
    "restore": restore,
    "take_back": take_back,
    "leave": leave,
    "submit": submit,
    "healthy": healthy,
}
