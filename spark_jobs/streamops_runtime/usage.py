"""What a driver takes of its node: this process, and the JVM that started it. Executors are other processes."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def taken() -> dict[str, float | int]:
    """Seconds of processor time so far and bytes of memory now, as a status has them; nothing where no one says.

    See proc(5), ``stat`` and ``statm``.
    """
    ticks = pages = 0
    try:
        for pid in (os.getpid(), os.getppid()):
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(after_name[11]) + int(after_name[12])  # of the user, and of the system for it
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return {}
    return {"cpu_s": round(ticks / _TICKS, 2), "memory_bytes": pages * _PAGE}
