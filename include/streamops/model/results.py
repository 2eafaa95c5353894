"""What a result looks like in a results topic, which its query writes and its driver, a snapshot and a recount read.

The key is the point's time in milliseconds since the epoch and its tags. The value begins with who gives it
(``EPOCH.RUN:PARTITION``, of the lease, of the stage's queries in it, and of the state), a space follows, and the
point's columns as JSON.
"""

from __future__ import annotations

import json
from typing import Any

SEPARATOR = "\x01"  # between the parts of a key


def mark(epoch: int, run: int) -> bytes:
    """What a result of a run begins with; the state partition and a space follow."""
    return f"{epoch}.{run}:".encode()


def state_partition(value: bytes) -> int:
    """The state partition that gave a result."""
    return int(value[value.index(b":") + 1 : value.index(b" ")])


def text(value: bytes) -> str:
    """A result's columns as they stand there."""
    return value[value.index(b" ") + 1 :].decode()


def columns(value: bytes) -> dict[str, Any]:
    """A result's columns."""
    found: dict[str, Any] = json.loads(text(value))
    return found


def time_ms(key: bytes) -> int:
    """The time of a result's point, in milliseconds since the epoch."""
    return int(key.split(SEPARATOR.encode(), 1)[0])
