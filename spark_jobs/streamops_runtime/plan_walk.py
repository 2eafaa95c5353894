"""A walk through a stage's plan, from its sources to its result, that collects what has state."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from streamops.versions.fingerprints import Aggregate, Key, Operator, Slot, Watermark, Window
from streamops_runtime.meanings import Meaning, bare, of_window, replaced, shared_window, short, window_of
from streamops_runtime.windows import SIZE_US, SLIDE_US

# Over a stream without state, and transparent: their output is their input's.
_STATELESS = {
    "Project", "Filter", "Expand", "SubqueryAlias", "EventTimeWatermark", "Union", "Generate", "CollectMetrics",
    "Repartition", "RepartitionByExpression", "RebalancePartitions", "ResolvedHint", "View", "Sample",
    "MapInPandas", "MapInArrow", "ArrowEvalPython", "BatchEvalPython", "MapElements", "MapPartitions",
    "SerializeFromObject", "DeserializeToObject", "TypedFilter", "ReturnAnswer",
}  # fmt: skip
_PYTHON = {"MapInPandas", "MapInArrow", "ArrowEvalPython", "BatchEvalPython"}
_LEAVES = {"StreamingRelation", "StreamingRelationV2", "StreamingExecutionRelation"}


@dataclass
class Walk:
    """Visits a plan from its sources to its result and collects what has state."""

    operators: list[Operator] = field(default_factory=list)
    watermarks: list[Watermark] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    python: bool = False
    _meanings: dict[int, Meaning] = field(default_factory=dict)
    _steps: list[str] = field(default_factory=list)
    _over: dict[int, tuple[Meaning, str]] = field(default_factory=dict)  # what was generated from panes, and that step

    def visit(self, node: Any) -> None:
        """Children first."""
        name = node.getClass().getSimpleName()
        if not node.isStreaming():
            for attribute in items(node.output()):
                self._define(attribute, Meaning(f"static.{attribute.name()}"))
            return
        for child in items(node.children()):
            self.visit(child)
        handler = _HANDLERS.get(name)
        if name in _LEAVES:
            self._leaf(node)
        elif handler is not None:
            handler(self, node)
        elif name not in _STATELESS:
            self._state(Operator(kind="opaque", detail=name))
        self.python = self.python or name in _PYTHON
        self._rest(node, name)

    def made_of(self, node: Any) -> dict[str, frozenset[str]]:
        """The columns of sources that each column is made of which comes out of a visited node."""
        return {item.name(): self._meaning(item).columns for item in items(node.output())}

    def _leaf(self, node: Any) -> None:
        found = re.search(r"FileSource\[[^\]]*/([^/\]]+)\]", node.toString())
        source = found[1] if found else node.toString().split("[", 1)[0].strip()
        self.sources.add(source)
        for attribute in items(node.output()):
            column = f"{source}.{attribute.name()}"
            self._define(attribute, Meaning(column, frozenset({column})))

    def _rest(self, node: Any, name: str) -> None:
        """Attributes that come out of a node and are not known yet depend on all that goes into it."""
        unknown = [item for item in items(node.output()) if item.exprId().id() not in self._meanings]
        if not unknown:
            return
        inputs = [item for child in items(node.children()) for item in items(child.output())]
        columns = frozenset().union(*(self._meaning(item).columns for item in inputs))
        for attribute in unknown:
            self._define(attribute, Meaning(f"{name}:{attribute.name()}", columns))

    def _project(self, node: Any) -> None:
        for expression in items(node.projectList()):
            self._alias(expression)

    def _expand(self, node: Any) -> None:
        first = items(node.projections())[0]  # the others differ in the window's number only
        for attribute, expression in zip(items(node.output()), items(first), strict=True):
            self._define(attribute, self._read(expression))

    def _filter(self, node: Any) -> None:
        for condition in _conjuncts(node.condition()):
            text = self._read(condition).text
            if not text.startswith("isnotnull(") and "precisetimestampconversion" not in text:  # Spark's own
                self._steps.append(f"where {text}")

    def _watermark(self, node: Any) -> None:
        self.watermarks.append(Watermark(column=self._read(node.eventTime()).text, delay=node.delay().toString()))

    def _python_functions(self, node: Any) -> None:
        for attribute, function in zip(items(node.resultAttrs()), items(node.udfs()), strict=True):
            self._define(attribute, self._read(function))

    def _step(self, node: Any) -> None:
        self._steps.append(_text(node))

    def _union(self, node: Any) -> None:
        sides = [items(child.output()) for child in items(node.children())]
        for position, attribute in enumerate(items(node.output())):
            found = [self._meaning(side[position]) for side in sides]
            text = " or ".join(dict.fromkeys(item.text for item in found))
            columns = frozenset().union(*(item.columns for item in found))
            self._define(attribute, Meaning(text, columns, shared_window([item.window for item in found])))

    def _aggregate(self, node: Any) -> None:
        expressions = items(node.aggregateExpressions())
        found: dict[str, Aggregate] = {}
        for expression in expressions:
            for item in _aggregates(expression):
                aggregate = self._aggregate_of(item)
                found.setdefault(aggregate.text, aggregate)
        keys = tuple(self._key(item) for item in items(node.groupingExpressions()))
        self._state(Operator(kind="aggregation", keys=keys, aggregates=tuple(found.values())))
        for expression in expressions:
            self._alias(expression)

    def _aggregate_of(self, item: Any) -> Aggregate:
        function = item.aggregateFunction()
        buffer = json.loads(function.aggBufferSchema().json())["fields"]
        slots = tuple(Slot(type=_type_text(slot["type"]), nullable=slot["nullable"]) for slot in buffer)
        return Aggregate(function=function.prettyName(), text=self._read(item).text, buffer=slots)

    def _deduplicate(self, node: Any) -> None:
        keys = tuple(self._key(item) for item in items(node.keys()))
        within = node.getClass().getSimpleName() == "DeduplicateWithinWatermark"
        self._state(Operator(kind="deduplication within watermark" if within else "deduplication", keys=keys))

    def _join(self, node: Any) -> None:
        if not (node.left().isStreaming() and node.right().isStreaming()):
            self._step(node)
            return
        left = {item.exprId().id() for item in items(node.left().output())}
        keys, bounds = [], []
        conditions = _conjuncts(node.condition().get()) if node.condition().isDefined() else []
        for condition in conditions:
            sides = items(condition.children())
            if condition.getClass().getSimpleName() == "EqualTo" and _across(sides, left):
                one, other = self._read(sides[0]), self._read(sides[1])
                text = f"{one.text} = {other.text}"
                columns = tuple(sorted(one.columns | other.columns))
                keys.append(Key(text=text, type=sides[0].dataType().catalogString(), columns=columns))
            else:
                bounds.append(self._read(condition).text)
        rows = tuple(
            tuple(item.dataType().catalogString() for item in items(side.output()))
            for side in (node.left(), node.right())
        )
        detail = node.joinType().toString()
        self._state(Operator(kind="join", detail=detail, keys=tuple(keys), bounds=tuple(bounds), rows=rows))

    def _transform(self, node: Any) -> None:
        child = node.left() if hasattr(node, "left") else items(node.children())[0]
        count = node.groupingAttributesLen()
        keys = tuple(self._key(item) for item in items(child.output())[:count])
        detail = f"{node.outputMode().toString()} {node.timeMode().toString()}"
        self._state(Operator(kind="transform with state", detail=detail, keys=keys))
        self.python = True

    def _pandas(self, node: Any) -> None:
        keys = tuple(self._key(item) for item in items(node.groupingAttributes()))
        detail = f"{node.outputMode().toString()} {node.timeout().toString()}"
        schema = node.stateType().catalogString()
        self._state(Operator(kind="apply in pandas with state", detail=detail, keys=keys, schema_=schema))
        self.python = True

    def _state(self, operator: Operator) -> None:
        self.operators.append(operator.model_copy(update={"inputs": tuple(sorted(set(self._steps)))}))
        self._steps = []

    def _key(self, expression: Any) -> Key:
        found = self._read(expression)
        return Key(
            text=found.text,
            type=expression.dataType().catalogString(),
            columns=tuple(sorted(found.columns)),
            window=found.window,
        )

    def _generate(self, node: Any) -> None:
        step = _text(node)
        self._steps.append(step)
        read = [self._meaning(item) for item in items(node.generator().references().toSeq())]
        panes = [meaning for meaning in read if meaning.window]
        for attribute in items(node.generatorOutput()) if panes else ():
            self._over[attribute.exprId().id()] = (panes[0], step)

    def _alias(self, expression: Any) -> None:
        if expression.getClass().getSimpleName() == "Alias":
            self._define(expression, self._sliding(expression) or self._read(expression.child()))

    def _sliding(self, alias: Any) -> Meaning | None:
        """The window that ``windows.sliding`` made of panes: what ``F.window`` means, and no step of its own."""
        marks = json.loads(alias.metadata().json())
        child = alias.child()
        if SIZE_US not in marks or child.getClass().getSimpleName() != "AttributeReference":
            return None
        pane, step = self._over.pop(child.exprId().id(), (None, ""))
        if pane is None:
            return None
        self._steps.remove(step)
        window = Window(kind="sliding", time=f"end of {pane.text}", size_us=marks[SIZE_US], slide_us=marks[SLIDE_US])
        return of_window(window, pane.columns)

    def _define(self, attribute: Any, meaning: Meaning) -> None:
        self._meanings[attribute.exprId().id()] = meaning

    def _meaning(self, attribute: Any) -> Meaning:
        return self._meanings.get(attribute.exprId().id(), Meaning(f"?{attribute.name()}"))

    def _read(self, expression: Any) -> Meaning:
        """An expression with each attribute replaced by what it was made of."""
        if expression.getClass().getSimpleName() == "AttributeReference":
            return self._meaning(expression)
        text, found = expression.toString(), {}
        iterator = expression.references().iterator()
        while iterator.hasNext():
            attribute = iterator.next()
            found[attribute.toString()] = self._meaning(attribute)
        columns = frozenset().union(*(meaning.columns for meaning in found.values()))
        if window := window_of(text, found):
            return of_window(window, columns)
        return Meaning(short(replaced(text, found)), columns)


_HANDLERS: dict[str, Callable[[Walk, Any], None]] = {
    "Project": Walk._project,
    "Expand": Walk._expand,
    "Filter": Walk._filter,
    "EventTimeWatermark": Walk._watermark,
    "ArrowEvalPython": Walk._python_functions,
    "BatchEvalPython": Walk._python_functions,
    "MapInPandas": Walk._step,
    "MapInArrow": Walk._step,
    "Generate": Walk._generate,
    "Union": Walk._union,
    "Aggregate": Walk._aggregate,
    "Deduplicate": Walk._deduplicate,
    "DeduplicateWithinWatermark": Walk._deduplicate,
    "Join": Walk._join,
    "TransformWithStateInPySpark": Walk._transform,
    "FlatMapGroupsInPandasWithState": Walk._pandas,
}


def watermark_delay_ms(frame: DataFrame) -> int:
    """By how much the latest of a stage's watermarks stays behind its newest event; 0 without a watermark."""
    plan: Any = frame._jdf.queryExecution().analyzed()  # type: ignore[operator]
    found, nodes = [0], [plan]
    while nodes:
        node = nodes.pop()
        nodes += items(node.children())
        if node.getClass().getSimpleName() == "EventTimeWatermark":
            found.append(int(node.getDelayMs(node.delay())))
    return max(found)


def windows(spark: SparkSession, frame: DataFrame) -> list[Window]:
    """The windows by which a stage aggregates."""
    walk = Walk()
    walk.visit(spark._jsparkSession.sessionState().optimizer().execute(frame._jdf.queryExecution().analyzed()))
    return [operator.window for operator in walk.operators if operator.window]


def items(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(position) for position in range(sequence.size())]


def _text(node: Any) -> str:
    """A node of the plan without its children."""
    return bare(node.simpleString(100000).lstrip("~+- "))


def _conjuncts(condition: Any) -> list[Any]:
    if condition.getClass().getSimpleName() == "And":
        return _conjuncts(condition.left()) + _conjuncts(condition.right())
    return [condition]


def _aggregates(expression: Any) -> list[Any]:
    """Aggregate functions in an expression, in the order in which Spark gives them their buffers."""
    if expression.getClass().getSimpleName() == "AggregateExpression":
        return [expression]
    return [found for child in items(expression.children()) for found in _aggregates(child)]


def _across(sides: list[Any], left: set[int]) -> bool:
    """Whether one side of an equation is of the left input alone and the other of the right alone."""
    found = []
    for side in sides:
        iterator, ids = side.references().iterator(), set()
        while iterator.hasNext():
            ids.add(iterator.next().exprId().id())
        found.append("left" if ids <= left else "right" if not ids & left else "both")
    return sorted(found) == ["left", "right"]


def _type_text(described: Any) -> str:
    return described if isinstance(described, str) else json.dumps(described, sort_keys=True)
