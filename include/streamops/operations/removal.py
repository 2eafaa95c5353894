"""Removing a job with everything that belongs to it, and saying what that was."""

from __future__ import annotations

from typing import Any

from streamops.operations.context import Work
from streamops.store import keys


def remove(work: Work) -> dict[str, Any]:
    """Delete the job's objects, kind by kind; what is gone already is not an error, so the step can be run again.

    Results in the sinks stay: other readers may need them.
    """
    store, removed = work.ports.retention(), {}
    found = work.operation.facts("check")
    for kind, prefixes in keys.removable(work.job).items():
        number = 0
        for prefix in prefixes:
            objects = [info.key for info in store.list(prefix)]
            store.delete(objects)
            number += len(objects)
            work.tick()
        removed[f"{kind}_objects"] = number
        named = ", ".join(found.get(kind, ())) if kind in ("snapshots", "versions") else ""
        work.say(f"Removed {kind} of {work.job}: {number:,} objects{f' ({named})' if named else ''}")
    return removed
