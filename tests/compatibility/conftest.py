"""A session of the local Spark with the settings of every job, for all lines of the list."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from compatibility.lab import Lab
from streamops_runtime.session import STREAMING

NOT_HERE = "spark.sql.streaming.checkpointFileManagerClass"  # writes to an object store only


@pytest.fixture(scope="session")
def lab(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    session = spark.newSession()
    for key, value in STREAMING.items():
        if key != NOT_HERE:
            session.conf.set(key, value)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    return Lab(session, tmp_path_factory.mktemp("lab"))
