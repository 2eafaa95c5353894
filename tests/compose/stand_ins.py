"""Published images where they cannot be pulled: stood in for by images of the same versions under the same names.

An image that is there, or that can be pulled, is left as it is. Run as a program it makes what is missing and lists
which images are which:

    python tests/compose/stand_ins.py
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import yaml

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "include"))

from stack import builds, install

RECIPES = Path(__file__).resolve().parent / "stand_ins"
LABEL, KEY = "streamops.stand-in", "streamops.stand-in.key"
ROOTFS = "streamops-stand-in-rootfs"
AUTHORITIES = Path("/usr/local/share/ca-certificates")
PULL_S = 120.0

Environment = Mapping[str, str]
Kind = Literal["published", "stand-in", "missing"]


class NoStandInError(Exception):
    """An image has no stand-in; the message says why."""


@dataclass(frozen=True)
class Image:
    """One published image: whether it is itself, stood in for, or missing, and why."""

    name: str
    kind: Kind
    detail: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """How an image is stood in for: the directory of its Dockerfile, and what that is given for a version."""

    directory: str
    version: Callable[[str], str]  # the version that a tag asks for -> the one that it gets
    context: Callable[[], dict[str, Path]] = dict


def published(repository: Path = install.REPOSITORY) -> tuple[str, ...]:
    """Every image that the Dockerfile and docker-compose.yaml take from elsewhere, those to build on first."""
    found: dict[str, None] = {}
    own: set[str] = set()
    for line in (repository / "Dockerfile").read_text().splitlines():
        if base := re.match(r"FROM\s+(\S+)(?:\s+AS\s+(\S+))?", line, re.IGNORECASE):
            if base[1] not in own:
                found[base[1]] = None
            own.add(base[2])
    services = yaml.safe_load((repository / "docker-compose.yaml").read_text())["services"].values()
    built = {service.get("image") for service in services if "build" in service}
    found |= {
        service["image"]: None for service in services if "build" not in service and service["image"] not in built
    }
    return tuple(sorted(found, key=lambda name: not name.startswith("debian:")))


def prepare(environment: Environment, names: Iterable[str] = ()) -> list[Image]:
    """See to it that the images are there, as far as that is possible; say of each what it is."""
    return [_prepare(environment, name) for name in names or published()]


def _prepare(environment: Environment, name: str) -> Image:
    began = time.monotonic()
    repository, _, tag = name.partition(":")
    recipe = RECIPES_OF.get(repository)
    wanted = _key(recipe, name) if recipe else ""
    labels = _labels(environment, name)
    if labels is not None and LABEL not in labels:
        return Image(name, "published", "it was there")
    if labels is not None and labels.get(KEY) == wanted:
        return Image(name, "stand-in", "it was there")
    if _pull(environment, name):
        return Image(name, "published", "pulled", time.monotonic() - began)
    if recipe is None:
        return Image(name, "missing", "it cannot be pulled, and nothing here can stand in for it")
    try:
        version = recipe.version(tag)
        if recipe.directory == "debian":
            _rootfs(environment, tag)
        _build(environment, name, recipe, version, wanted)
    except (NoStandInError, builds.BuildError) as error:
        return Image(name, "missing", str(error), time.monotonic() - began)
    return Image(name, "stand-in", f"built, version {version}", time.monotonic() - began)


def _labels(environment: Environment, name: str) -> dict[str, str] | None:
    """Labels of an image; None when there is no such image."""
    command = ["docker", "image", "inspect", "--format", "{{json .Config.Labels}}", name]
    asked = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    return (json.loads(asked.stdout) or {}) if asked.returncode == 0 else None


def _pull(environment: Environment, name: str) -> bool:
    command = ["docker", "pull", "--quiet", name]
    try:
        done = subprocess.run(command, env=dict(environment), capture_output=True, check=False, timeout=PULL_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _key(recipe: Recipe, name: str) -> str:
    """Changes with the recipe and with what it gets, so that a stand-in is never older than what it is made of."""
    digest = hashlib.sha256(name.encode())
    for file in sorted((RECIPES / recipe.directory).iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update("\0".join(map(str, _given(recipe).values())).encode())
    return digest.hexdigest()[:12]


def _given(recipe: Recipe) -> dict[str, Path]:
    try:
        return recipe.context()
    except (NoStandInError, builds.BuildError):
        return {}


def _build(environment: Environment, name: str, recipe: Recipe, version: str, key: str) -> None:
    files = {file.name: file for file in (RECIPES / recipe.directory).iterdir()} | recipe.context()
    command = ["docker", "build", "--tag", name, "--label", f"{LABEL}=true", "--label", f"{KEY}={key}"]
    command += ["--build-arg", f"VERSION={version}"] if recipe.directory == "postgres" else []
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*command, "-"], env=dict(environment), stdin=subprocess.PIPE, stdout=output, stderr=output
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended early; its output says why
            _send(files, process.stdin)
        if process.wait():
            raise NoStandInError(f"building its stand-in failed:{_tail(output)}")


def _send(files: Mapping[str, Path], stream: IO[bytes]) -> None:
    """The files as the context of a build; nothing is copied on disk, Go's tree is large."""
    with (
        stream,
        tarfile.open(
            fileobj=stream,
            mode="w|",
            dereference=True,
            format=tarfile.GNU_FORMAT,  # the client takes no other for an archive
        ) as archive,
    ):
        for inside, path in sorted(files.items()):
            archive.add(path, arcname=inside)


def _rootfs(environment: Environment, tag: str) -> None:
    """Import Debian's minimal system as an image to build on. Raises NoStandInError, BuildError."""
    if _labels(environment, ROOTFS) is not None:
        return
    if os.geteuid() != 0:
        raise NoStandInError("debootstrap needs root")
    install.debian_packages(["debootstrap"])
    with tempfile.TemporaryDirectory(prefix="streamops-rootfs-") as directory, tempfile.TemporaryFile() as output:
        target = Path(directory) / "root"
        suite = tag.removesuffix("-slim")
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, str(target)]
        if subprocess.run(command, stdout=output, stderr=output, check=False).returncode:
            raise NoStandInError(f"debootstrap failed:{_tail(output)}")
        for left in (target / "var" / "cache" / "apt" / "archives").glob("*.deb"):
            left.unlink()
        tar = subprocess.Popen(["tar", "-C", str(target), "--one-file-system", "-c", "."], stdout=subprocess.PIPE)
        imported = ["docker", "import", "-", ROOTFS]
        done = subprocess.run(imported, env=dict(environment), stdin=tar.stdout, capture_output=True, check=False)
        if tar.wait() or done.returncode:
            raise NoStandInError(f"docker import failed: {done.stderr.decode(errors='replace').strip()}")


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    return "".join(f"\n    {line}" for line in output.read().decode(errors="replace").splitlines()[-12:])


def _authorities() -> dict[str, Path]:
    """The directory of the certificate authorities that the host's owner added."""
    return {"authorities": AUTHORITIES}


def _go() -> dict[str, Path]:
    if not shutil.which("go"):
        raise NoStandInError("there is no Go on this machine to make it of")
    answer = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True)
    return {"go": Path(answer.stdout.strip())}


def _go_version(tag: str) -> str:
    version = (_go()["go"] / "VERSION").read_text().split()[0].removeprefix("go")
    return _same(tag.removesuffix("-bookworm"), version, "Go")


def _pinned(server: str, pattern: str) -> str:
    text = "\n".join(file.read_text() for file in sorted((builds.PINS / server).iterdir()))
    found = re.search(pattern, text)
    if not found:
        raise NoStandInError(f"the pins of {server} name no version")
    return found[1]


def _same(asked: str, version: str, what: str) -> str:
    """The version, if it is the one that was asked for or one of that series. Raises NoStandInError."""
    if version != asked and not version.startswith(f"{asked}."):
        raise NoStandInError(f"{asked} is asked for, and {what} here is {version}")
    return version


def _built(server: builds.GoServer | builds.Jars, inside: str) -> dict[str, Path]:
    found = server.find()
    if found is None:
        raise NoStandInError(f"{server.name} is not built; run 'make setup'")
    return {inside: found}


RECIPES_OF: Mapping[str, Recipe] = {
    "debian": Recipe("debian", str, _authorities),
    "golang": Recipe("golang", _go_version, _go),
    "postgres": Recipe("postgres", lambda tag: tag.removesuffix("-bookworm")),
    "apache/kafka": Recipe(
        "kafka",
        lambda tag: _same(tag, _pinned("kafka", r"kafka_2\.13</artifactId><version>([\d.]+)<"), "the local stack's"),
        lambda: _built(builds.KAFKA, "jars"),
    ),
    "influxdb": Recipe(
        "influxdb",
        lambda tag: _same(tag, _pinned("influxd", r"influxdata/influxdb/v2 v([\d.]+)"), "the local stack's"),
        lambda: _built(builds.INFLUXD, "influxd"),
    ),
}


def report(images: Iterable[Image]) -> str:
    """One line for each image."""
    return "\n".join(f"{image.kind:9}  {image.name:28} {image.detail} ({image.seconds:.0f} s)" for image in images)


if __name__ == "__main__":
    print(report(prepare(os.environ, sys.argv[1:])))
