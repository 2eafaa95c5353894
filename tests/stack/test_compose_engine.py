"""What `make compose-up` sees of the engine before it starts anything, with a Docker that only prints."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from stack import builds
from stack.compose import engine
from stack.compose.engine import Engine, Needs, Port
from streamops.model.errors import NotFoundError, RefusedError, UnreachableError

GIB = 1024**3
PROGRAM = """#!{python}
import json, pathlib, sys
answers = json.loads(pathlib.Path({answers!r}).read_text())
line = " ".join(sys.argv[1:])
code, out, err = next((answers[key] for key in answers if line.startswith(key)), (1, "", "docker: unknown " + line))
print(out)
print(err, file=sys.stderr)
sys.exit(code)
"""
PROJECT: dict[str, Any] = {
    "name": "streamops",
    "services": {
        "init": {"mem_limit": str(2 * GIB)},
        "minio": {"mem_limit": str(GIB), "depends_on": {"init": {"condition": "service_completed_successfully"}}},
        "kafka": {"deploy": {"resources": {"limits": {"memory": str(GIB // 2)}}}},
        "grafana": {"ports": [{"mode": "ingress", "host_ip": "127.0.0.1", "target": 3000, "published": "3000"}]},
    },
}


class Docker:
    """A `docker` on PATH that prints what it was given for the beginning of a command line."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "answers.json"
        self.answers: dict[str, tuple[int, str, str]] = {}
        program = directory / "docker"
        program.write_text(PROGRAM.format(python=sys.executable, answers=str(self.file)))
        program.chmod(0o755)
        self.engine()
        self.says("compose version", "2.40.3")
        self.says("compose config", json.dumps(PROJECT))
        self.says("compose ps", "")
        self.says("ps", "")

    def says(self, command: str, out: str, err: str = "", code: int = 0) -> None:
        self.answers[command] = (code, out, err)
        self.file.write_text(json.dumps(self.answers))

    def engine(self, version: str = "20.10.24+dfsg1", api: str = "1.41", memory: int = 8 * GIB) -> None:
        client = {"Version": "28.2.2", "ApiVersion": api, "DefaultAPIVersion": "1.50"}
        self.says("version", json.dumps({"Client": client, "Server": {"Version": version, "ApiVersion": api}}))
        self.says("info", json.dumps({"ServerVersion": version, "MemTotal": memory, "NCPU": 2, "ServerErrors": None}))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STREAMOPS_COMPOSE", raising=False)
    return Docker(tmp_path)


@pytest.fixture
def taken() -> Any:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def publishing(number: int) -> str:
    grafana = {"ports": [{"host_ip": "127.0.0.1", "target": 3000, "published": str(number)}]}
    return json.dumps({"services": {"grafana": grafana}})


def test_a_machine_with_all_that_is_needed_is_accepted(docker: Docker, tmp_path: Path) -> None:
    docker.says("compose config", json.dumps({"services": {"kafka": {"mem_limit": str(GIB)}}}))
    found = engine.check(tmp_path)
    assert (found.docker, found.compose) == (("docker",), ("docker", "compose"))


def test_no_docker_at_all_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFoundError, match=r"no .docker. on PATH\. Install Docker Engine"):
        engine.check(tmp_path)


def test_an_engine_that_does_not_answer_is_named_with_its_reason(docker: Docker, tmp_path: Path) -> None:
    reason = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
    docker.says("version", json.dumps({"Client": {"Version": "28.2.2"}, "Server": None}), reason, code=1)
    with pytest.raises(UnreachableError) as refused:
        engine.check(tmp_path)
    assert reason in str(refused.value)
    assert "systemctl start docker" in str(refused.value)


def test_an_old_engine_is_refused_with_the_version_that_is_needed(docker: Docker, tmp_path: Path) -> None:
    docker.engine(version="19.03.15", api="1.40")
    with pytest.raises(RefusedError, match=r"Engine 19\.03\.15 is too old \(API 1\.40, needed 1\.41\)"):
        engine.check(tmp_path)


@pytest.mark.parametrize("version", ["", "2.20.3"])
def test_without_a_compose_that_will_do_and_without_go_it_says_what_to_install(
    docker: Docker, tmp_path: Path, version: str
) -> None:
    docker.says("compose version", version, code=0 if version else 1)
    with pytest.raises(NotFoundError, match="docker-compose-plugin") as refused:
        engine.check(tmp_path)
    assert ("docker compose is 2.20.3" in str(refused.value)) == bool(version)


def test_a_compose_program_takes_the_place_of_an_old_plugin(
    docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.says("compose version", "2.20.3")
    program = tmp_path / "own-compose"
    program.write_text(f"#!{sys.executable}\nprint('v2.40.3')\n")
    program.chmod(0o755)
    monkeypatch.setenv("STREAMOPS_COMPOSE", str(program))
    assert engine.find().compose == (str(program),)


def test_a_compose_that_is_missing_is_built_where_there_is_go(
    docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.says("compose version", "", code=1)
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    go.chmod(0o755)
    said: list[str] = []
    assert engine.find(said.append).compose == (str(builds.COMPOSE.target()),)
    assert "building the pinned one" in said[0]


def test_a_port_in_use_is_refused_with_its_service_and_holder(docker: Docker, tmp_path: Path, taken: int) -> None:
    docker.says("compose config", publishing(taken))
    with pytest.raises(RefusedError) as refused:
        engine.check(tmp_path)
    assert f"port {taken} (grafana) is held by process {os.getpid()}" in str(refused.value)


def test_a_port_of_another_container_is_refused_with_that_container(docker: Docker, tmp_path: Path) -> None:
    docker.says("compose config", publishing(3000))
    docker.says("ps", "other-grafana-1")
    with pytest.raises(RefusedError, match=r"port 3000 \(grafana\) is held by container other-grafana-1"):
        engine.check(tmp_path)


def test_a_port_of_its_own_running_container_is_no_obstacle(docker: Docker, tmp_path: Path, taken: int) -> None:
    docker.says("compose config", publishing(taken))
    docker.says("compose ps", json.dumps({"Service": "grafana", "Publishers": [{"PublishedPort": taken}]}))
    engine.check(tmp_path)


def test_too_little_memory_is_refused_with_both_sizes(docker: Docker, tmp_path: Path) -> None:
    docker.engine(memory=GIB)
    docker.says("compose config", json.dumps({"services": {"kafka": {"mem_limit": str(2 * GIB)}}}))
    with pytest.raises(RefusedError, match=r"2\.0 GiB of memory \(kafka the most\), and the engine has 1\.0 GiB"):
        engine.check(tmp_path)


def test_a_compose_file_that_compose_refuses_is_named_with_the_reason(docker: Docker, tmp_path: Path) -> None:
    docker.says("compose config", "", "services.kafka.image must be a string", code=15)
    with pytest.raises(RefusedError, match=r"docker-compose\.yaml: services\.kafka\.image must be"):
        engine.check(tmp_path)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    needs = Needs({"kafka": 2 * GIB}, (Port(3000, "grafana", "process 7 (python)"), Port(8080, "airflow")))
    found = engine.refusals(Engine("28.0.0", (1, 48), GIB), needs)
    assert [sentence.split()[0] for sentence in found] == ["Published", "The"]
    assert "8080" not in found[0]


def test_a_service_that_is_over_before_the_others_start_needs_no_memory_beside_them() -> None:
    assert engine.limits(PROJECT) == {"minio": GIB, "kafka": GIB // 2}


def test_a_spare_node_is_not_counted_and_8_gib_are_enough_for_8_gib() -> None:
    services = {
        "node-1": {"mem_limit": str(8 * GIB)},
        "node-2": {"mem_limit": str(GIB), "labels": {engine.SPARE: "true"}},
    }
    needs = Needs(engine.limits({"services": services}), ())
    assert not engine.refusals(Engine("28.0.0", (1, 48), int(7.6 * GIB)), needs)
    assert engine.refusals(Engine("28.0.0", (1, 48), 7 * GIB), needs)
