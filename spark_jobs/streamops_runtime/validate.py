"""Check a job before it is published: ``python -m streamops_runtime.validate DIR VERSION``.

Builds every stage's plan over empty streams of the declared schema, so that a wrong argument, an unknown column
or an unsupported plan is refused here and not on the cluster. Prints one JSON object with each stage's columns and
fingerprint; exit code 1 if refused.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegralType, LongType, StructField, StructType, TimestampType

from streamops.model.definitions import Definition, load
from streamops.model.errors import DefinitionError, StreamOpsError
from streamops.versions import refill, verdicts
from streamops.versions.artifacts import definition_file
from streamops.versions.fingerprints import Fingerprint
from streamops_runtime import code
from streamops_runtime.fingerprint import fingerprint
from streamops_runtime.local import local_spark
from streamops_runtime.plan_walk import items
from streamops_runtime.result_records import check_tags
from streamops_runtime.sinks import check_columns
from streamops_runtime.sources import accepted, schema_of

RECORD = StructType([StructField("value", BinaryType()), StructField("timestamp", TimestampType())])
# Operators of a plan that Spark 4.3 runs in real time (its RealTimeModeAllowlist, by the names of logical plans).
REAL_TIME = {
    *("Project", "Filter", "Generate", "Expand", "Union", "Aggregate", "Deduplicate", "EventTimeWatermark"),
    *("StreamingRelation", "StreamingDataSourceV2Relation", "StreamingRelationV2", "CollectMetrics", "SubqueryAlias"),
}
KEYED = StructType([StructField("key", BinaryType()), *RECORD.fields])


def check(spark: SparkSession, definition: Definition, directory: Path) -> dict[str, Any]:
    """Each stage's columns. Raises DefinitionError, with the stage and what is wrong."""
    for name, source in definition.sources.items():
        schema_of(name, source)
    found, schemas = {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        for stage, function in code.load(definition, directory).items():
            frames = {name: _empty(spark, definition, name, temporary) for name in function.sources}
            result = _called(stage, function, frames)
            if not result.isStreaming:
                raise DefinitionError(f"stages.{stage}: {stage} does not use the sources it is given.")
            check_columns(definition, stage, result.schema)
            _check_output(spark, definition, stage, result, temporary)
            if definition.stages[stage].realtime:
                _check_real_time(spark, definition, stage, function, result)
            schemas[stage] = result.schema
            found[stage] = [f"{field.name} {field.dataType.simpleString()}" for field in result.schema.fields]
    for name, source in definition.sources.items():
        if source.stage:
            _check_handed_on(definition, name, schemas[source.stage.name])
    return found


def _check_handed_on(definition: Definition, name: str, given: StructType) -> None:
    """Whether a stage gives what a source says that it hands on."""
    source = definition.sources[name]
    assert source.stage is not None
    read = source.stage.name
    sink = definition.stages[read].points
    assert sink is not None  # a real-time stage has one
    for column in source.stage.add:
        if column not in given.names:
            raise DefinitionError(
                f"sources.{name}.stage.add: {read} has no column {column}; it has {', '.join(given.names)}."
            )
        if not isinstance(given[column].dataType, IntegralType):
            raise DefinitionError(
                f"sources.{name}.stage.add: column {column} of {read} is {given[column].dataType.simpleString()}; only "
                "whole numbers add up to the same sum in any order, so make it one (cents instead of dollars)."
            )
    point = {*sink.tags, sink.time}
    for field in schema_of(name, source).fields:
        if field.name not in {*point, *source.stage.add}:
            raise DefinitionError(
                f"sources.{name}.schema: {field.name} is neither tag nor time of {read}, nor among what it adds "
                f"({', '.join(source.stage.add)})."
            )
        if field.name == sink.time and not isinstance(field.dataType, LongType):
            raise DefinitionError(f"sources.{name}.schema: {field.name} is handed on as bigint, in milliseconds.")
        if field.name != sink.time and field.dataType.simpleString() != given[field.name].dataType.simpleString():
            kind = given[field.name].dataType.simpleString()
            raise DefinitionError(f"sources.{name}.schema: {field.name} of {read} is {kind}; declare it as that.")


def fingerprints(spark: SparkSession, definition: Definition, directory: Path) -> dict[str, Any]:
    """Each stage's fingerprint. A plan that cannot be read has none, and its verdict will be *unknown*.

    Raises:
        DefinitionError: a stage is to fill itself (``fill``), and cannot; or some of its groups are one point.
    """
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        for stage, function in code.load(definition, directory).items():
            try:
                taken, made_of = fingerprint(spark, definition, stage, function, temporary)
            except Exception as error:  # the plan is sound, or check had refused it
                print(f"no fingerprint of {stage}: {_first_line(error)}", file=sys.stderr)
                continue
            found[stage] = taken.model_dump(mode="json", exclude_defaults=True)
            _check_groups(definition, stage, taken, made_of)
            if definition.stages[stage].fill and not refill.can_fill(taken, verdicts.ledger(definition)):
                raise DefinitionError(
                    f"stages.{stage}.fill: that takes windows of 15 minutes at most over topics with an event_time; "
                    f"leave it out, and {stage} begins where the other stages stand."
                )
    return found


def _check_groups(
    definition: Definition, stage: str, taken: Fingerprint, made_of: Mapping[str, frozenset[str]]
) -> None:
    """Whether each group has a point of its own: of two with one, the later result would replace the other."""
    for sink in definition.stages[stage].influx_sinks:
        where = f"stages.{stage}.sinks: the points of {sink.measurement}"
        if merged := taken.merged(made_of, (*sink.tags, sink.time)):
            key = merged.window.label() if merged.window else merged.text
            raise DefinitionError(
                f"{where} do not tell apart what {stage} groups by ({key}), so that one would replace another; make "
                "it a tag or the time, or aggregate it as well (first) if it follows from the other keys."
            )
        for window in (key.window for key in taken.groups_by if key.window):
            if window.size_us % 1000 or window.slide_us % 1000:
                raise DefinitionError(f"{where} have whole milliseconds, and its {window.label()} does not.")


def _empty(spark: SparkSession, definition: Definition, name: str, temporary: str) -> DataFrame:
    place = Path(temporary) / name
    place.mkdir(exist_ok=True)
    raw = spark.readStream.schema(KEYED).format("parquet").load(str(place))
    return accepted(name, definition.sources[name], raw, count=False)


def _called(stage: str, function: code.StageFunction, frames: dict[str, DataFrame]) -> DataFrame:
    try:
        return function(frames)
    except DefinitionError:
        raise
    except PySparkException as error:
        raise DefinitionError(f"stages.{stage}: {_first_line(error)}") from error
    except Exception as error:
        raise DefinitionError(f"stages.{stage}: {stage} raised {type(error).__name__}: {error}.") from error


def _check_output(spark: SparkSession, definition: Definition, stage: str, frame: DataFrame, temporary: str) -> None:
    """Whether Spark can run the plan in the stage's output mode, and whether early results make sense."""
    output = definition.stages[stage].output
    plan = _analysed(frame)
    gateway = spark.sparkContext._jvm
    assert gateway is not None
    modes = gateway.org.apache.spark.sql.streaming.OutputMode
    mode = modes.Update() if output == "update" else modes.Append()
    try:
        checker = gateway.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        checker.checkForStreaming(plan, mode)
    except Exception as error:
        if output == "update" and "global watermark" in str(error):
            raise DefinitionError(
                f"stages.{stage}.output: {stage} has windows over windows, which cannot give early results; use append."
            ) from error
        if "AnalysisException" in str(error) or isinstance(error, PySparkException):
            raise DefinitionError(f"stages.{stage}: {_first_line(error)}") from error
        raise


def _check_real_time(
    spark: SparkSession, definition: Definition, stage: str, function: code.StageFunction, result: DataFrame
) -> None:
    """Whether a stage can run in real time: what it reads, its operators, and what identifies its points."""
    why = f"stages.{stage}.mode: {stage} cannot run in real time, because"
    for name in function.sources:
        if not definition.sources[name].kafka and not definition.sources[name].stage:
            raise DefinitionError(f"{why} source {name} is not of Kafka; use mode: batch.")
    if sink := definition.stages[stage].points:
        check_tags(result.schema, sink, why)
    found = list(_operators(spark._jsparkSession.sessionState().optimizer().execute(_analysed(result))))
    if unknown := sorted(set(found) - REAL_TIME):
        raise DefinitionError(f"{why} Spark has no {', '.join(unknown)} there; use mode: batch.")
    if found.count("Aggregate") > 1:
        raise DefinitionError(f"{why} it aggregates what it has aggregated; use mode: batch.")


def _analysed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _operators(plan: Any) -> Iterator[str]:
    yield str(plan.nodeName())
    for child in items(plan.children()):
        yield from _operators(child)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:500]


def main(arguments: list[str]) -> int:
    """Entry point; the answer is the last line of the output."""
    directory, version = Path(arguments[0]).resolve(), arguments[1] if len(arguments) > 1 else None
    try:
        definition = load(definition_file(directory, version))
        with local_spark() as spark:
            stages = check(spark, definition, directory)
            print(json.dumps({"stages": stages, "fingerprints": fingerprints(spark, definition, directory)}))
    except StreamOpsError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
