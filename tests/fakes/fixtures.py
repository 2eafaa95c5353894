"""Fixtures over the fakes; a test module imports those that it uses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import SparkSession

from fakes import object_server
from fakes.rig import Rig
from streamops.settings import Settings
from streamops_runtime.local import local_spark

MEMORY = Path("/dev/shm")  # it takes files of MinIO in two thirds of the time
NEEDED = 4 << 30  # bytes, many times what the tests of a session write


@pytest.fixture(scope="session")
def object_store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """One MinIO for all tests of the session, in memory where there is room."""
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("minio")
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > NEEDED:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="streamops-", dir=MEMORY)))
        yield stack.enter_context(object_server.running(directory))


@pytest.fixture
def bucket(object_store_server: Settings) -> Settings:
    """A bucket of the test's own."""
    return object_server.fresh_bucket(object_store_server)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark for all tests of a process; a test that changes settings takes a ``newSession`` of it."""
    with local_spark() as session:
        yield session


@contextmanager
def made_rig(server: Settings, directory: Path) -> Iterator[Rig]:
    """A job ``sums`` with versions v1 (stage a) and v2 (stages a and b), in a bucket of its own."""
    found = Rig(object_server.fresh_bucket(server), directory)
    found.publish("v1", ("a",))
    found.publish("v2", ("a", "b"))
    try:
        yield found
    finally:
        found.cluster.end()


@pytest.fixture
def rig(object_store_server: Settings, tmp_path: Path) -> Iterator[Rig]:
    """A rig of the test's own."""
    with made_rig(object_store_server, tmp_path) as found:
        yield found
