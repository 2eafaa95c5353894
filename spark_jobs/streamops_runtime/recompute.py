"""A job's own functions as a batch query: ``python -m streamops_runtime.recompute REQUEST``.

For a recount of what its own words cannot say. The request names a directory with the job's code and files with the
records of its sources; nothing else is read, and nothing is written but the files with the points that come out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from streamops.model.definitions import InfluxSink, Source, parse
from streamops.model.errors import DefinitionError, StreamOpsError
from streamops_runtime import code
from streamops_runtime.local import local_spark
from streamops_runtime.sinks import point
from streamops_runtime.sources import PLACE, accepted

_RECORDS = "partition int, offset bigint, at bigint, key string, value string"
_TIME, _NEWEST = f"{PLACE}_time", f"{PLACE}_newest"


def recompute(spark: SparkSession, request: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Write the points of one stage, from all events and, where some may have come late, from those that did not.

    Args:
        directory: where the code and the files of the request are, and where ``all.jsonl`` and ``sure.jsonl`` go.

    Returns:
        Numbers of ``events`` that were accepted and of those that are ``late``, and in milliseconds ``begun_ms``, the
        time before which not all events were read, and ``newest_ms``; None without events.

    Raises:
        DefinitionError: the code does not run.
    """
    definition = parse(json.dumps(request["definition"]))
    stage, delay_ms = str(request["stage"]), request["delay_ms"]
    function = code.load(definition, directory, request["params"])[stage]
    sink = definition.stages[stage].points
    assert sink is not None  # else there is nothing to compare with
    frames, sure, told = {}, {}, []
    for name in function.sources:
        source = definition.sources[name]
        records = _records(spark, directory / request["files"][name])
        frames[name] = accepted(name, source, records, count=False)
        sure[name], found = _on_time(source, name, records, delay_ms, request["cut"].get(name))
        told.append(found)
    try:
        _write(directory / "all.jsonl", sink, function(frames))
        late = sum(item["late"] for item in told)
        if late:
            _write(directory / "sure.jsonl", sink, function(sure))
    except PySparkException as error:
        raise DefinitionError(f"stages.{stage}: {str(error).splitlines()[0][:500]}") from error
    begun = [item["begun_ms"] for item in told if item["begun_ms"] is not None]
    newest = [item["newest_ms"] for item in told if item["newest_ms"] is not None]
    return {
        "events": sum(item["events"] for item in told),
        "late": late,
        "begun_ms": max(begun, default=None),
        "newest_ms": max(newest, default=None),
    }


def _records(spark: SparkSession, path: Path) -> DataFrame:
    """Records as Kafka gives them, with where they stand."""
    rows = spark.read.schema(_RECORDS).option("sep", "\t").option("emptyValue", "").csv(str(path))
    moment = F.timestamp_millis("at")
    return rows.select(
        F.unbase64("key").alias("key"),
        F.unbase64("value").alias("value"),
        moment.alias("timestamp"),
        F.struct(moment.alias("at"), "partition", "offset").alias(PLACE),
    )


def _on_time(
    source: Source, name: str, records: DataFrame, delay_ms: int | None, cut: list[int] | None
) -> tuple[DataFrame, dict[str, Any]]:
    """The events that no watermark can have dropped, and what is told of all of them.

    Args:
        cut: partitions that have events before these; None for any.
    """
    rows = accepted(name, source, records, count=False, placed=True)
    columns = [f"`{column}`" for column in rows.columns if column != PLACE]
    if source.event_time is None:
        return rows.select(*columns), {"events": rows.count(), "late": 0, "begun_ms": None, "newest_ms": None}
    before = Window.orderBy(PLACE).rowsBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumn(_TIME, F.unix_millis(F.col(f"`{source.event_time}`").cast("timestamp")))
    rows = rows.withColumn(_NEWEST, F.max(_TIME).over(before)).cache()
    late = F.lit(False)
    if delay_ms is not None:
        late = F.coalesce(F.col(_TIME) <= F.col(_NEWEST) - delay_ms, F.lit(False))
    after_others = F.lit(True) if cut is None else F.col(f"{PLACE}.partition").isin(cut)
    firsts = rows.where(after_others).groupBy(f"{PLACE}.partition").agg(F.min_by(_TIME, PLACE).alias("first"))
    begun = firsts.agg(F.max("first")).head()
    counts = rows.agg(F.count("*"), F.count_if(late), F.max(_TIME)).head()
    assert begun is not None
    assert counts is not None
    told = {"events": counts[0], "late": counts[1], "begun_ms": begun[0], "newest_ms": counts[2]}
    return rows.where(~late).select(*columns), told


def _write(path: Path, sink: InfluxSink, rows: DataFrame) -> None:
    """The points of rows, one a line, as the job's sink would write them."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows.toLocalIterator():
            if found := point(sink, row):
                file.write(json.dumps([found.time_ms, [found.tags[tag] for tag in sink.tags], found.fields]) + "\n")


def main(arguments: list[str]) -> int:
    """Entry point; the answer is the last line of the output."""
    path = Path(arguments[0]).resolve()
    try:
        with local_spark() as spark:
            print(json.dumps({"told": recompute(spark, json.loads(path.read_text()), path.parent)}))
    except StreamOpsError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    except Exception as error:  # a function of the job's may raise anything
        print(
            json.dumps({"error": f"{type(error).__name__}: {str(error).splitlines()[0][:500] if str(error) else ''}"})
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
