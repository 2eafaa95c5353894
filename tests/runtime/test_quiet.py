"""What a driver says: less than Spark would for every batch, and of each logger as much as is asked for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamops_runtime.csv_tail import CsvTailReader
from streamops_runtime.runner import worker_address
from streamops_runtime.shipping import LEVELS, TOO_OFTEN, quiet, set_levels


def test_batches_that_take_longer_than_their_interval_are_not_said_one_by_one(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    spark.sparkContext.setLogLevel("WARN")
    jvm.java.lang.Class.forName(TOO_OFTEN)  # Spark has moved it between versions
    logger = jvm.org.apache.logging.log4j.LogManager.getLogger(TOO_OFTEN)
    assert logger.isWarnEnabled()
    quiet(spark.sparkContext)
    assert not logger.isWarnEnabled()
    assert logger.isErrorEnabled()
    assert jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark.sql.execution.streaming").isWarnEnabled()


def test_levels_hold_for_loggers_of_python_and_of_the_jvm(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "org.apache.spark.sql.execution.streaming.state"
    logger = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager.getLogger(name)
    root = logging.getLogger().level
    try:
        for level, traces, warns in (("TRACE", True, True), ("WARNING", False, True), ("ERROR", False, False)):
            set_levels(spark.sparkContext, {name: "INFO", "root": "INFO"}, {name: level})
            assert (logger.isTraceEnabled(), logger.isWarnEnabled()) == (traces, warns)
            python = logging.getLogger(name)
            assert (python.isEnabledFor(5), python.isEnabledFor(logging.WARNING)) == (traces, warns)
    finally:
        set_levels(spark.sparkContext, {name: "WARNING"})
        logging.getLogger().setLevel(root)


def test_a_source_in_a_process_of_its_own_takes_its_level_while_it_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = CsvTailReader({"source": "quiet", "place": str(tmp_path), "levels": str(LEVELS), "files": "none"})
    begin = reader.initialOffset()
    for levels, debugs, traces in (({}, False, False), ({"source.quiet": "TRACE"}, True, True),
                                   ({"source": "DEBUG", "root": "ERROR"}, True, False)):  # fmt: skip
        set_levels(spark.sparkContext, levels)
        reader.latestOffset(begin, None)
        assert (reader.log.isEnabledFor(logging.DEBUG), reader.log.isEnabledFor(5)) == (debugs, traces)
    set_levels(spark.sparkContext, {"root": "WARNING"})


@pytest.mark.parametrize(
    ("command", "address"),
    [
        ("org.apache.spark.deploy.worker.DriverWrapper spark://Worker@10.0.0.2:40585 /a.jar Main", "10.0.0.2:40585"),
        ("org.apache.spark.deploy.SparkSubmit pyspark-shell", ""),
    ],
)
def test_a_driver_knows_the_worker_that_runs_it(spark: SparkSession, command: str, address: str) -> None:
    system = spark.sparkContext._jvm.java.lang.System
    before = system.setProperty("sun.java.command", command)
    try:
        assert worker_address(spark.sparkContext) == address
    finally:
        system.setProperty("sun.java.command", before)
