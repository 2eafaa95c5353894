"""What the numbers were measured on, and where they are kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).parent / "results"


def describe() -> dict[str, Any]:
    """The machine and the versions, without anything that names it."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": _system(),
        "python": platform.python_version(),
        "java": _java(),
    }


def save(name: str, result: dict[str, Any]) -> Path:
    """Keep a result with the machine and the time; the newest of its name is what the tables show."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    measured = {"name": name, "measured": datetime.now(UTC).isoformat(timespec="seconds"), "machine": describe()}
    path.write_text(json.dumps(measured | result, indent=1) + "\n")
    return path


def load(name: str) -> dict[str, Any] | None:
    """A kept result, or None."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _system() -> str:
    release = platform.freedesktop_os_release()
    return release.get("PRETTY_NAME", platform.system())


def _java() -> str:
    try:
        text = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=20).stderr
    except OSError:
        return "unknown"
    return text.split('"')[1] if '"' in text else text.strip()[:40]
