"""Filling a stage's state again from the ledger: where it begins to read, and from where on its results are whole.

A window needs the events of its own span and no others. So a stage all of whose state is windows can leave its old
state behind: it starts empty, reads from one span of its windows before the switch on, and leaves out the windows that
the old version had finished. No result is missing, and none is partial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamops.versions.fingerprints import Fingerprint

LONGEST_MS = 15 * 60_000  # of the windows: what is read again delays the stage, and the ledger must still have it


@dataclass(frozen=True)
class Refill:
    """Events from ``since_ms`` on make all results after ``whole_after_ms`` whole; both since the epoch."""

    since_ms: int
    whole_after_ms: int


def reach_ms(stage: Fingerprint, ledger: Mapping[str, str]) -> int | None:
    """How far before its end a result's events may lie; None for a stage that cannot be filled again.

    Args:
        ledger: the sources that can be read again from any event time on, with the column that holds it.
    """
    times = {f"{source}.{column}" for source, column in ledger.items()}
    watched = {column for watermark in stage.watermarks for column in watermark.column.split(" or ")}
    if not set(stage.sources) <= set(ledger) or not (stage.reads or watched <= times):
        return None
    found = [operator.window for operator in stage.operators]
    if not found or any(operator.kind != "aggregation" for operator in stage.operators):
        return None
    if any(window is None or window.kind == "session" for window in found):
        return None
    total = sum(window.size_us for window in found if window) // 1000  # windows over windows reach as far as both
    return total if total <= LONGEST_MS else None


def can_fill(stage: Fingerprint, ledger: Mapping[str, str]) -> bool:
    """Whether a new stage may begin earlier than the others: nobody gives again what it reads of another stage."""
    return not stage.reads and reach_ms(stage, ledger) is not None


def plan(watermark_ms: int, reach: int, *, stands_at_end: bool) -> Refill:
    """Where a stage begins that was stopped at a watermark.

    Args:
        watermark_ms: windows that end by then are finished: they were written.
        reach: of the new windows, see ``reach_ms``.
        stands_at_end: a result's time is the end of its window. If that is not known, results of one reach before the
            watermark are written once more, with the same values.
    """
    whole_after = watermark_ms if stands_at_end else watermark_ms - reach
    return Refill(whole_after - reach, whole_after)
