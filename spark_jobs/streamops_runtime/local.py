"""A local Spark for checks and try-outs: no cluster, no servers, nothing written outside a temporary directory."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from streamops.spark import jvm


@contextmanager
def local_spark() -> Iterator[SparkSession]:
    """A small session in this process; ends with it."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for user functions: Spark would take any python3
    temporary = tempfile.mkdtemp(prefix="streamops-")
    builder = SparkSession.builder.master("local[1]")
    for key, value in jvm.brief(os.environ.get("SPARK_HOME")).items():
        builder = builder.config(key, value)
    with _quiet_stderr():
        spark = (
            builder.appName("streamops-local")
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
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """What Spark prints while it starts is of no use to someone who tests a job; its errors are exceptions."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
