"""When a server counts as ready, and waiting until it is."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from operator import not_
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from stack.layout import Layout
from stack.private import write_private
from streamops.clients.kafka import Ledger
from streamops.clients.provision import Identity, ensure_bucket, ensure_identities, ensure_influx, ensure_influx_writer
from streamops.model.errors import StreamOpsError, UnreachableError
from streamops.settings import Settings, read_pairs
from streamops.store import identities, waiting

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy


def kafka(layout: Layout) -> str:
    """Empty when the broker answers and has the topic; else what is missing."""
    Ledger.at(Settings.load(layout.env_file).kafka_bootstrap_servers).ensure_topic("trades")
    return ""


def minio(layout: Layout) -> str:
    """Empty when the buckets and the identities that work in them are there."""
    pairs = read_pairs(layout.env_file)
    root = {"s3_access_key": pairs["MINIO_ROOT_USER"], "s3_secret_key": SecretStr(pairs["MINIO_ROOT_PASSWORD"])}
    settings = Settings.load(layout.env_file).model_copy(update=root)
    ensure_bucket(settings)
    ensure_bucket(settings.model_copy(update={"s3_bucket": pairs["S3_LOGS_BUCKET"]}), every_version=True)
    ensure_identities(settings, _identities(pairs))
    return ""


def _identities(pairs: Mapping[str, str]) -> dict[str, Identity]:
    here, logs = pairs["S3_BUCKET"], pairs["S3_LOGS_BUCKET"]
    known: dict[identities.Name, tuple[str, str]] = {
        "jobs": ("S3_JOBS_", here),
        "operations": ("S3_", here),
        "retention": ("S3_RETENTION_", here),
        "logs": ("S3_LOGS_", logs),
    }
    return {
        name: Identity(
            pairs[f"{prefix}ACCESS_KEY"], SecretStr(pairs[f"{prefix}SECRET_KEY"]), identities.policy(name, bucket)
        )
        for name, (prefix, bucket) in known.items()
    }


def influxd(layout: Layout) -> str:
    """Empty when InfluxDB has its organisation, bucket and tokens."""
    pairs, settings = read_pairs(layout.env_file), Settings.load(layout.env_file)
    ensure_influx(settings, pairs["INFLUX_USER"], pairs["INFLUX_PASSWORD"])
    known = layout.influx_writer.read_text() if layout.influx_writer.is_file() else ""
    if (token := ensure_influx_writer(settings, known)) != known:
        write_private(layout.influx_writer, token)
    return ""


def master(layout: Layout) -> str:
    """Empty when the master is ALIVE."""
    status = str(_json(f"{layout.url('spark-master-ui')}/json/")["status"])
    return "" if status == "ALIVE" else f"the master is {status}"


def workers(wanted: int) -> Callable[[Layout], str]:
    """A probe that says nothing when so many workers have joined."""

    def probe(layout: Layout) -> str:
        alive = sum(worker["state"] == "ALIVE" for worker in _json(f"{layout.url('spark-master-ui')}/json/")["workers"])
        return "" if alive >= wanted else f"{alive} of {wanted} workers have joined"

    return probe


def airflow(layout: Layout) -> str:
    """Empty when the API answers and scheduler, triggerer and DAG processor have sent a heartbeat."""
    health = _json(f"{layout.url('airflow')}/api/v2/monitor/health")
    parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
    missing = [part for part in parts if health.get(part, {}).get("status") != "healthy"]
    return f"waiting for {', '.join(missing)}" if missing else ""


def wait(name: str, probe: Callable[[Layout], str], layout: Layout, deadline_s: float) -> None:
    """Wait until ``probe`` finds nothing missing.

    Raises:
        StreamOpsError: not by the deadline; names the server, what it lacks, and its log.
    """

    def look() -> str:
        try:
            return probe(layout)
        except (UnreachableError, OSError, ValueError, KeyError) as error:
            return str(error) if isinstance(error, StreamOpsError) else f"it does not answer ({error})"

    if missing := waiting.until(look, deadline_s, 0.2, done=not_):
        log = layout.log / f"{name}.log"
        more = f" Its log {log}:{_tail(log)}" if log.is_file() else ""  # what runs elsewhere has it there
        raise StreamOpsError(f"{name} was not ready after {deadline_s:g} s: {missing}.{more}")


def _json(url: str) -> dict[str, Any]:
    with _direct.open(url, timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-8:]
    return "".join(f"\n    {line}" for line in lines)
