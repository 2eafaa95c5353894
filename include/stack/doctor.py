"""What this machine lacks for a stack; looks only, changes nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from stack import builds
from stack.layout import PORTS, Layout
from stack.ports import holder
from stack.supervision import running
from streamops.spark import jvm


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``detail`` says what was found, or what to do."""

    what: str
    ok: bool
    detail: str


def doctor(home: Path | str | None = None) -> list[Finding]:
    """Look at everything a stack needs."""
    layout = Layout.find(home)
    found = [_python(), _java(), _packages(), *(_server(server) for server in builds.ALL), _postgres(), _spark()]
    return [*found, _space(layout), _memory(), _ports(layout)]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    fits = builds.python_fits(sys.version_info[:2])
    return Finding("Python", fits, f"{version} ({sys.executable}); needed: {builds.PYTHONS}")


def _java() -> Finding:
    try:
        answer = subprocess.run([builds.java(), "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        install = "install Java 17 (apt-get install openjdk-17-jre-headless), or correct JAVA_HOME"
        return Finding("Java", False, f"'{builds.java()}' does not run; {install}")
    version = answer.stderr.splitlines()[0] if answer.stderr else "unknown"
    return Finding("Java", '"17.' in version or '"21.' in version, f"{version}; needed: 17 or 21")


def _postgres() -> Finding:
    found = builds.postgres()
    told = ", ".join(f"{release} in {place}" for release, place in found.items())
    return Finding("PostgreSQL", bool(found), told or "not installed; run 'make setup'")


def _packages() -> Finding:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    return Finding("Python pkgs", True, "installed") if done.returncode == 0 else _broken(done.stdout)


def _broken(text: str) -> Finding:
    return Finding("Python pkgs", False, f"{text.splitlines()[0] if text else 'pip check failed'}; run 'make setup'")


def _server(server: builds.GoServer | builds.Jars) -> Finding:
    try:
        path = server.find()
    except builds.BuildError as error:
        return Finding(server.name, False, str(error))
    return Finding(server.name, path is not None, str(path) if path else "not built yet; run 'make setup'")


def _spark() -> Finding:
    try:
        home = builds.spark_home()
    except builds.BuildError as error:
        return Finding("Spark", False, str(error))
    if (archive := jvm.archive(home)).is_file():
        return Finding("Spark", True, str(home))
    again = f"remove {archive.with_suffix('.mark')} and run 'make setup' to try again"
    return Finding("Spark", True, f"{home}; without an archive of its classes drivers start seconds later, {again}")


def _space(layout: Layout) -> Finding:
    there = next(parent for parent in (layout.home, *layout.home.parents) if parent.exists())
    free = shutil.disk_usage(there).free / (1 << 30)
    return Finding("Disk", free >= 10, f"{free:.0f} GiB free at {there}; wanted: 10")


def _memory() -> Finding:
    import psutil

    free = psutil.virtual_memory().available / (1 << 30)
    return Finding("Memory", free >= 10 or psutil.virtual_memory().total > 12 << 30, f"{free:.0f} GiB free; wanted: 10")


def _ports(layout: Layout) -> Finding:
    if running(layout):
        return Finding("Ports", True, "the stack is running")
    taken = [f"{layout.port(name)} ({name}) by {who}" for name in PORTS if (who := holder(layout.port(name)))]
    return Finding("Ports", not taken, f"taken: {'; '.join(taken)}" if taken else "all free")
