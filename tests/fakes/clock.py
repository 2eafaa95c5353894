"""Another time of day for some processes."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def other_clock(offset: str) -> dict[str, str]:
    """An environment whose processes read another time of day (``+1h``); intervals stay as they are.

    libfaketime's repair of waits on the monotonic clock is off: with it, a wait of the JVM ends at once, and an
    executor that spins made no progress for minutes.
    """
    found = importlib.util.find_spec("libfaketime")
    assert found is not None
    assert found.origin is not None
    library = next(Path(found.origin).parent.rglob("libfaketime.so.1"))
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }
