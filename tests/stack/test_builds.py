"""Pinned servers: found, keyed by their pins, and never half built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stack import builds, install

INSTALL = Path(builds.__file__).with_name("install.py")


def test_the_packages_of_the_lock_exist_for_three_versions_of_python() -> None:
    assert [minor for minor in range(8, 16) if builds.python_fits((3, minor))] == [11, 12, 13]


def test_a_changed_pin_asks_for_a_new_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = builds.KAFKA.target()
    shutil.copytree(builds.PINS, tmp_path / "pins")
    monkeypatch.setattr(builds, "PINS", tmp_path / "pins")
    assert builds.KAFKA.target() == before
    pom = tmp_path / "pins" / "kafka" / "pom.xml"
    pom.write_text(pom.read_text().replace("4.2.0", "4.2.1"))
    assert builds.KAFKA.target() != before


def test_a_binary_named_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMOPS_MINIO", sys.executable)
    assert builds.MINIO.find() == Path(sys.executable).resolve()


def on_path(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str) -> Path:
    program = directory / name
    program.write_text(f"#!/bin/sh\necho '{told}'\n")
    program.chmod(0o755)
    monkeypatch.delenv(f"STREAMOPS_{name.upper()}", raising=False)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return program


@pytest.mark.parametrize(
    ("server", "told", "fits"),
    [
        (builds.MINIO, "minio version RELEASE.2025-10-15T17-29-55Z (commit-id=9e49)", True),
        (builds.MINIO, "minio version RELEASE.2021-06-17T00-10-46Z", False),
        (builds.MINIO, "minio version DEVELOPMENT.GOGET", False),
        (builds.INFLUXD, "InfluxDB v2.7.12 (git: ec9dcde5d6) build_date: 2025-05-20T22:48:21Z", True),
        (builds.INFLUXD, "InfluxDB v2.10.0 (git: none)", True),
        (builds.INFLUXD, "InfluxDB v1.8.10 (git: none)", False),
        (builds.INFLUXD, "", False),
    ],
)
def test_a_server_on_path_is_used_if_its_version_fits_and_set_up_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: builds.GoServer, told: str, fits: bool
) -> None:
    program = on_path(tmp_path, monkeypatch, server.name, told)
    assert (server.given() == program) is fits
    assert (server.find() == program) is fits
    said = install._found(server)
    assert said.startswith(f"{server.name}: {program} is used" if fits else f"{server.name}: {program} is not used")
    monkeypatch.setenv(server.variable, str(program))
    assert server.find() == program  # it is the user's own choice


def test_setup_says_which_named_binary_is_wrong(tmp_path: Path) -> None:
    environment = os.environ | {"STREAMOPS_MINIO": str(tmp_path / "nothing"), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, INSTALL], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"STREAMOPS_MINIO names {tmp_path / 'nothing'}, which is not a program" in done.stderr


def test_setup_needs_nothing_but_the_standard_library() -> None:
    code = f"import sys; sys.path.insert(0, {str(INSTALL.parents[1])!r}); import stack.install"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_what_an_interrupted_build_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    left = builds.KAFKA.target().with_name(f".{builds.KAFKA.target().name}.1234")
    left.mkdir(parents=True)
    (left / "half.jar").write_text("half")
    monkeypatch.setenv("PATH", str(tmp_path))  # no Maven there, so the build itself cannot succeed
    with pytest.raises(builds.BuildError):
        builds.KAFKA.build(tmp_path / "log")
    assert builds.KAFKA.find() is None
    assert not left.exists()


def test_spark_gets_no_second_version_of_a_library_it_has() -> None:
    jars = list((builds.spark_home() / "jars").iterdir())
    added = {builds.project(jar.name) for jar in jars if jar.readlink().parent == builds.SPARK_JARS.find()}
    own = {builds.project(jar.name) for jar in jars} - added
    counted = Counter(builds.project(jar.name) for jar in jars)
    assert {name for name in added if counted[name] > 1} == set()
    assert {"hadoop-aws", "spark-sql-kafka", "kafka-clients", "s3-transfer-manager"} <= added
    assert {"netty-common", "slf4j-api", "httpclient", "commons-codec"} <= own
    assert not ((added | own) & {"bundle", "commons-logging"})
