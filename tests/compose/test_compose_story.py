"""docker-compose.yaml on an engine: an upgrade, a killed node, one to three nodes, a shutdown, and the kept volumes.

One story in the order of its tests: each continues where the one before it left the containers. Everything is done
from outside, as a user would do it: through Compose alone, later 'make compose-up', and the command line in its
container.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import own_engine
import pytest
import stand_ins
import yaml

import reach
from stack.compose import engine, secret_files
from stack.layout import REPOSITORY

JOB = "trade-analyser"
RATE = "2000"  # trades a second: what is shown here is that nothing is lost, not how fast it is
PROJECT = "streamops-test"  # no one's containers and volumes but this test's
REPORT = REPOSITORY / "build" / "compose-report.json"

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@dataclass
class Containers:
    """The containers, from outside."""

    environment: dict[str, str]
    compose: tuple[str, ...]
    images: list[stand_ins.Image]
    seconds: dict[str, float] = field(default_factory=dict)

    def host(self, verb: str) -> None:
        """What 'make compose-up' and 'make compose-down' run."""
        left_out = [part for name in self.without() for part in ("--without", name)]
        command = [sys.executable, "-m", "stack.compose.host", verb, *(left_out if verb == "up" else ())]
        subprocess.run(command, env=self.environment, check=True, timeout=3000)

    def start(self, *options: str) -> None:
        """'docker compose up -d', from which only what has no image is left out."""
        enabled = self.run(*options, "config", "--services").stdout.split()
        services = [name for name in enabled if name not in self.without()] if self.without() else []
        done = self.run(*options, "up", "--detach", *services, timeout_s=3000)
        assert done.returncode == 0, done.stderr[-3000:]

    def without(self) -> list[str]:
        """Services whose image can neither be pulled nor stood in for."""
        missing = {image.name for image in self.images if image.kind == "missing"}
        services = yaml.safe_load((REPOSITORY / "docker-compose.yaml").read_text())["services"]
        return [name for name, service in services.items() if service["image"] in missing]

    def run(self, *arguments: str, timeout_s: float = 900) -> subprocess.CompletedProcess[str]:
        """Compose with some arguments."""
        command = [*self.compose, *arguments]
        return subprocess.run(
            command,
            env=self.environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def cli(self, *arguments: str) -> str:
        """The command line in its container; fails the test with what it said when it fails."""
        done = self.run("run", "--rm", "-T", "cli", *arguments)
        assert done.returncode == 0, f"streamops {' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def recount(self) -> dict[str, Any]:
        """A clean recount."""
        report: dict[str, Any] = json.loads(self.cli("recount", JOB, "--json"))
        assert report["clean"], report
        return report

    def recount_beyond(self, moment: datetime, measurement: str = "avg_1s", deadline_s: float = 600) -> dict[str, Any]:
        """A clean recount that reaches windows after a moment; by the deadline."""
        end = time.monotonic() + deadline_s
        while True:
            report = self.recount()
            reached = [item["last_window"] for item in report["measurements"] if item["measurement"] == measurement]
            if reached and reached[0] and datetime.fromisoformat(reached[0]) > moment:
                return report
            assert time.monotonic() < end, f"no window of {measurement} after {moment} was compared: {report}"

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Keep how long something took, for the report."""
        begun = time.monotonic()
        yield
        self.seconds[what] = round(time.monotonic() - begun, 1)
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(json.dumps(self.summary(), indent=1))

    def summary(self) -> dict[str, Any]:
        """What the report says."""
        images = {image.name: image.kind for image in self.images}
        return {"images": images, "could not run": self.without(), "rate": int(RATE), "seconds": self.seconds}


@pytest.fixture(scope="module")
def containers() -> Iterator[Containers]:
    """Built and started; removed at the end, with their volumes."""
    with own_engine.engine(Path(os.environ.get("STREAMOPS_ENGINE_DIR") or own_engine.DIRECTORY)) as given:
        environment = given | {"COMPOSE_PROJECT_NAME": PROJECT, "STREAMOPS_RATE": RATE}
        os.environ.update(environment)  # what looks for the tools asks there
        images = stand_ins.prepare(environment)
        # What is missing is built by the start itself.
        own = ("docker", "image", "rm", "--no-prune", "streamops", "streamops-minio")
        subprocess.run(own, env=environment, check=False, capture_output=True)
        print(stand_ins.report(images))
        found = Containers(environment, engine.find().compose, images)
        try:
            with found.timed("build and start"):
                found.start("--profile", "fleet")
                found.host("up")  # waits
            yield found
            print(json.dumps(found.summary(), indent=1))
        finally:
            (REPORT.parent / "compose.log").write_text(found.run("logs", "--timestamps", "--tail", "2000").stdout)
            found.run("--profile", "*", "down", "--volumes", "--timeout", "20")


def now() -> datetime:
    return datetime.now(UTC)


def members(containers: Containers) -> list[str]:
    """Nodes whose worker is alive."""
    done = containers.run("run", "--rm", "-T", "cli", "cluster", "--json")
    return [node["node"] for node in json.loads(done.stdout)["members"] if node["state"] == "ALIVE"]


def secrets_of(containers: Containers) -> set[str]:
    """Every secret that was handed out."""
    program = ["--entrypoint", "sh", "secrets", "-c", "cat /var/lib/streamops/secrets/*/*"]
    return set(containers.run("run", "--rm", "-T", *program).stdout.split())


def test_pings_are_served_where_a_browser_finds_them(containers: Containers) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open("http://localhost:8000/pings?since=0&limit=5", timeout=10) as answer:
        assert len(json.load(answer)) == 5


def test_the_logins_are_shown_and_let_in(containers: Containers) -> None:
    shown = containers.run("run", "--rm", "-T", "secrets", "show").stdout.splitlines()
    _, address, user, password = next(line.split() for line in shown if line.startswith("Airflow"))
    asked = json.dumps({"username": user, "password": password}).encode()
    request = urllib.request.Request(f"{address}/auth/token", asked, {"Content-Type": "application/json"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=10) as answer:
        assert json.load(answer)["access_token"]


def test_a_warm_upgrade_loses_nothing(containers: Containers) -> None:
    for version in ("v1", "v2"):
        containers.cli("publish", "spark_jobs/trade_analyser", version)
    with containers.timed("deploy v1"):
        containers.cli("deploy", JOB, "v1")
    containers.recount_beyond(now())
    with containers.timed("upgrade to v2"):
        done = json.loads(containers.cli("upgrade", JOB, "v2", "--snapshot", "SavePoint1", "--json"))
    assert done["steps"]["reserve"]["facts"]["cold"] is False  # both fit into the nodes' memory as it is by default
    assert containers.recount_beyond(now(), "vol_1s")["version"] == "v2"
    assert "SavePoint1" in containers.cli("snapshots", JOB)


def test_no_container_ran_out_of_memory(containers: Containers) -> None:
    """The engine would start it again and again, and all would only be slow."""
    form = "{{.Name}} {{.RestartCount}} {{.State.OOMKilled}}"
    told = _docker(containers, "inspect", "--format", form, *containers.run("ps", "--quiet").stdout.split())
    assert [line for line in told.splitlines() if not line.endswith(" 0 false")] == []


def test_what_a_driver_can_reach_on_its_node_has_no_secret_but_the_nodes_own(containers: Containers) -> None:
    """Every file and the memory of every process that a job's code could read, which runs as the node's user."""
    status = json.loads(containers.cli("jobs", "show", JOB, "--json"))["status"]
    secrets = secrets_of(containers)
    command = ["exec", "--no-TTY", status["host"], "python3", "-c", reach.PROGRAM, "/", "memory"]
    found = subprocess.run(
        [*containers.compose, *command],
        env=containers.environment, cwd=REPOSITORY, input="\n".join(secrets),
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    told = json.loads(found.stdout)
    assert told["looked"]["files"] > 1000
    assert told["looked"]["processes"] >= 3  # the supervisor, the worker, the driver or an executor
    own = containers.run("exec", "--no-TTY", status["host"], "sh", "-c", "cat /run/secrets/*").stdout.split()
    assert set(told["found"]) <= set(own)
    assert set(own) & set(told["found"])  # it does find what is there


def test_a_killed_node_takes_nothing_along(containers: Containers) -> None:
    assert members(containers) == ["node-1", "node-2"]
    node = json.loads(containers.cli("jobs", "show", JOB, "--json"))["status"]["host"]  # of its driver
    killed = now()
    with containers.timed("docker kill of the driver's node, until its first window is counted"):
        _docker(containers, "kill", containers.run("ps", "--quiet", node).stdout.strip())
        containers.recount_beyond(killed + timedelta(seconds=1))
    assert members(containers) == [{"node-1": "node-2", "node-2": "node-1"}[node]]
    containers.start()
    containers.host("up")
    assert members(containers) == ["node-1", "node-2"]
    containers.recount_beyond(now())


def test_the_cluster_shrinks_to_one_node_and_grows_by_the_spare(containers: Containers) -> None:
    with containers.timed("scale to 1"):
        containers.cli("cluster", "scale", "1")
    assert len(members(containers)) == 1
    containers.recount_beyond(now())
    with containers.timed("scale to 3"):
        containers.cli("cluster", "scale", "3")
    assert members(containers) == ["node-1", "node-2", "node-3"]
    containers.recount_beyond(now())


def test_a_shutdown_and_a_restart_lose_nothing(containers: Containers) -> None:
    with containers.timed("shutdown"):
        containers.cli("cluster", "shutdown")
    assert members(containers) == []
    with containers.timed("restart"):
        containers.cli("cluster", "restart")
    assert members(containers) == ["node-1", "node-2", "node-3"]
    containers.recount_beyond(now())


def test_everything_is_back_after_down_and_up(containers: Containers) -> None:
    with containers.timed("down"):
        containers.host("down")
    assert not containers.run("--profile", "*", "ps", "--quiet").stdout.strip()
    stopped = now()
    with containers.timed("up"):
        containers.host("up")
    report = containers.recount_beyond(stopped + timedelta(seconds=1))
    assert report["version"] == "v2"
    assert members(containers) == ["node-1", "node-2", "node-3"]
    asked = "select count(*) from dag_run where dag_id = 'upgrade_job' and state = 'success'"
    told = containers.run("exec", "-T", "postgres", "psql", "-U", "airflow", "-Atc", asked).stdout
    assert told.strip() == "1"
    assert "SavePoint1" in containers.cli("snapshots", JOB)


def test_no_process_runs_as_root_and_no_secret_shows(containers: Containers) -> None:
    secrets = secrets_of(containers)
    assert len(secrets) == len(secret_files.NAMES)
    for container in containers.run("ps", "--quiet").stdout.split():
        shown = _docker(containers, "inspect", "--format", "{{json .Config}} {{json .Args}}", container)
        assert not [secret for secret in secrets if secret in shown]
        listed = _docker(containers, "top", container, "-eo", "pid,uid,args").splitlines()[1:]
        # The engine's own init is the one process that stays root.
        assert [line for line in listed if line.split()[1] == "0" and "docker-init" not in line] == []
        assert not [line for line in listed if any(secret in line for secret in secrets)]


def _docker(containers: Containers, *arguments: str) -> str:
    command = ["docker", *arguments]
    return subprocess.run(command, env=containers.environment, capture_output=True, text=True, check=True).stdout
