"""What a standby practises with before anything is handed on to its stages."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from streamops.model.definitions import load
from streamops_runtime import code, sources, validate, warmup

DIRECTORY = Path(__file__).resolve().parents[2] / "spark_jobs" / "trade_analyser"


def test_a_stage_that_divides_takes_the_invented_records_too(spark: SparkSession) -> None:
    definition, at_ms = load(DIRECTORY / "v3.yaml"), int(time.time() * 1000)
    panes = definition.sources["panes"]
    rows = warmup.invented("panes", panes, at_ms)
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    raw = spark.createDataFrame([(json.dumps(row).encode(), at) for row in rows], validate.RECORD)
    frame = code.load(definition, DIRECTORY)["avg_1m"]({"panes": sources.accepted("panes", panes, raw, count=False)})
    keys, seconds = {row["symbol"] for row in rows}, {row["time"] for row in rows}
    assert len(rows) == len(keys) * len(seconds)
    windows = len(seconds) + 59  # into which the records of a key fall
    assert frame.where("value IS NOT NULL").count() == len(keys) * windows


def test_a_stage_is_warm_when_a_batch_is_hardly_quicker_than_those_before() -> None:
    assert not warmup.is_warm([])
    assert not warmup.is_warm([100])  # whether it gets quicker is not known
    assert not warmup.is_warm([100, 22_000])
    assert warmup.is_warm([100, 22_000, 25_000])
    assert warmup.is_warm([100, 22_000, 9_000])  # it has read up to the present, and takes what comes
    assert warmup.is_warm([0, 0])  # nothing comes
