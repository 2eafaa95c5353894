"""Operations on the time line of the dashboards: one point in InfluxDB for each operation that is over.

The point stands at the time when the operation began, which never changes: a step that is repeated, or an operation
that failed and was then undone, writes over its own point. Receipts stay the record; this is what a chart shows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

from streamops.clients.influx import Points
from streamops.clients.influx import line as point
from streamops.model.names import label
from streamops.operations.receipts import Receipt
from streamops.settings import Settings

MEASUREMENT = "operations"
LIMIT_S = 1.0  # a failed upgrade waits for this before the old version comes back
_LONGEST = 400  # characters of a mark, which is shown in a small box


def kind(runbook: str) -> str:
    """What an operation is called on a chart, such as ``upgrade`` or ``restart``."""
    return runbook.removesuffix("_job").removesuffix("_cluster")


def line(found: Receipt) -> str:
    """An operation as one point: tags ``job`` and ``kind``, fields ``id``, ``state``, ``seconds`` and ``text``.

    The state is no tag: as one, an operation that failed and was then undone would be two points.
    """
    return point(
        MEASUREMENT,
        {"job": found.job, "kind": kind(found.runbook)},
        {"id": found.id, "state": found.state, "seconds": float(found.seconds), "text": text(found)},
        int(found.began.timestamp() * 1000),
    )


def text(found: Receipt) -> str:
    """What the mark says, in one line."""
    asked = found.inputs
    target = f" to {asked['version']}" if asked.get("version") else ""
    size = f" to {asked['size']} members" if asked.get("size") is not None else ""
    change = f" by {asked['change']:+d}" if asked.get("change") is not None else ""
    snapshot = f", snapshot {found.snapshot}" if found.snapshot else ""
    reason = f": {found.reason}" if found.reason else ""
    said = (
        f"{kind(found.runbook)} of {label(found.job)}{target}{size}{change} {found.state} "
        f"after {found.seconds:.1f} s{snapshot}{reason}"
    )
    said = " ".join(said.split())
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"


def mark(settings: Settings, found: Receipt, say: Callable[[str], None]) -> None:
    """Put an operation on the time line, if InfluxDB takes it within a second; never raises.

    The write has a thread of its own, because looking up a host's name can take longer than any time-out of a client.
    """
    problem = [f"InfluxDB did not take it within {LIMIT_S:g} s"]

    def put() -> None:
        try:
            with closing(Points(settings, timeout_s=LIMIT_S)) as points:
                points.write_lines([line(found)])
            problem.clear()
        except Exception as error:  # whatever it is, the operation is over and must stay as it is
            problem[:] = [str(error)]

    writer = threading.Thread(target=put, name="timeline", daemon=True)
    writer.start()
    writer.join(LIMIT_S)
    if told := problem[:1]:
        say(f"Operation {found.id} gets no mark on the dashboards: {' '.join(told[0].split())}")
