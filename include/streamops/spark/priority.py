"""Who comes first on a machine that jobs share with what is done beside them: the jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

NICE = 10  # of nice(2): a tenth beside busy work; next to nothing would let a check run into its time limit
Result = TypeVar("Result")


def lower(pid: int, nice: int = NICE) -> None:
    """Let others come before a process that leads a session.

    Where Linux shares the processor among sessions first (sched(7), *autogroup*), the priority of a process counts
    only within its own, so that the session's is set too.
    """
    _lower(pid, nice)
    with suppress(OSError):  # no autogroups here
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")


def in_background(act: Callable[[], Result]) -> Result:
    """Do something in a thread of low priority, and in threads that it starts; what it returns, or raises.

    On Linux each thread has a priority of its own, and a new one inherits it; the caller keeps the one it had, which
    it could not raise again.
    """
    with ThreadPoolExecutor(1, initializer=lambda: _lower(threading.get_native_id())) as pool:
        return pool.submit(act).result()


def _lower(process: int, nice: int = NICE) -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, max(nice, os.getpriority(os.PRIO_PROCESS, process)))
