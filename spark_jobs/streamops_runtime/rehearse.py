"""Run a job on local Spark with sample rows: ``python -m streamops_runtime.rehearse DIR [VERSION]``.

Sample rows of a source are JSON lines in ``samples/SOURCE.jsonl``. They are read as one
finished batch, so every window is closed: what is shown is what the job would write in the end.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from streamops.model.definitions import Definition, load
from streamops.model.errors import DefinitionError, NotFoundError, StreamOpsError
from streamops.versions.artifacts import definition_file
from streamops_runtime import code
from streamops_runtime.local import local_spark
from streamops_runtime.result_records import milliseconds
from streamops_runtime.sinks import check_columns
from streamops_runtime.sources import accepted
from streamops_runtime.validate import RECORD, check

_SHOWN = 20


def rehearse(spark: SparkSession, definition: Definition, directory: Path) -> dict[str, list[Row]]:
    """Each stage's rows over the samples, in order of their columns.

    Raises:
        DefinitionError: the job is wrong.
        NotFoundError: a source has no samples.
    """
    check(spark, definition, directory)
    functions = code.load(definition, directory)
    results: dict[str, list[Row]] = {}
    given: dict[str, tuple[str, DataFrame]] = {}
    for stage, function in functions.items():
        frames = {}
        for name in function.sources:
            read = definition.sources[name].stage
            lines = _handed_on(definition, given[read.name]) if read else samples(directory, name)
            raw = spark.createDataFrame([], RECORD).union(_records(spark, lines))
            frames[name] = accepted(name, definition.sources[name], raw, count=False)
        given[stage] = (stage, result := function(frames))
        check_columns(definition, stage, result.schema)
        try:
            results[stage] = sorted(result.collect(), key=lambda row: tuple(map(str, row)))
        except PySparkException as error:
            raise DefinitionError(f"stages.{stage}: {str(error).splitlines()[0][:500]}") from error
    return results


def _handed_on(definition: Definition, given: tuple[str, DataFrame]) -> list[str]:
    """A stage's results as other stages read them, each point once."""
    stage, result = given
    sink = definition.stages[stage].points
    assert sink is not None  # a real-time stage has one
    point = milliseconds(result.schema, sink.time).alias(sink.time)
    rows = result.select(*sink.tags, point, *definition.feeding[stage])
    return [row.text for row in rows.select(F.to_json(F.struct("*")).alias("text")).collect()]


def samples(directory: Path, source: str) -> list[str]:
    """The sample rows of a source. Raises NotFoundError."""
    path = directory / "samples" / f"{source}.jsonl"
    if not path.is_file():
        raise NotFoundError(f"Source {source} has no sample rows; write a few JSON lines to {path}.")
    return [text for text in path.read_text(encoding="utf-8").splitlines() if text.strip()]


def _records(spark: SparkSession, lines: Sequence[str]):  # type: ignore[no-untyped-def]
    """Lines as Kafka records; each is as new as it says, so that old and new samples are accepted alike."""
    rows = spark.createDataFrame([(text,) for text in lines], "text string")
    return rows.select(F.col("text").cast("binary").alias("value"), F.lit(datetime(9999, 1, 1)).alias("timestamp"))


def show(stage: str, rows: Sequence[Row]) -> str:
    """A stage's rows as text."""
    lines = [f"{stage}: {len(rows)} rows"]
    for row in rows[:_SHOWN]:
        lines.append("  " + json.dumps(row.asDict(), default=str, ensure_ascii=False))
    if len(rows) > _SHOWN:
        lines.append(f"  ... and {len(rows) - _SHOWN} more")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Entry point."""
    directory, version = Path(arguments[0]).resolve(), arguments[1] if len(arguments) > 1 else None
    try:
        definition = load(definition_file(directory, version))
        with local_spark() as spark, tempfile.TemporaryDirectory():
            results = rehearse(spark, definition, directory)
    except StreamOpsError as error:
        print(str(error), file=sys.stderr)
        return 1
    for stage, rows in results.items():
        print(show(stage, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
