"""How much processor time the parts of a stack take."""

from __future__ import annotations

import psutil

PARTS = (  # the first whose word is in a command line names the part
    ("executors", "CoarseGrainedExecutorBackend"),
    ("driver, JVM", "DriverWrapper"),
    ("driver, Python", "bootstrap.py"),
    ("kafka", "kafka.Kafka"),
    ("minio", "minio"),
    ("influxdb", "influxd"),
    ("generator", "stack.generator"),
    ("airflow", "airflow"),
)
JOB = ("executors", "driver, JVM", "driver, Python")

Used = dict[tuple[str, int], float]  # part and process -> seconds


def used(supervisor: int) -> Used:
    """Processor time of every process below a supervisor so far."""
    root, found = psutil.Process(supervisor), {}
    for process in [root, *root.children(recursive=True)]:
        try:
            times, line = process.cpu_times(), process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        found[_part(line), process.pid] = times.user + times.system
    return found


def shares(before: Used, after: Used, seconds: float) -> dict[str, float]:
    """Cores by part between two moments; a process that ended in between is not counted."""
    total: dict[str, float] = {}
    for key, value in after.items():
        total[key[0]] = total.get(key[0], 0.0) + (value - before.get(key, 0.0)) / seconds
    return {part: round(cores, 3) for part, cores in sorted(total.items())}


def _part(line: list[str]) -> str:
    text = " ".join(line)
    return next((part for part, word in PARTS if word in text), "other")
