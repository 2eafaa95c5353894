"""A local Spark for checks and try-outs: no cluster, no servers, nothing written outside a temporary directory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def local_spark() -> Iterator[SparkSession]:
    """A small session in this process; ends with it."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as temporary:
        spark = (
            SparkSession.builder.master("local[1]")
            .appName("streamops-local")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.sql.warehouse.dir", f"{temporary}/warehouse")
            .config("spark.local.dir", temporary)
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        try:
            yield spark
        finally:
            spark.stop()
