"""Which container engine and Compose there are, and whether the stack can start on them.

``check`` is what ``make compose-up`` calls first: it reads, and ``too_old`` and ``refusals`` decide.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack import builds, ports
from stack.layout import REPOSITORY
from streamops.model.errors import NotFoundError, RefusedError, UnreachableError

# Engine 20.10 is the oldest that limits the memory of containers on control groups 2, which today's systems have.
OLDEST_API, OLDEST_ENGINE = (1, 41), "20.10"
# From 2.21 on Compose prints one JSON object a line for each container, which is read here.
OLDEST_COMPOSE = (2, 21)
INSTALL = "Install Docker Engine (on Debian: apt-get install docker.io)"
ANSWER_S = 30.0
SPARE = "streamops.spare"  # the label of a node whose worker is not started at first
KERNEL = 0.1  # the part of a machine's memory that the engine may not count: one of 8 GiB has 7.7, or less

Version = tuple[int, ...]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Tools:
    """The commands, as the first words of a command line."""

    docker: tuple[str, ...]
    compose: tuple[str, ...]


@dataclass(frozen=True)
class Port:
    """A published port, the service behind it, and who else holds it."""

    number: int
    service: str
    holder: str | None = None


@dataclass(frozen=True)
class Engine:
    """What answers: its version, its API's, and the bytes of memory that its containers share."""

    version: str
    api: Version
    memory: int


@dataclass(frozen=True)
class Needs:
    """What the compose file asks for: bytes of memory by service, and ports."""

    limits: Mapping[str, int]
    ports: tuple[Port, ...] = ()


def check(directory: Path = REPOSITORY, say: Say = print) -> Tools:
    """Find the tools and see that the stack can start.

    Raises:
        NotFoundError: there is no Docker, or no Compose and nothing to build it with.
        UnreachableError: no engine answers.
        RefusedError: the engine is too old, has too little memory, or published ports are in use.
    """
    docker = _docker()
    engine = _engine(docker)
    _refuse(too_old(engine))
    tools = Tools(docker, _compose(docker, say))
    _refuse(refusals(engine, _needs(tools, directory)))
    return tools


def find(say: Say = print) -> Tools:
    """The tools alone, for commands that start nothing. Raises NotFoundError."""
    docker = _docker()
    return Tools(docker, _compose(docker, say))


def too_old(engine: Engine) -> list[str]:
    """Why the engine is too old, with the next step; empty when it is not."""
    if engine.api >= OLDEST_API:
        return []
    return [
        f"Docker Engine {engine.version} is too old (API {_dotted(engine.api)}, needed {_dotted(OLDEST_API)}). "
        f"Install Docker Engine {OLDEST_ENGINE} or newer and run this again."
    ]


def refusals(engine: Engine, needs: Needs) -> list[str]:
    """Why the stack cannot start, a sentence and a next step each; empty when it can."""
    found = []
    held = [port for port in needs.ports if port.holder]
    if held:
        which = "; ".join(f"port {port.number} ({port.service}) is held by {port.holder}" for port in held)
        found.append(f"Published ports are in use: {which}. Stop what holds them and run this again.")
    total = sum(needs.limits.values())
    if total * (1 - KERNEL) > engine.memory:
        largest = sorted(needs.limits, key=lambda name: -needs.limits[name])[:3]
        found.append(
            f"The containers may take {_gib(total)} of memory ({', '.join(largest)} the most), and the engine has "
            f"{_gib(engine.memory)}. Give the machine, or the engine's virtual machine, more memory."
        )
    return found


def _refuse(reasons: Sequence[str]) -> None:
    if reasons:
        raise RefusedError("\n".join(reasons))


def _docker() -> tuple[str, ...]:
    if not shutil.which("docker"):
        raise NotFoundError(f"There is no 'docker' on PATH. {INSTALL} and run this again.")
    return ("docker",)


def _engine(docker: Sequence[str]) -> Engine:
    """What answers. Raises UnreachableError."""
    asked = _run([*docker, "version", "--format", "{{json .}}"])
    version = _object(asked).get("Server")
    info = _object(_run([*docker, "info", "--format", "{{json .}}"])) if version else {}
    if not version or not info.get("MemTotal"):
        said = next((f" ({line})" for line in asked.stderr.splitlines() if line), "")
        raise UnreachableError(
            f"No container engine answers{said}. Start it (on Linux: systemctl start docker), see that this user may "
            "use it, and run this again. It must be on this machine."
        )
    return Engine(version["Version"], _version(version["ApiVersion"]), int(info["MemTotal"]))


def _compose(docker: Sequence[str], say: Say) -> tuple[str, ...]:
    """Docker's plugin, else a program of that name, else the pinned one, which is built on first use."""
    try:
        given = builds.COMPOSE.find()
    except builds.BuildError as error:
        raise NotFoundError(str(error)) from error
    candidates = [(*docker, "compose"), *([(str(given),)] if given else [])]
    versions = {command: _asked_version(command) for command in candidates}
    for command, version in versions.items():
        if version >= OLDEST_COMPOSE:
            return command
    there = [f"{' '.join(command)} is {_dotted(version)}" for command, version in versions.items() if version]
    if not shutil.which("go"):
        raise NotFoundError(
            f"Docker Compose {_dotted(OLDEST_COMPOSE)} or newer is missing{f' ({there[0]})' if there else ''}. "
            "Install Docker's Compose plugin (docker-compose-plugin), or Go 1.26 to build it, and run this again."
        )
    say("Docker Compose is missing: building the pinned one, which takes some minutes once ...")
    return (str(_built()),)


def _built() -> Path:
    log = builds.cache() / "log" / f"{builds.COMPOSE.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (builds.cache() / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # set-up holds it too: no one builds the same thing twice
        target = builds.COMPOSE.target()
        try:
            return target if target.is_file() else builds.COMPOSE.build(log)
        except builds.BuildError as error:
            raise NotFoundError(f"Docker Compose is missing and cannot be built: {error}") from error


def _needs(tools: Tools, directory: Path) -> Needs:
    """What the compose file asks for, without the ports that its own containers hold already. Raises RefusedError."""
    asked = _run([*tools.compose, "config", "--format", "json"], directory)
    project = _object(asked)
    if "services" not in project:
        said = " ".join(asked.stderr.split()) or "no reason given"
        raise RefusedError(f"Compose cannot read docker-compose.yaml: {said}. Correct it and run this again.")
    own = {
        publisher["PublishedPort"]
        for container in _lines(_run([*tools.compose, "ps", "--format", "json"], directory))
        for publisher in container.get("Publishers") or ()
    }
    wanted = [port for port in published(project) if port.number not in own]
    held = tuple(Port(port.number, port.service, _holder(tools.docker, port.number)) for port in wanted)
    return Needs(limits(project), held)


def published(project: Mapping[str, Any]) -> list[Port]:
    """Ports that the services publish, from what ``compose config`` prints."""
    return [
        Port(int(port["published"]), name)
        for name, service in project["services"].items()
        for port in service.get("ports") or ()
        if str(port.get("published") or "").isdigit()
    ]


def limits(project: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of memory that each service may take, of those that run at the same time.

    A service that others wait for to be over needs nothing while they run, and a spare node next to nothing.
    """
    services = project["services"]
    over = {
        name
        for service in services.values()
        for name, needed in (service.get("depends_on") or {}).items()
        if needed.get("condition") == "service_completed_successfully"
    }
    over |= {name for name, service in services.items() if SPARE in (service.get("labels") or {})}
    return {name: found for name, service in services.items() if name not in over and (found := _limit(service))}


def _limit(service: Mapping[str, Any]) -> int:
    deployed = ((service.get("deploy") or {}).get("resources") or {}).get("limits") or {}
    return int(service.get("mem_limit") or deployed.get("memory") or 0)


def _holder(docker: Sequence[str], port: int) -> str | None:
    """Who holds a port: a container, if one publishes it; else a process of this machine."""
    containers = [*docker, "ps", "--filter", f"publish={port}", "--format", "{{.Names}}"]
    names = _run(containers).stdout.split()
    return f"container {names[0]}" if names else ports.holder(port)


def _asked_version(compose: Sequence[str]) -> Version:
    answer = _run([*compose, "version", "--short"])
    return _version(answer.stdout) if answer.returncode == 0 else ()


def _version(text: str) -> Version:
    """``v2.40.3-desktop.1`` is (2, 40, 3)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    return tuple(map(int, found[1].split("."))) if found else ()


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _gib(size: int) -> str:
    return f"{size / 1024**3:.1f} GiB"


def _run(command: Sequence[str], directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", "no answer in time")


def _lines(answer: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """One JSON object a line."""
    return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


def _object(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a command printed; empty when that is no JSON object, as when there is no engine."""
    try:
        found = json.loads(answer.stdout)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
