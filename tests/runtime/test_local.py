"""The local Spark of checks and try-outs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stack import builds
from streamops.settings import ENV_FILE
from streamops.spark import jvm, local_spark


def test_a_local_session_maps_the_archive_of_classes(spark: SparkSession) -> None:
    """Java passes over an archive that does not fit in silence, and every check is slow."""
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert str(jvm.archive(builds.spark_home())) in Path(f"/proc/{pid}/maps").read_text()


def test_a_check_takes_the_spark_of_the_installation_where_it_has_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv(ENV_FILE, str(tmp_path / "stack.env"))
    assert "SPARK_HOME" not in local_spark.environment()

    needed = "kafka_bootstrap_servers s3_endpoint s3_access_key s3_secret_key s3_bucket influx_url influx_org "
    lines = [f"{key}=x" for key in f"{needed} influx_token influx_bucket".split()]
    (tmp_path / "stack.env").write_text("\n".join([*lines, f"SPARK_HOME={tmp_path}"]))
    assert "SPARK_HOME" not in local_spark.environment()
    jvm.archive(tmp_path).touch()
    assert local_spark.environment()["SPARK_HOME"] == str(tmp_path)

    (tmp_path / "stack.env").write_text("SPARK_HOME=only")
    assert "SPARK_HOME" not in local_spark.environment()
    monkeypatch.setenv("SPARK_HOME", os.sep)  # whoever names another Spark means it
    assert local_spark.environment()["SPARK_HOME"] == os.sep
