"""How much memory all processes of a stack take, by part."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PARTS = (  # the first that matches a command line names the part
    ("spark", ("org.apache.spark", "pyspark", "bootstrap.py", "streamops_runtime")),
    ("kafka", ("kafka.Kafka",)),
    ("minio", ("minio",)),
    ("influxdb", ("influxd",)),
    ("airflow", ("airflow",)),
    ("generator", ("stack.generator",)),
)


@dataclass(frozen=True)
class Sample:
    """Bytes by part. PSS shares common pages among the processes that map them, so that sums are honest."""

    at: float
    pss: dict[str, int]
    rss: dict[str, int]
    processes: int

    @property
    def total(self) -> int:
        """All parts together, PSS."""
        return sum(self.pss.values())


def measure(supervisor_pid: int) -> Sample:
    """One look at a supervisor and everything below it: workers are its children, drivers are theirs."""
    root = psutil.Process(supervisor_pid)
    pss: dict[str, int] = {}
    rss: dict[str, int] = {}
    processes = [root, *root.children(recursive=True)]
    for process in processes:
        try:
            part = _part(" ".join(process.cmdline()))
            info = process.memory_full_info()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        pss[part] = pss.get(part, 0) + info.pss
        rss[part] = rss.get(part, 0) + info.rss
    return Sample(time.time(), pss, rss, len(processes))


def supervisor_pid(home: Path) -> int:
    """The supervisor of the stack at ``home``."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any("supervisord" in word for word in line) and any(str(home) in word for word in line):
            return int(process.pid)
    raise SystemExit(f"No supervisor runs for {home}; start the stack first: make up")


@dataclass
class Sampler:
    """Samples in a thread of its own while something else continues."""

    pid: int
    every_s: float = 2.0
    samples: list[Sample] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.samples.append(measure(self.pid))
            self._stop.wait(self.every_s)

    @property
    def peak(self) -> Sample:
        """The sample with the highest total."""
        return max(self.samples, key=lambda sample: sample.total)


def _part(command: str) -> str:
    return next((name for name, words in PARTS if any(word in command for word in words)), "other")
