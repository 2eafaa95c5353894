"""Nodes as machines of their own: three network namespaces, each with its address, its supervisord and its password.

The runbooks of the cluster run over them by way of the same adapter that drives the local stack's nodes. Master and
workers are Spark's own; no job runs, which other tests see to.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from asking import fitting
from fakes.fixtures import bucket, object_store_server, rig  # noqa: F401
from fakes.rig import Rig
from fresh_job import wait_for
from stack import builds
from streamops.cluster import record as cluster_record
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.errors import RefusedError, StreamOpsError, UnreachableError
from streamops.operations.follow import request
from streamops.operations.operation import Operation
from streamops.settings import Settings

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="needs root and iproute2 to make network namespaces",
    ),
]
NODES = ("node-1", "node-2", "node-3")
MASTER_PORT, MASTER_PAGE, WORKER_PAGE, SUPERVISOR = 7077, 8080, 8081, 9001


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def free_net() -> str:
    """The first three bytes of a network that no interface here has; what an ended run left may hold one."""
    taken = {address.address for found in psutil.net_if_addrs().values() for address in found}
    nets = (f"10.213.{third}" for third in range(1, 255))
    return next(net for net in nets if not any(address.startswith(f"{net}.") for address in taken))


@dataclass
class Machine:
    """One namespace with its supervisord."""

    name: str
    namespace: str
    address: str
    directory: Path
    password: str
    supervisord: subprocess.Popen[bytes] | None = None

    def configure(self, master: str) -> None:
        """supervisord's configuration: a worker, and on the first node the master."""
        spark = builds.spark_home()
        worker = "org.apache.spark.deploy.worker.Worker"
        programs = {
            "worker": f"{spark}/bin/spark-class {worker} --host {self.address} --webui-port {WORKER_PAGE} --cores 2 "
            f"--memory 1g --work-dir {self.directory}/work spark://{master}:{MASTER_PORT}"
        }
        if self.address == master:
            programs["master"] = (
                f"{spark}/bin/spark-class org.apache.spark.deploy.master.Master --host {self.address} "
                f"--port {MASTER_PORT} --webui-port {MASTER_PAGE}"
            )
        environment = (
            f'SPARK_HOME="{spark}",SPARK_CONF_DIR="{self.directory}",SPARK_LOCAL_IP="{self.address}",'
            f'SPARK_PUBLIC_DNS="{self.address}",SPARK_DAEMON_MEMORY="160m",SPARK_WORKER_OPTS="-Dspark.decommission.enabled=true"'
        )
        sections = [
            f"[supervisord]\nlogfile={self.directory}/supervisord.log\npidfile={self.directory}/pid\n"
            f"childlogdir={self.directory}\nnodaemon=true\nidentifier={self.name}\n",
            f"[inet_http_server]\nport={self.address}:{SUPERVISOR}\nusername=nodes\npassword={self.password}\n",
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n",
            *(
                f"[program:{name}]\ncommand={command}\nenvironment={environment}\nautostart=false\nstartsecs=1\n"
                f"stopasgroup=true\nkillasgroup=true\nredirect_stderr=true\nstdout_logfile={self.directory}/{name}.log\n"
                for name, command in programs.items()
            ),
        ]
        path = self.directory / "supervisord.conf"
        path.touch(0o600)
        path.write_text("\n".join(sections))

    def start(self) -> None:
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-m", "supervisor.supervisord"]
        self.supervisord = subprocess.Popen([*command, "-c", str(self.directory / "supervisord.conf")])

    def stop(self) -> None:
        if self.supervisord:
            self.supervisord.terminate()  # it ends its programs first
            self.supervisord.wait(60)
            self.supervisord = None


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    """Three namespaces on one bridge, each with a supervisord that answers at its own address.

    The bridge is in a namespace too: a container engine on this machine lets nothing cross the bridges beside its own.
    """
    mark, net = uuid.uuid4().hex[:6], free_net()
    switch, bridge, uplink = f"so-{mark}-switch", f"sob{mark}", f"soh{mark}"
    found = [
        Machine(name, f"so-{mark}-{number}", f"{net}.{10 + number}", tmp_path / name, secrets.token_hex(12))
        for number, name in enumerate(NODES, 1)
    ]
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", bridge, "type", "bridge")
        ip("-n", switch, "link", "set", bridge, "up")
        ip("link", "add", uplink, "type", "veth", "peer", "name", "host", "netns", switch)
        ip("-n", switch, "link", "set", "host", "master", bridge, "up")
        ip("addr", "add", f"{net}.1/24", "dev", uplink)
        ip("link", "set", uplink, "up")
        for number, machine in enumerate(found, 1):
            machine.directory.mkdir()
            cable = f"sov{mark}{number}"
            ip("netns", "add", machine.namespace)
            ip("-n", switch, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", machine.namespace)
            ip("-n", switch, "link", "set", cable, "master", bridge, "up")
            ip("-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", machine.namespace, "link", "set", device, "up")
            machine.configure(found[0].address)
            machine.start()
        yield found
    finally:
        for machine in found:
            machine.stop()
            subprocess.run(["ip", "netns", "del", machine.namespace], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", uplink], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", switch], check=False, capture_output=True)


def settings_of(settings: Settings, machines: list[Machine], directory: Path, **passwords: str) -> Settings:
    """Settings with an inventory of these machines, and their passwords in a private file."""
    first = machines[0]
    inventory = {
        "master": {"supervisor": f"http://{first.address}:{SUPERVISOR}", "program": "master"},
        "nodes": [
            {
                "name": machine.name,
                "supervisor": f"http://{machine.address}:{SUPERVISOR}",
                "program": "worker",
                "page": f"http://{machine.address}:{WORKER_PAGE}",
                "cores": 2,
                "memory": "1g",
                "spare": machine.name == "node-3",
            }
            for machine in machines
        ],
    }
    (directory / "nodes.yaml").write_text(yaml.safe_dump(inventory))
    lines = {"user": "nodes", "password.master": first.password}
    lines |= {f"password.{machine.name}": passwords.get(machine.name, machine.password) for machine in machines}
    private = directory / "nodes.private"
    private.touch(0o600)
    private.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    places = {
        "nodes_file": str(directory / "nodes.yaml"),
        "nodes_private_file": str(private),
        "spark_ui": f"http://{first.address}:{MASTER_PAGE}",
        "spark_master": f"spark://{first.address}:{MASTER_PORT}",
    }
    return settings.model_copy(update=places)


def test_the_runbooks_drive_nodes_on_other_hosts(rig: Rig, machines: list[Machine], tmp_path: Path) -> None:  # noqa: F811
    nodes = SupervisedNodes(settings_of(rig.settings, machines, tmp_path))
    rig.nodes = nodes  # type: ignore[assignment]

    def run(runbook: str, **asked: object) -> Operation:
        rig.count += 1
        patient = {"healthy_timeout_s": 240, "stop_timeout_s": 120, "members_timeout_s": 240}
        values = {**fitting(runbook, patient), **asked}
        return rig.engine().run(request(runbook, **values), rig.owner(), f"{runbook}-{rig.count}")

    def answers(name: str) -> bool:
        try:
            return bool(nodes.program(name).state)
        except UnreachableError:
            return False

    wait_for(lambda: all(answers(name) for name in NODES), 360, "three supervisors")
    run("restart_cluster")
    assert {worker.address.split(":")[0] for worker in nodes.master().workers} == {
        machines[0].address,
        machines[1].address,
    }

    done = run("scale_cluster", size=3)
    assert done.facts("check")["start"] == ["node-3"]
    alive = [worker for worker in nodes.master().workers if worker.state == "ALIVE"]
    assert {worker.page for worker in alive} == {node.page for node in nodes.inventory.nodes}

    done = run("scale_cluster", size=2, nodes=("node-2",))  # one of the first members, by its name
    assert done.facts("decommission")["nodes"] == ["node-2"]
    assert not nodes.program("node-2").up
    assert cluster_record.read(rig.store).nodes == ("node-1", "node-3")

    other = tmp_path / "wrong"
    other.mkdir()
    rig.nodes = SupervisedNodes(settings_of(rig.settings, machines, other, **{"node-2": "wrong"}))  # type: ignore[assignment]
    with pytest.raises(StreamOpsError, match=rf"{re.escape(machines[1].address)}:{SUPERVISOR}.*Unauthorized"):
        run("scale_cluster", size=3)
    rig.nodes = nodes  # type: ignore[assignment]
    assert not nodes.program("node-2").up

    machines[1].stop()
    with pytest.raises(UnreachableError, match=rf"{re.escape(machines[1].address)}:{SUPERVISOR}"):
        run("scale_cluster", size=3)
    machines[1].start()
    wait_for(lambda: answers("node-2"), 360, "the supervisor of node-2")

    done = run("shutdown_cluster")
    assert set(done.facts("stop_workers")["exit"]) == {"node-1", "node-3"}
    assert not any(nodes.program(name).up for name in ("master", *NODES))
    with pytest.raises(RefusedError, match="stopped already"):
        run("shutdown_cluster")
    machines[2].stop()
    with pytest.raises(UnreachableError, match=rf"{re.escape(machines[2].address)}:{SUPERVISOR}"):
        run("restart_cluster")
    done = run("restart_cluster", without_missing=True)
    assert done.facts("members")["missing"] == ["node-3"]
    assert [worker.address.split(":")[0] for worker in nodes.master().workers] == [machines[0].address]
