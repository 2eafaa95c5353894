"""Many upgrades, one after the other, under load: what grows with each, and whether every result stays right."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory import measure
from benchmarks.session import Session
from demos.upgrade import JOB
from stack.layout import Layout
from streamops.model.errors import StreamOpsError
from streamops.operations.facts import Recounted
from streamops.store import keys

PAUSE_S = 10.0  # after each upgrade: what goes away by itself has gone


@dataclass(frozen=True)
class Look:
    """What there is after an upgrade.

    Attributes:
        seconds: of the runbook.
        points: what its recount compared, and found right.
        memory: of all processes of the stack, in bytes (PSS).
        objects: how many of each kind belong to the job.
        disk: what the object store takes, in bytes, replaced and deleted objects included.
    """

    seconds: float
    points: int
    memory: int
    processes: int
    objects: dict[str, int]
    disk: int


def run(session: Session, times: int) -> dict[str, Any]:
    """Upgrade v2 to itself by a cold start, which leaves no time to tidy up in between."""
    session.to_v2()
    looks: list[Look] = []
    failed: list[str] = []
    for number in range(1, times + 1):
        try:
            operation, _, _ = session.upgrade("v2", standby=False, logging={"root": "INFO"})
        except StreamOpsError as error:
            failed.append(str(error))
            print(f"{number} of {times} failed: {error}", flush=True)
            session.caught_up()
            continue
        session.caught_up()
        time.sleep(PAUSE_S)
        memory = measure(session.supervisor)
        looks.append(
            Look(
                seconds=round((operation.updated - operation.created).total_seconds(), 1),
                points=operation.reported("recount", Recounted).compared,
                memory=memory.total,
                processes=memory.processes,
                objects=_objects(session),
                disk=sum(_size(path) for path in (Layout.find().data / "minio").rglob("*")),
            )
        )
        print(f"{number} of {times}: {looks[-1]}", flush=True)
    return {"looks": [asdict(look) for look in looks], "failed": failed}


def _objects(session: Session) -> dict[str, int]:
    kinds = {**keys.removable(JOB), "operations": (keys.operations(JOB),), "receipts": (keys.receipts(JOB),)}
    return {
        kind: sum(1 for prefix in prefixes for _ in session.demo.store.list(prefix)) for kind, prefixes in kinds.items()
    }


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:  # removed meanwhile
        return 0
