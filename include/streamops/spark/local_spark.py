"""Local Spark, asked in a process of its own: the core stays free of it, and its memory is given back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamops.model.errors import NotFoundError
from streamops.settings import Settings
from streamops.spark import jvm, priority

_PLACES = ("PATH", "LANG", "LC_ALL", "TMPDIR", "JAVA_HOME", "SPARK_HOME", "VIRTUAL_ENV", "SPARK_LOCAL_IP")
PACKAGES = Path(__file__).resolve().parents[2]  # of this checkout or installation: streamops is one of them


@dataclass(frozen=True)
class Asked:
    """How a process ended: its exit code, its answers (one JSON object a line), and the last line of its errors."""

    code: int
    answers: list[dict[str, Any]]
    error: str


def runtime_package() -> Path:
    """Directory of the package ``streamops_runtime``. Raises NotFoundError."""
    for place in (PACKAGES.parent / "spark_jobs" / "streamops_runtime", PACKAGES / "streamops_runtime"):
        if (place / "runner.py").is_file():
            return place
    raise NotFoundError("The package streamops_runtime is not beside streamops; install StreamOps completely.")


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ``streamops_runtime``."""
    return [sys.executable, "-m", f"streamops_runtime.{module}", *arguments]


def environment(library: Path | None = None, *, bare: Path | None = None) -> dict[str, str]:
    """What such a process finds: both packages, and a job's shared library if it has one.

    Args:
        bare: the home directory of a process that is to find nothing of this one's environment but where things are.
    """
    places = [str(runtime_package().parent), str(PACKAGES)]
    places += [str(library.resolve())] if library else []
    places.append(os.environ.get("PYTHONPATH", ""))
    home = {} if "SPARK_HOME" in os.environ else _spark_home()
    inherited = dict(os.environ)
    if bare:
        inherited = {name: os.environ[name] for name in _PLACES if name in os.environ} | {"HOME": str(bare)}
    return {**inherited, **home, "PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"}


def _spark_home() -> dict[str, str]:
    """This host's installation of Spark, if there is one that keeps an archive of its classes: it starts sooner."""
    try:
        home = Settings.load().spark_home
    except (NotFoundError, ValueError):
        return {}  # publish says what is wrong with an installation; a try-out and a check of a directory need none
    return {"SPARK_HOME": home} if home and jvm.archive(home).exists() else {}


def ask(
    module: str,
    *arguments: str,
    timeout_s: float,
    library: Path | None = None,
    gives_way: bool = False,
    bare: Path | None = None,
) -> Asked:
    """Run a module to its end.

    Args:
        bare: as for ``environment``; the process also works there.
        gives_way: whether jobs on the same machine come first; it may then take several times as long.

    Raises:
        TimeoutError: after ``timeout_s`` seconds.
    """
    with subprocess.Popen(
        command(module, *arguments),
        env=environment(library, bare=bare), cwd=bare, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,  # its priority is then its own, and all of it can be ended at once
    ) as process:  # fmt: skip
        try:
            if gives_way:
                priority.lower(process.pid)
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # its JVM as well
    answers = []
    for line in stdout.splitlines():
        with suppress(ValueError):  # a job's code may print as well
            if isinstance(answer := json.loads(line), dict):
                answers.append(answer)
    return Asked(process.returncode, answers, (stderr.strip().splitlines() or ["no message"])[-1])
