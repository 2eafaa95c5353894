"""What a stack keeps to itself: its secrets, and the places where someone could read one of them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from io import StringIO

import httpx
import psutil
import psycopg2

from fresh_job import FreshJob
from stack import postgres
from stack.layout import Layout
from stack.private import write_private
from streamops.clients.airflow import Airflow, _path
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.errors import NotFoundError
from streamops.operations.operation import Operation
from streamops.operations.runbooks import RUNBOOKS
from streamops.settings import read_pairs
from streamops.store import documents, keys

CANARY = "CANARY"
_ENDINGS = ("PASSWORD", "TOKEN", "SECRET", "_SECRET_KEY", "_FERNET_KEY", f"password.{CANARY}")


def secrets_of(layout: Layout) -> dict[str, str]:
    """Every secret of a stack, by its name; each was made at random, so whoever shows it was told it."""
    found = {}
    for path in (layout.nodes_private, layout.node / "node.env", layout.env_file):
        found |= {key: value for key, value in read_pairs(path).items() if key.endswith(_ENDINGS)}
    signing = {f"SNAPSHOT_KEYS {key}": value for key, _, value in signing_keys(read_pairs(layout.env_file))}
    return found | signing | {"INFLUX_WRITER": layout.influx_writer.read_text()}


def signing_keys(pairs: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Each key that signs or signed snapshots, as (ID, ":", HEX)."""
    return [item.partition(":") for item in pairs["SNAPSHOT_KEYS"].split(",")]


@contextmanager
def canaries(layout: Layout, airflow: Airflow) -> Iterator[dict[str, str]]:
    """In each place that keeps secrets one more, which nothing needs: whoever shows it shows all that is there.

    In the files of the stack, of a node and of the supervisors; in the file of Airflow's connections, and in its
    database as a connection and as a variable.
    """
    places = ("stack", "node", "supervisors", "file", "connection", "variable")
    planted = {f"canary of {name}": secrets.token_hex(16) for name in places}
    lines = {
        layout.env_file: f"{CANARY}_TOKEN={planted['canary of stack']}\n",
        layout.node / "node.env": f"{CANARY}_NODE_TOKEN={planted['canary of node']}\n",
        layout.nodes_private: f"password.{CANARY}={planted['canary of supervisors']}\n",
    }
    connections = layout.airflow / "connections.json"
    known = json.loads(connections.read_text())
    in_file = {"conn_type": "generic", "password": planted["canary of file"]}
    in_database = in_file | {"connection_id": CANARY, "password": planted["canary of connection"]}
    try:
        for path, line in lines.items():
            write_private(path, f"{path.read_text()}{line}")
        write_private(connections, json.dumps(known | {f"{CANARY}_FILE": in_file}, indent=1))
        airflow._call("POST", "/api/v2/connections", json=in_database)
        airflow._call(
            "POST", "/api/v2/variables", json={"key": f"{CANARY}_PASSWORD", "value": planted["canary of variable"]}
        )
        yield planted
    finally:
        for path, line in lines.items():
            write_private(path, path.read_text().replace(line, ""))
        write_private(connections, json.dumps(known, indent=1))
        for place in (f"connections/{CANARY}", f"variables/{CANARY}_PASSWORD"):
            airflow._send("DELETE", f"/api/v2/{place}")


def shown(wanted: Mapping[str, str], places: Mapping[str, str]) -> list[str]:
    """Which secrets can be read where; empty when none can."""
    return [f"{name}: {place}" for place, text in places.items() for name, secret in wanted.items() if secret in text]


def left_by_operations(airflow: Airflow, job: FreshJob) -> dict[str, str]:
    """What any operation of the job left, by its place: in Airflow logs, XComs and fields of tasks, in the bucket
    whatever belongs to the job, and the command lines on this machine. Fails without anything to look at.
    """
    found = {}
    for info in job.store.list(keys.operations(job.name)):
        read = documents.read(job.store, info.key, Operation)
        owner = read.value.owner if read else None
        if owner is None or owner.kind != "airflow" or owner.user == "tester":  # the last are begun by tests themselves
            continue
        run = f"{owner.dag_id}/{owner.run_id}"
        for task in airflow.tasks(owner.dag_id, owner.run_id):
            log = airflow.log(owner.dag_id, owner.run_id, task.task_id, max(1, task.tries), task.map_index)
            found[f"log of {run}/{task.task_id}"] = "\n".join(log)
            found[f"XCom of {run}/{task.task_id}"] = str(airflow.xcom(owner.dag_id, owner.run_id, task.task_id))
        listed = airflow._call("GET", f"/api/v2/dags/{owner.dag_id}/dagRuns/{_path(owner.run_id)}/taskInstances")
        found[f"fields of {run}"] = str([task["rendered_fields"] for task in listed["task_instances"]])
    assert len(found) > 50
    prefixes = [f"jobs/{job.name}/", *(prefix for listed in keys.removable(job.name).values() for prefix in listed)]
    objects = [info.key for prefix in prefixes for info in job.store.list(prefix)]
    assert {"manifests", "receipts", "operations", "logs", "offsets"} <= {
        part for key in objects for part in key.split("/")
    }
    with ThreadPoolExecutor(8) as pool:
        found |= zip(objects, pool.map(lambda key: _body(job, key), objects), strict=True)
    commands = psutil.process_iter(["cmdline"])
    return found | {f"process {process.pid}": "\0".join(process.info["cmdline"] or ()) for process in commands}


def _body(job: FreshJob, key: str) -> str:
    try:
        return job.store.get(key).body.decode("latin-1")
    except NotFoundError:
        return ""  # a driver at work has removed it meanwhile


def database(layout: Layout) -> dict[str, str]:
    """Every table of Airflow's database, as text."""
    password = read_pairs(layout.env_file)["POSTGRES_PASSWORD"]
    who = {"host": str(postgres.host(layout)), "user": postgres.USER, "dbname": postgres.DATABASE, "password": password}
    found = {}
    with closing(psycopg2.connect(**who)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in cursor.fetchall():
            rows = StringIO()
            cursor.copy_expert(f"COPY {table} TO STDOUT", rows)
            found[f"table {table}"] = rows.getvalue()
    assert all(CANARY in found[f"table {name}"] for name in ("connection", "variable"))
    assert all(found[f"table {name}"] for name in ("dag_run", "task_instance", "xcom", "log", "serialized_dag"))
    return found


def pages(airflow: Airflow, job: FreshJob) -> dict[str, str]:
    """Pages by their address: of Airflow for who is logged in, of Spark for everybody. Fails without those of a driver.

    Airflow's are what its API answers, from which a browser makes them.
    """
    lists = "connections variables config providers plugins pools eventLogs importErrors jobs dags assets/events"
    of_dags = (f"{what}/{dag}" for dag in RUNBOOKS for what in ("dagSources", "dags"))
    runs = (f"dags/{dag}/{what}" for dag in RUNBOOKS for what in ("details", "dagRuns?limit=100&order_by=-run_after"))
    paths = [f"/api/v2/{path}" for path in (*lists.split(), *of_dags, *runs)] + ["/ui/config", "/ui/dags", "/fleet/"]
    found = {f"Airflow {path}": airflow._send("GET", path).text for path in paths}
    assert CANARY in found["Airflow /api/v2/connections"]
    assert CANARY in found["Airflow /api/v2/variables"]
    status, nodes = job.status(), SupervisedNodes(job.settings)
    assert status is not None
    wanted = [f"{job.settings.spark_ui.rstrip('/')}/{path}" for path in ("", "json/", "environment/", "metrics/json/")]
    for node in nodes.inventory.nodes:
        logs = (f"logPage/?driverId={status.driver}&logType={name}&byteLength=9999999" for name in ("stdout", "stderr"))
        wanted += [f"{node.page}/{path}" for path in ("", "json/", "metrics/json/", *logs)]
    api = f"api/v1/applications/{status.app_id}"
    for path in ("environment/", "executors/", "jobs/", "StreamingQuery/", f"{api}/environment", f"{api}/allexecutors"):
        wanted.append(f"{status.ui.rstrip('/')}/{path}")
    with httpx.Client(timeout=30, trust_env=False, follow_redirects=True) as client:
        for url in wanted:
            with suppress(httpx.HTTPError):  # a spare node has no worker
                found[url] = client.get(url).text
    assert "spark.hadoop.fs.s3a" in found[f"{status.ui.rstrip('/')}/{api}/environment"]
    return found
