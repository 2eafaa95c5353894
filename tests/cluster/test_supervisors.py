"""Real supervisors of machines of their own: each obeys its own password, which the runbooks have and no other node."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from stack import configure, private
from stack.compose import container
from stack.layout import PORTS, Layout
from stack.programs import Program
from streamops.cluster.supervised_nodes import MASTER, SupervisedNodes
from streamops.model.errors import UnreachableError
from streamops.settings import Settings
from streamops.store import waiting

MACHINES = (MASTER, "node-1", "node-2")
WORKER = Program("worker", ("/bin/sleep", "600"))


def alone(home: Path, name: str) -> Layout:
    """A machine with a supervisor on a port of loopback that no other has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Layout(home / name, probe.getsockname()[1] - PORTS["supervisor"])


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SupervisedNodes]:
    """A master and two nodes, each with what its container is given, and what Airflow is given."""
    passwords = {private.supervisor(name): f"of {name}" for name in MACHINES}
    machines = {name: alone(tmp_path, name) for name in MACHINES}
    listed = [
        {
            "name": name,
            "supervisor": f"http://127.0.0.1:{machines[name].port('supervisor')}",
            "program": WORKER.name,
            "page": f"http://{name}:8081",
            "cores": 1,
            "memory": "1g",
        }
        for name in MACHINES
    ]
    airflow = Layout(tmp_path / "airflow")
    airflow.home.mkdir()
    master = {key: listed[0][key] for key in ("supervisor", "program")}
    airflow.nodes_file.write_text(yaml.safe_dump({"master": master, "nodes": listed[1:]}))
    configure.supervisors(airflow, {"SUPERVISOR_USER": "streamops", **passwords})
    with ExitStack() as left:
        for name, machine in machines.items():
            daemons: list[Program] = []
            monkeypatch.setattr(container, "_become", lambda place, program, daemons=daemons: daemons.append(program))
            machine.log.mkdir(parents=True)
            own = {"SUPERVISOR_USER": "streamops", private.supervisor(name): passwords[private.supervisor(name)]}
            container._supervised(machine, own, name, WORKER, start=False)
            output = left.enter_context((machine.log / "output").open("w"))
            daemon = subprocess.Popen(daemons[0].command, stdout=output, stderr=output)
            left.callback(daemon.wait, 30)
            left.callback(daemon.terminate)
        settings = dict.fromkeys(Settings.model_fields, "") | {
            "nodes_file": str(airflow.nodes_file),
            "nodes_private_file": str(airflow.nodes_private),
        }
        yield SupervisedNodes(Settings.model_validate(settings))


def test_each_node_obeys_its_own_password_and_no_other_nodes(nodes: SupervisedNodes, tmp_path: Path) -> None:
    for name in MACHINES:
        assert waiting.until(lambda name=name: state(nodes, name), 30, 0.1) == "STOPPED", name
        nodes.start(name)
        assert state(nodes, name) == "RUNNING"
    private_file = tmp_path / "airflow" / "nodes.private"
    private.write_private(private_file, private_file.read_text().replace("node-2=of node-2", "node-2=of node-1"))
    nodes = SupervisedNodes(nodes._settings)
    assert state(nodes, "node-1") == "RUNNING"
    with pytest.raises(UnreachableError, match="Unauthorized"):
        nodes.stop("node-2")
    for name in MACHINES:
        told = "".join(path.read_text() for path in (tmp_path / name).rglob("*") if path.is_file())
        assert [other for other in MACHINES if f"of {other}" in told] == [name]


def state(nodes: SupervisedNodes, name: str) -> str:
    try:
        return nodes.program(name).state
    except UnreachableError:  # it is starting
        return ""
