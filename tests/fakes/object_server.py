"""A MinIO of a test session's own: the pinned build, on a free port, in a temporary directory.

Each bucket has the identities that the stack gives its own, so whatever runs here runs with no more than they may.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import SecretStr

from stack import builds
from streamops.clients.provision import Identity, ensure_bucket, ensure_identities
from streamops.settings import BucketSettings, Settings
from streamops.store import identities

_roots: dict[str, tuple[str, SecretStr]] = {}  # by endpoint
_jobs: dict[str, tuple[str, SecretStr]] = {}  # by bucket


@contextmanager
def running(directory: Path, user: str = "tests", secret: str = "") -> Iterator[Settings]:
    """Settings whose object store is real, as its root; the other endpoints lead nowhere."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    secret = secret or secrets.token_hex(16)
    environment = {**os.environ, "MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": secret}
    binary = builds.MINIO.find() or builds.MINIO.build(directory / "build.log")
    command = [str(binary), "server", "--quiet", "--address", f"127.0.0.1:{port}", "--console-address", "127.0.0.1:0"]
    command.append(str(directory / "data"))
    with (directory / "minio.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    settings = Settings(
        kafka_bootstrap_servers="127.0.0.1:1",
        s3_endpoint=f"http://127.0.0.1:{port}",
        s3_access_key=user,
        s3_secret_key=secret,
        s3_bucket="unset",
        influx_url="http://127.0.0.1:1",
        influx_org="tests",
        influx_token="none",
        influx_bucket="none",
        snapshot_keys=f"tests:{secrets.token_hex(32)}",
    )
    _roots[settings.s3_endpoint] = user, settings.s3_secret_key
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                client(settings).list_buckets()
                break
            except (BotoCoreError, ClientError):
                assert server.poll() is None, (directory / "minio.log").read_text()
                assert time.monotonic() < deadline, "MinIO did not come up in 60 s"
                time.sleep(0.1)
        yield settings
    finally:
        server.terminate()
        server.wait(30)


def client(settings: Settings) -> object:
    """A plain S3 client, for what the product never does itself: make buckets, and tamper."""
    return boto3.client(
        "s3",
        endpoint_url=settings.s3_endpoint,
        aws_access_key_id=settings.s3_access_key,
        aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
        region_name="us-east-1",
    )


def as_root(settings: Settings) -> Settings:
    """The same bucket with all rights: what only the stack has, and whoever breaks in."""
    user, secret = _roots[settings.s3_endpoint]
    return settings.model_copy(update={"s3_access_key": user, "s3_secret_key": secret})


def as_job(settings: Settings) -> Settings:
    """The same bucket as drivers see it; like them without any other identity, and without keys that sign."""
    key, secret = _jobs[settings.s3_bucket]
    nothing = {"s3_retention_access_key": "", "s3_retention_secret_key": SecretStr(""), "snapshot_keys": SecretStr("")}
    return settings.model_copy(update={"s3_access_key": key, "s3_secret_key": secret, **nothing})


def fresh_bucket(settings: Settings) -> Settings:
    """The same server with a new bucket and identities of its own, as the stack makes them; as operations see it."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    ensure_bucket(as_root(settings).model_copy(update={"s3_bucket": name}))
    made = {
        f"{name}-{who}": Identity(f"{name}-{who}", SecretStr(secrets.token_hex(20)), identities.policy(who, name))
        for who in identities.NAMES
    }
    ensure_identities(as_root(settings), made)
    jobs, operations, retention = made.values()
    _jobs[name] = jobs.access_key, jobs.secret_key
    update = {
        "s3_bucket": name,
        "s3_access_key": operations.access_key,
        "s3_secret_key": operations.secret_key,
        "s3_retention_access_key": retention.access_key,
        "s3_retention_secret_key": retention.secret_key,
    }
    return settings.model_copy(update=update)


def logs_bucket(settings: Settings) -> BucketSettings:
    """The same server with a new bucket for the logs of Airflow's tasks, as the stack makes it; as Airflow sees it."""
    name = f"l-{uuid.uuid4().hex[:12]}"
    ensure_bucket(as_root(settings).model_copy(update={"s3_bucket": name}), every_version=True)
    made = Identity(name, SecretStr(secrets.token_hex(20)), identities.policy("logs", name))
    ensure_identities(as_root(settings), {name: made})
    return BucketSettings(
        s3_endpoint=settings.s3_endpoint, s3_access_key=name, s3_secret_key=made.secret_key, s3_bucket=name
    )
