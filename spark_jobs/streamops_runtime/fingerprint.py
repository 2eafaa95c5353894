"""A stage's fingerprint from Spark's plan; no query is started.

The analysed plan goes through Spark's optimizer, because the state holds what is left then: an aggregate that no one
reads has no buffer, and a join keeps only the columns that are used. What is not known here becomes *opaque*, so that
the verdict is *unknown* and never a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin
from pyspark.sql.types import StructField, StructType, TimestampType

from streamops.model.definitions import Definition
from streamops.versions.fingerprints import Fingerprint, Operator, Variable
from streamops_runtime.code import StageFunction, reads
from streamops_runtime.plan_walk import Walk
from streamops_runtime.session import STREAMING
from streamops_runtime.sources import schema_of


def fingerprint(
    spark: SparkSession, definition: Definition, stage: str, function: StageFunction, temporary: str
) -> tuple[Fingerprint, dict[str, frozenset[str]]]:
    """The fingerprint of one stage, and the columns of sources that each column of its result is made of.

    Args:
        function: as ``code.load`` gives it, with the params of the definition.
        temporary: a directory for the empty sources.
    """
    with _whole_texts(spark):
        with _processors() as processors:
            result = function({name: _plain(spark, definition, name, temporary) for name in function.sources})
        optimizer = spark._jsparkSession.sessionState().optimizer()
        walk, plan = Walk(), optimizer.execute(result._jdf.queryExecution().analyzed())
        walk.visit(plan)
    taken = Fingerprint(
        spark=pyspark.__version__,
        output=definition.stages[stage].output,
        provider=STREAMING["spark.sql.streaming.stateStore.providerClass"].rsplit(".", 1)[1],
        partitions=definition.resources.state_partitions,
        sources=tuple(sorted(walk.sources)),
        reads=tuple(sorted(reads(definition, function))),
        params=tuple(sorted(function.params)),
        watermarks=tuple(dict.fromkeys(walk.watermarks)),
        operators=tuple(_with_variables(walk.operators, processors)),
        python=walk.python,
    )
    return taken, walk.made_of(plan)


def _plain(spark: SparkSession, definition: Definition, name: str, temporary: str) -> DataFrame:
    """A source as the stage sees it, but with its columns as leaves of the plan."""
    source = definition.sources[name]
    fields = []
    for item in schema_of(name, source).fields:
        timed = item.name == source.event_time and not isinstance(item.dataType, TimestampType)
        fields.append(StructField(item.name, TimestampType() if timed else item.dataType))
    place = Path(temporary) / name
    place.mkdir(exist_ok=True)
    reader = spark.readStream.schema(StructType(fields)).format("parquet")
    if spark.conf.get("spark.sql.streaming.queryEvolution.enableSourceEvolution", "false") == "true":
        reader = reader.name(name)  # a session with the settings of a job takes no source without a name
    return reader.load(str(place))


@contextmanager
def _whole_texts(spark: SparkSession) -> Iterator[None]:
    """A text that Spark cuts off would make different plans look alike."""
    key = "spark.sql.debug.maxToStringFields"
    before = spark.conf.get(key)
    spark.conf.set(key, "100000")
    try:
        yield
    finally:
        spark.conf.set(key, before or "25")


@contextmanager
def _processors() -> Iterator[list[Any]]:
    """The processors that are given to ``transformWithState`` meanwhile; the plan holds only their pickled form."""
    found: list[Any] = []
    names = ("transformWithState", "transformWithStateInPandas")
    originals = {name: getattr(PandasGroupedOpsMixin, name) for name in names}

    def noting(original: Any) -> Any:
        def call(self: Any, statefulProcessor: Any, *args: Any, **kwargs: Any) -> Any:
            found.append(statefulProcessor)
            return original(self, statefulProcessor, *args, **kwargs)

        return call

    try:
        for name, original in originals.items():
            setattr(PandasGroupedOpsMixin, name, noting(original))
        yield found
    finally:
        for name, original in originals.items():
            setattr(PandasGroupedOpsMixin, name, original)


class _Handle:
    """Notes the state variables that a processor asks for in ``init``; anything else it asks for is not known."""

    def __init__(self) -> None:
        self.variables: list[Variable] = []

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> object:
        return self._note(stateName, "value", _ddl(schema), ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> object:
        return self._note(stateName, "list", _ddl(schema), ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> object:
        return self._note(stateName, "map", f"{_ddl(userKeySchema)} -> {_ddl(valueSchema)}", ttlDurationMs)

    def _note(self, name: str, kind: Any, schema: str, ttl_ms: int | None) -> object:
        self.variables.append(Variable(name=name, kind=kind, schema_=schema, ttl_ms=ttl_ms))
        return object()


def _ddl(schema: Any) -> str:
    found = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    return ", ".join(f"{item.name} {item.dataType.simpleString()}" for item in found.fields)


def _with_variables(operators: list[Operator], processors: list[Any]) -> Iterator[Operator]:
    places = [operator for operator in operators if operator.kind == "transform with state"]
    known = iter(processors) if len(places) == len(processors) else None
    for operator in operators:
        if operator.kind != "transform with state" or known is None:
            yield operator
            continue
        handle = _Handle()
        try:
            next(known).init(handle)
        except Exception:  # whatever a user's init may raise without a cluster: then it is not known
            yield operator
            continue
        variables = tuple(sorted(handle.variables, key=lambda item: item.name))
        yield operator.model_copy(update={"variables": variables})
