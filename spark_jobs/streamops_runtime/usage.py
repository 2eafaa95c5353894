"""What a driver takes of its node: this process, and the JVM that started it. Executors are other processes."""

from __future__ import annotations

import psutil


def taken() -> dict[str, float | int]:
    """Seconds of processor time so far and bytes of memory now, as a status has them; nothing where no one says."""
    try:
        both = [psutil.Process(), *psutil.Process().parents()[:1]]
        times = [process.cpu_times() for process in both]
        memory = sum(process.memory_info().rss for process in both)
    except psutil.Error:
        return {}
    return {"cpu_s": round(sum(each.user + each.system for each in times), 2), "memory_bytes": memory}
