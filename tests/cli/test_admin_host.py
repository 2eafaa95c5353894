"""A host that has a context file and nothing of the stack: it does what the stack's host does, and shows the same."""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from kafka import KafkaProducer
from typer.testing import CliRunner

from admin_host import AdminHost, admin_host
from fakes import manifests
from fakes.nodes import inventory
from fresh_job import wait_for
from stack import lifecycle
from stack.layout import Layout
from streamops.cli import app
from streamops.clients.airflow import Airflow
from streamops.cluster import record as cluster_record
from streamops.cluster.nodes import Inventory
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.errors import RefusedError
from streamops.settings import Settings
from streamops.spark.submission import SLOTS_PER_CORE
from streamops.store import keys
from streamops.store.object_store import ObjectStore
from support import Operator, first_members

WAIT_S = 300  # finds what hangs
HOSTS = ("127.0.0.2", "127.0.0.3")  # of the members' pages, which are all of one server


@pytest.fixture
def pages() -> Iterator[int]:
    """The port of a master with two members, and of theirs."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = (self.headers["Host"] or "").partition(":")[0]
            body = {"executors": []} if host in HOSTS else {"status": "ALIVE", "workers": list(map(member, HOSTS))}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    def member(host: str) -> dict[str, object]:
        return {
            "id": f"worker-{host}", "host": host, "port": 4000, "webuiaddress": f"http://{host}:{port}",
            "state": "ALIVE", "cores": 4 * SLOTS_PER_CORE, "coresused": 0, "memory": 4096, "memoryused": 0,
        }  # fmt: skip

    with ThreadingHTTPServer(("", 0), Pages) as server:
        port = server.server_address[1]
        threading.Thread(target=server.serve_forever).start()
        yield port
        server.shutdown()


@pytest.fixture
def listed(pages: int) -> Inventory:
    """The nodes of that cluster: both, and a spare one."""
    made = inventory(3, 1).model_dump() | {"spark": "4.3.0"}
    for node, host in zip(made["nodes"], (*HOSTS, "127.0.0.4"), strict=True):
        node["page"] = f"http://{host}:{pages}"
    return Inventory.model_validate(made)


@pytest.fixture
def context(bucket: Settings, pages: int, tmp_path: Path) -> Path:
    """What ``stack env`` prints there, as a file: no path, and no key of snapshots."""
    shown = bucket.model_copy(update={"spark_ui": f"http://127.0.0.1:{pages}"})
    texts = {key: getattr(value, "get_secret_value", lambda value=value: value)() for key, value in shown}
    file = tmp_path / "there.env"
    file.write_text("".join(f"{key}={texts[key.lower()]}\n" for key in lifecycle.PUBLISHED))
    return file


@pytest.fixture
def run(context: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: None):
    """Run a command with the context; returns what it prints."""
    monkeypatch.setenv("STREAMOPS_ENV_FILE", "")  # put back afterwards

    def run(*words: str) -> str:
        ended = CliRunner().invoke(app, ["--context", str(context), *words])
        assert ended.exit_code == 0, ended.output
        return ended.output

    return run


def test_the_cluster_is_shown_from_a_context_alone_as_where_the_inventory_is(
    run, bucket: Settings, context: Path, listed: Inventory, tmp_path: Path
) -> None:
    cluster_record.publish_inventory(ObjectStore(bucket), listed)
    away = json.loads(run("cluster", "--json"))
    assert (away["state"], away["version"], away["ready"], away["desired"]) == ("running", "Spark 4.3.0", 2, 2)
    assert [(member["node"], member["state"]) for member in away["members"]] == [
        ("node-1", "ALIVE"), ("node-2", "ALIVE"), ("node-3", "spare"),
    ]  # fmt: skip
    where = [(member["address"], member["id"]) for member in away["members"]]
    assert where == [*((f"{host}:4000", f"worker-{host}") for host in HOSTS), ("-", "-")]
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump(listed.model_dump(mode="json")))
    with context.open("a") as file:
        file.write(f"NODES_FILE={tmp_path / 'nodes.yaml'}\n")
    assert json.loads(run("cluster", "--json")) == away


def test_what_is_there_already_is_not_applied_again_from_a_context_alone(
    run, bucket: Settings, listed: Inventory, tmp_path: Path
) -> None:
    store = ObjectStore(bucket)
    cluster_record.publish_inventory(store, listed)
    taken = manifests.manifest("tx", "first")  # signed with a key that a context does not have
    store.put(keys.manifest("tx", "first"), taken.model_dump_json().encode())
    wanted = [{"kind": "cluster", "size": 2}, {"kind": "snapshot", "job": "tx", "name": "first"}]
    (tmp_path / "wanted.yaml").write_text(yaml.safe_dump_all(wanted))
    assert run("apply", str(tmp_path / "wanted.yaml")).splitlines() == [
        "unchanged: cluster has 2 members, as declared", "unchanged: tx/first exists, as declared",
    ]  # fmt: skip


def test_no_password_goes_to_an_address_from_the_object_store(bucket: Settings, listed: Inventory) -> None:
    cluster_record.publish_inventory(ObjectStore(bucket), listed)
    nodes = SupervisedNodes(bucket.model_copy(update={"nodes_private_file": "/nowhere"}))
    assert nodes.inventory == listed
    with pytest.raises(RefusedError, match="does not act on nodes"):
        nodes.program("node-1")


@pytest.fixture
def host(stack: Settings, airflow: Airflow, tmp_path: Path) -> Iterator[AdminHost]:
    first_members(Operator(stack))
    pages = [node.page for node in SupervisedNodes(stack).inventory.nodes]
    servers = [stack.s3_endpoint, stack.influx_url, stack.spark_ui, stack.airflow_url]
    kafka = f"//{stack.kafka_bootstrap_servers}"
    ports = [port for url in (*servers, kafka, *pages) if (port := urlsplit(url).port)]
    with admin_host(tmp_path, lifecycle.env(), ports, [Layout.find().home]) as host:
        yield host
    first_members(Operator(stack))


@pytest.mark.stack
@pytest.mark.full
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and util-linux to make namespaces"
)
def test_an_installation_is_worked_on_from_a_host_that_has_nothing_but_a_context(
    stack: Settings, host: AdminHost
) -> None:
    def cluster() -> dict:
        return json.loads(host("cluster", "--json"))

    def shown(job: str) -> dict:
        return json.loads(host("jobs", "show", job, "--json"))

    def apply(**document: object) -> list[str]:
        (host.home / "wanted.yaml").write_text(yaml.safe_dump(document))
        return host("apply", str(host.home / "wanted.yaml")).splitlines()

    job, code = f"admin-{uuid.uuid4().hex[:8]}", host.home / "job"
    here = json.loads(CliRunner().invoke(app, ["cluster", "--json"]).output)
    assert cluster() == here
    assert "MISSING" not in host("doctor")
    assert (here["state"], here["ready"]) == ("running", 2)
    assert here["version"].startswith("Spark 4.")

    host("new", str(code), "--job", job)
    text = (code / "v1.yaml").read_text().replace("topic: clicks", f"topic: {job}")
    (code / "v1.yaml").write_text(text)
    host("publish", str(code))
    small = ["--executor-memory", "800m", "--driver-memory", "800m"]
    host("deploy", job, "v1", "--create-topics", "1", "--cores", "4", *small, "--timeout", "400")
    try:
        events = (code / "samples" / "clicks.jsonl").read_bytes().splitlines()
        with closing(KafkaProducer(bootstrap_servers=stack.kafka_bootstrap_servers)) as producer:
            for event in events:
                producer.send(job, event)
            producer.flush(60)
        wait_for(lambda: shown(job)["status"]["stages"]["per_minute"]["commits"], WAIT_S, "a batch")
        wait_for(lambda: sum(share["cores"] for share in cluster()["jobs"][job].values()) == 4, WAIT_S, "executors")
        shares = cluster()["jobs"][job]
        assert [share["cores"] for share in shares.values() if share["cores"]] == [2, 2]
        assert shown(job)["members"] == shares
        assert f"on {len(shares)} of the cluster's members: " in host("jobs", "show", job)
        assert job in host("jobs")
        assert [json.loads(line)["logger"] for line in host("logs", job, "--json").splitlines()]

        resources = {"cores": 4, "executor_memory": "800m"}
        as_it_is = apply(kind="job", name=job, version="v1", resources=resources)
        assert as_it_is == [f"unchanged: {job} runs v1, as declared"]
        assert "cores 4, executor memory 800m, driver memory 800m" in host("jobs", "show", job)

        snapshot = {"kind": "snapshot", "job": job, "name": "first"}
        assert apply(**snapshot)[0].startswith("snapshot_job: ")
        assert apply(**snapshot) == [f"unchanged: {job}/first exists, as declared"]

        host("cluster", "scale", "3")
        assert (cluster()["ready"], cluster()["desired"]) == (3, 3)
        assert apply(kind="cluster", size=2)[0].startswith("scale_cluster: ")
        assert (cluster()["ready"], cluster()["desired"]) == (2, 2)
    finally:
        host("cancel", job)
