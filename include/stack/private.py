"""Generated secrets, and files that only their owner can read."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

from stack.layout import OFFSET, Layout
from streamops.settings import read_pairs


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600; readers see the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(fresh, path)


def render_pairs(title: str, pairs: dict[str, str]) -> str:
    """A private file's KEY=VALUE lines with a title, as ``settings.read_pairs`` reads them."""
    return "".join([f"# {title}\n", *(f"{key}={value}\n" for key, value in pairs.items())])


def supervisor(name: str) -> str:
    """What the secret of one machine's supervisor is called, where each node is a machine."""
    return f"SUPERVISOR_PASSWORD_{name.upper().replace('-', '_')}"


def generated() -> dict[str, str]:
    """New secrets of a stack."""

    def token() -> str:
        return secrets.token_urlsafe(24)

    return {
        "MINIO_ROOT_USER": "root-" + secrets.token_hex(4),
        "MINIO_ROOT_PASSWORD": secrets.token_hex(20),
        "S3_ACCESS_KEY": "streamops-" + secrets.token_hex(4),
        "S3_SECRET_KEY": secrets.token_hex(20),
        "S3_JOBS_ACCESS_KEY": "jobs-" + secrets.token_hex(4),
        "S3_JOBS_SECRET_KEY": secrets.token_hex(20),
        "S3_RETENTION_ACCESS_KEY": "retention-" + secrets.token_hex(4),
        "S3_RETENTION_SECRET_KEY": secrets.token_hex(20),
        "S3_LOGS_ACCESS_KEY": "logs-" + secrets.token_hex(4),
        "S3_LOGS_SECRET_KEY": secrets.token_hex(20),
        "SNAPSHOT_KEYS": f"k{secrets.token_hex(3)}:{secrets.token_hex(32)}",
        "SPARK_SECRET": secrets.token_hex(32),
        "INFLUX_PASSWORD": token(),
        "INFLUX_TOKEN": token(),
        "POSTGRES_PASSWORD": secrets.token_hex(16),
        "AIRFLOW_PASSWORD": secrets.token_urlsafe(12),
        "AIRFLOW_SECRET_KEY": token(),
        "AIRFLOW_JWT_SECRET": secrets.token_urlsafe(48),
        "AIRFLOW_FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "SUPERVISOR_PASSWORD": token(),
        "KAFKA_CLUSTER_ID": base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("-", "A"),
    }


def prepare_env(layout: Layout, spark_home: Path) -> dict[str, str]:
    """Write the stack's private file and return its pairs.

    Secrets are generated once and then kept, as is what a person has added.
    """
    kept = read_pairs(layout.env_file)
    secret = {key: kept.get(key) or value for key, value in generated().items()}
    pairs = kept | endpoints(layout, spark_home) | secret
    write_private(layout.env_file, render_pairs("Private: endpoints and secrets of this stack.", pairs))
    return pairs


def endpoints(layout: Layout, spark_home: Path) -> dict[str, str]:
    """What is no secret of a stack: addresses, names and places."""
    return {
        "KAFKA_BOOTSTRAP_SERVERS": layout.address("kafka"),
        "S3_ENDPOINT": layout.url("minio"),
        "S3_BUCKET": "streamops",
        "S3_LOGS_BUCKET": "streamops-logs",
        "INFLUX_URL": layout.url("influxd"),
        "INFLUX_ORG": "streamops",
        "INFLUX_BUCKET": "trades",
        "INFLUX_USER": "admin",
        "SPARK_MASTER": f"spark://{layout.address('spark-master')}",
        "SPARK_UI": layout.url("spark-master-ui"),
        "AIRFLOW_URL": layout.url("airflow"),
        "AIRFLOW_PAGE": layout.page("airflow"),
        "AIRFLOW_USER": "admin",
        "SUPERVISOR_URL": layout.url("supervisor"),
        "SUPERVISOR_USER": "streamops",
        "SPARK_HOME": str(spark_home),
        "SPARK_CONF_DIR": str(layout.submit_conf),
        "NODE_DIR": str(layout.node),
        "NODES_FILE": str(layout.nodes_file),
        "NODES_PRIVATE_FILE": str(layout.nodes_private),
        OFFSET: str(layout.offset),
    }
