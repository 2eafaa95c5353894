"""Where a stack keeps its files and which ports it takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HOME = "STREAMOPS_HOME"
OFFSET = "STREAMOPS_PORT_OFFSET"
LOOPBACK = "127.0.0.1"

PORTS = {
    "kafka": 9092,
    "kafka-controller": 9093,
    "minio": 9000,
    "minio-console": 9001,
    "influxd": 8086,
    "spark-master": 7077,
    "spark-master-ui": 8090,
    "spark-worker-1-ui": 8091,
    "spark-worker-2-ui": 8092,
    "spark-worker-3-ui": 8093,
    "airflow": 8080,
    "supervisor": 9010,
    "fleet-beta": 8000,
}


@dataclass(frozen=True)
class Layout:
    """One stack: its home directory, the number added to every port, and where its servers are.

    Attributes:
        here: this machine's name, as the other servers reach it.
        hosts: the host of each server that is elsewhere, by the server's name in PORTS or of its program.
        worker_memory: what a worker gives to drivers and executors.
    """

    home: Path
    offset: int = 0
    here: str = LOOPBACK
    hosts: Mapping[str, str] = field(default_factory=dict)
    worker_memory: str = "4g"

    @classmethod
    def find(cls, home: Path | str | None = None) -> Layout:
        """The stack at ``home``, or at STREAMOPS_HOME, or in this checkout.

        The port offset comes from STREAMOPS_PORT_OFFSET, else from what the stack was first started with.
        """
        chosen = Path(home or os.environ.get(HOME) or REPOSITORY / ".streamops").resolve()
        asked = os.environ.get(OFFSET)
        if asked is None:
            saved = chosen / "stack.env"
            lines = saved.read_text().splitlines() if saved.is_file() else []
            asked = next((line.split("=", 1)[1] for line in lines if line.startswith(f"{OFFSET}=")), "0")
        return cls(chosen, int(asked))

    def port(self, name: str) -> int:
        """Port of a server, one of PORTS."""
        return PORTS[name] + self.offset

    def host(self, name: str) -> str:
        """Where a server is."""
        return self.hosts.get(name, self.here)

    def address(self, name: str) -> str:
        """HOST:PORT of a server."""
        return f"{self.host(name)}:{self.port(name)}"

    def url(self, name: str) -> str:
        """HTTP address of a server."""
        return f"http://{self.address(name)}"

    def page(self, name: str) -> str:
        """Where people find a server, whatever machine it is on."""
        return f"http://{LOOPBACK}:{self.port(name)}"

    def supervisor_url(self, program: str) -> str:
        """HTTP address of the supervisor that runs a program."""
        return f"http://{self.host(program)}:{self.port('supervisor')}"

    @property
    def bind(self) -> str:
        """What servers listen on: loopback, or every address of a machine that others must reach."""
        return LOOPBACK if self.here == LOOPBACK else "0.0.0.0"

    @property
    def env_file(self) -> Path:
        """The one private file: endpoints and generated secrets."""
        return self.home / "stack.env"

    @property
    def log(self) -> Path:
        """Logs of all servers, rotated."""
        return self.home / "log"

    @property
    def run(self) -> Path:
        """Pid and lock files, generated configuration."""
        return self.home / "run"

    @property
    def data(self) -> Path:
        """What the servers store."""
        return self.home / "data"

    @property
    def fleet(self) -> Path:
        """What the fleet's simulators write: pings and ledgers."""
        return self.data / "fleet"

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME."""
        return self.home / "airflow"

    @property
    def own_dags(self) -> Path:
        """The user's own DAGs, beside the runbooks."""
        return self.home / "dags"

    @property
    def node(self) -> Path:
        """What every node that runs a Spark worker has."""
        return self.home / "node"

    @property
    def influx_writer(self) -> Path:
        """Private: the token that drivers write to InfluxDB with, which InfluxDB has chosen."""
        return self.home / "told" / "influx-writer"

    @property
    def secrets(self) -> Path:
        """In containers, where their secrets are handed out from: a directory for each group of services."""
        return self.home / "secrets"

    @property
    def nodes_file(self) -> Path:
        """The inventory of nodes."""
        return self.home / "nodes.yaml"

    @property
    def nodes_private(self) -> Path:
        """Private: user and password of the nodes' supervisors."""
        return self.home / "nodes.private"

    @property
    def submit_conf(self) -> Path:
        """SPARK_CONF_DIR of the submitter; private, and all but Spark's own secret travels to command lines."""
        return self.home / "submit-conf"

    @property
    def supervisor_conf(self) -> Path:
        """Private: it holds the password of supervisord's interface."""
        return self.home / "supervisord.conf"
