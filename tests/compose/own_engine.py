"""A container engine for the compose tests: the one that answers, else one of their own.

Run as a program it keeps an engine of its own until it is asked to end:

    python tests/compose/own_engine.py build/compose-engine
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "include"))

from stack import builds, install

DIRECTORY = install.REPOSITORY / "build" / "compose-engine"
PACKAGES = ("docker.io", "iptables")
LONGEST_ADDRESS = 107  # of a Unix socket, in bytes


class NoEngineError(Exception):
    """No container engine answers and none can be started here; the message says why."""


def answers(environment: Mapping[str, str]) -> bool:
    """Whether a container engine answers where the environment points to."""
    if not shutil.which("docker", path=environment.get("PATH")):
        return False
    command = ["docker", "info", "--format", "{{.ServerVersion}}"]
    try:
        asked = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0 and bool(asked.stdout.strip())  # old clients end with 0 and no version


@contextlib.contextmanager
def engine(directory: Path = DIRECTORY, start_s: float = 90) -> Iterator[dict[str, str]]:
    """The environment in which ``docker`` reaches an engine.

    An engine that answers is used and left alone. Otherwise one is started with everything it keeps in ``directory``,
    which makes a second start a warm one, and exactly that one is stopped at the end.

    Raises:
        NoEngineError: there is none, and none can be started.
    """
    socket = directory.resolve() / "docker.sock"
    environment = os.environ | {"DOCKER_HOST": f"unix://{socket}"}
    found = next((there for there in (os.environ, environment) if answers(there)), None)
    if found is None:
        _installable(socket)
        found = os.environ if answers(os.environ) else None  # installing may have started one
    if found is not None:
        yield _plain(found)
        return
    process = _start(directory.resolve(), socket)
    try:
        _wait(process, environment, directory / "dockerd.log", start_s)
        yield _plain(environment)
    finally:
        _stop(process)


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    """Where the client has no BuildKit of its own, it shall not complain about that at every build."""
    command = ["docker", "buildx", "version"]
    has = subprocess.run(command, env=dict(environment), capture_output=True, check=False).returncode == 0
    return dict(environment) if has else {"DOCKER_BUILDKIT": "0", **environment}


def _installable(socket: Path) -> None:
    """Install what an engine needs. Raises NoEngineError."""
    if len(os.fsencode(socket)) > LONGEST_ADDRESS:
        raise NoEngineError(f"{socket} is too long for the address of a socket; give a shorter directory.")
    if shutil.which("dockerd") and shutil.which("docker") and os.geteuid() == 0:
        return
    if os.geteuid() != 0:
        raise NoEngineError("No container engine answers, and only root can start one: start Docker and try again.")
    try:
        install.debian_packages(PACKAGES)
    except (builds.BuildError, OSError) as error:
        raise NoEngineError(f"No container engine answers and Debian's cannot be installed: {error}") from error


def _start(directory: Path, socket: Path) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "dockerd.pid").unlink(missing_ok=True)  # nothing answers, so it is of one that was killed
    command = ["dockerd", "--host", f"unix://{socket}", "--data-root", str(directory / "data")]
    command += ["--exec-root", str(directory / "exec"), "--pidfile", str(directory / "dockerd.pid"), "--group", "root"]
    with (directory / "dockerd.log").open("ab") as log:
        # A session of its own: Ctrl-C in the terminal must not stop the engine before the tests have tidied up.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _wait(process: subprocess.Popen[bytes], environment: Mapping[str, str], log: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not answers(environment):
        if process.poll() is not None or time.monotonic() > until:
            what = "ended" if process.poll() is not None else f"did not answer within {seconds:.0f} s"
            tail = "".join(f"\n    {line}" for line in log.read_text(errors="replace").splitlines()[-8:])
            raise NoEngineError(f"dockerd was started and {what}; its log {log} ends with:{tail}")
        time.sleep(0.5)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()  # it stops its containers and its containerd itself
    try:
        process.wait(90)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(directory: Path) -> int:
    """Keep an engine until SIGTERM or SIGINT; returns the exit code."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    try:
        with engine(directory) as environment:
            print(f"export DOCKER_HOST={environment.get('DOCKER_HOST', '')}", flush=True)
            over.wait()
    except NoEngineError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY))
