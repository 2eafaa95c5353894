"""Restore tests, as far as nothing acts: the scratch job, which snapshot is due, how far the job must continue.

The scratch job is the snapshot's version under another name, whose points go to measurements of their own. No one
else reads them, and at the end they go with the job.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from streamops.model.definitions import Definition, milliseconds
from streamops.model.manifest import Manifest
from streamops.model.names import SCRATCH
from streamops.model.records import DriverStatus, Offsets
from streamops.snapshots.marks import Checks

FRESH = timedelta(days=7)  # a job of which a snapshot was restored since then is left alone
LEAST_MS = 60_000  # of event time that it must continue, and two windows at least, unless the events end before
# Of events that are read before a window begins: one that is read from its middle is not compared, and a partition may
# have had no event for a while.
MARGIN_MS = 120_000
_LONGEST_NAME = 63
_OWN = re.compile(r"scratch_[0-9a-f]{8}_.*")


def scratch_name(job: str) -> str:
    """The name of a job's scratch job; no published job may have such a name."""
    name = f"{SCRATCH}{job}"
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 9]}-{_digest(job)}"


def derived(definition: Definition, test: str) -> Definition:
    """The scratch job's definition: it computes the same, and writes only what is its own.

    Args:
        test: what makes the measurements of this test different from those of any other.
    """
    return definition.model_copy(
        update={
            "job": scratch_name(definition.job),
            "description": f"Restore test of {definition.job} {definition.version}; removed when it ends.",
            "trigger": None,
            "stages": definition.writing(lambda measurement: _own(measurement, test)),
            "standby_driver": False,
            "snapshots": None,
        }
    )


def _own(measurement: str, test: str) -> str:
    return f"scratch_{_digest(test + measurement)}_{measurement}"[:_LONGEST_NAME]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def is_scratch(definition: Definition) -> bool:
    """Whether a version is a restore test's, and not a job's that has such a name for another reason."""
    return definition.job.startswith(SCRATCH) and all(_OWN.fullmatch(name) for name in definition.measurements)


def due(known: Iterable[tuple[Manifest, Checks]], moment: datetime, fresh: timedelta = FRESH) -> Manifest | None:
    """The snapshot of a job to restore now: its newest good one, if none of them was restored for a while.

    Args:
        known: the job's snapshots with what verifications found of each.
    """
    rows = list(known)
    last = max((item.when for _, found in rows if (item := found.checks.get("restored"))), default=None)
    if last is not None and moment - last < fresh:
        return None
    good = [manifest for manifest, found in rows if not found.problem()]
    return max(good, key=lambda manifest: manifest.created, default=None)


def recount_from(
    definition: Definition, manifest: Manifest, offsets_at: Callable[[str, int], Mapping[str, int]]
) -> tuple[Offsets, dict[str, int]]:
    """From where the ledger is read, and after which window of each stage points are compared.

    Windows that were open in the snapshot count as well, since their state is what it holds; so events are read from
    before they began. A stage that writes updates is left out: what the real job has written of an open window is not
    written again when no event follows.

    Args:
        offsets_at: source and time in milliseconds -> the first offset of each partition since then.

    Returns:
        Source -> partition -> offset, and stage -> end of its last closed window in milliseconds.
    """
    after: dict[str, int] = {}
    earliest: dict[str, int] = {}
    for name, stage in definition.stages.items():
        held = manifest.stages.get(name)
        if stage.recount is None or stage.output != "append" or held is None or not held.watermark_ms:
            continue
        after[name] = held.watermark_ms
        reach = stage.recount.reach_ms + milliseconds(stage.recount.delay) + MARGIN_MS
        begun = held.watermark_ms - reach
        earliest[stage.recount.source] = min(begun, earliest.get(stage.recount.source, begun))
    return {source: dict(offsets_at(source, begun)) for source, begun in earliest.items()}, after


def waiting_for(
    status: DriverStatus | None, definition: Definition, manifest: Manifest, ends: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """What the scratch job has yet to do, in words, stage by stage; empty when it has gone on far enough.

    Far enough is two windows and a minute of event time, or all events that there were when it began.

    Args:
        ends: source -> partition -> end of its topic when the test began.
    """
    told = []
    for name, stage in definition.stages.items():
        found, held = status.stages.get(name) if status else None, manifest.stages.get(name)
        if found is None or not (found.commits or found.quiet):
            told.append(f"{name}: its first batch")
            continue
        if _at_the_end({**(held.offsets if held else {}), **found.offsets}, ends):
            continue
        wanted = LEAST_MS + (2 * stage.recount.reach_ms if stage.recount else 0)
        gone = (found.watermark_ms or 0) - (held.watermark_ms or 0) if held and held.watermark_ms else 0
        if gone < wanted:
            told.append(f"{name}: {max(0, gone) / 1000:.0f} of {wanted / 1000:.0f} s")
    return told


def _at_the_end(read: Offsets, ends: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a stage has read all that there was, of the sources that it reads."""
    return all(
        read[source].get(part, 0) >= end for source in ends if source in read for part, end in ends[source].items()
    )
