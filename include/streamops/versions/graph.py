"""The execution graph of a version: its sources, its stages with their operators, and their sinks.

It is made of the definition and of the plans that were taken at publish, so it is there before the job runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from streamops.model.definitions import Definition, Sink, Source, Stage
from streamops.versions.fingerprints import Fingerprint, Operator

NO_PLAN = "its operators are not known: this version was published without its plans"


class Node(BaseModel):
    """A source, a stage or a sink. ``id`` is ``KIND NAME``; ``details`` are sentences, of a stage its operators."""

    model_config = ConfigDict(frozen=True)

    id: str
    kind: Literal["source", "stage", "sink"]
    name: str
    details: tuple[str, ...] = ()


class Graph(BaseModel):
    """``edges`` are pairs of ids, in the direction in which events flow. There are no circles."""

    model_config = ConfigDict(frozen=True)

    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]

    def node(self, id_: str) -> Node:
        """The node of this id."""
        return next(node for node in self.nodes if node.id == id_)

    def after(self, id_: str) -> list[Node]:
        """Where a node's rows go."""
        return [self.node(target) for source, target in self.edges if source == id_]

    @property
    def roots(self) -> list[Node]:
        """What nothing flows into: sources, and stages of which it is not known what they read."""
        reached = {target for _, target in self.edges}
        return [node for node in self.nodes if node.id not in reached]


def graph(
    definition: Definition, plans: Mapping[str, Fingerprint | None], places: Mapping[str, str] | None = None
) -> Graph:
    """The graph of a version.

    Args:
        plans: of each stage; None where it has none.
        places: where sources read instead of where the definition says, as a deployment has it.
    """
    nodes: list[Node] = []
    edges: list[tuple[str, str]] = []
    for name, source in definition.sources.items():
        nodes.append(Node(id=f"source {name}", kind="source", name=name, details=(_place(name, source, places or {}),)))
        if source.stage:
            edges.append((f"stage {source.stage.name}", f"source {name}"))
    for name, stage in definition.stages.items():
        plan = plans.get(name)
        id_ = f"stage {name}"
        nodes.append(Node(id=id_, kind="stage", name=name, details=tuple(_does(stage, plan))))
        read = plan.sources if plan else tuple(definition.sources) if len(definition.sources) == 1 else ()
        edges += [(f"source {source}", id_) for source in read]
        for number, sink in enumerate(stage.sinks, 1):
            sink_id = f"sink {name} {number}"
            nodes.append(Node(id=sink_id, kind="sink", name=_sink(sink), details=tuple(_about(sink))))
            edges.append((id_, sink_id))
    return Graph(nodes=tuple(nodes), edges=tuple(edges))


def _place(name: str, source: Source, places: Mapping[str, str]) -> str:
    at = places.get(name, source.address)
    if source.kafka:
        return f"topic {at}"
    if source.csv_tail:
        return f"files {source.csv_tail.files} of {at}"
    if source.stage:
        return f"what changes in {', '.join(source.stage.add)} of {at}"
    return f"polls {at}"


def _does(stage: Stage, plan: Fingerprint | None) -> Iterator[str]:
    yield {"batch": "in batches", "realtime": "in real time", "auto": "in real time, in batches while it is behind"}[
        stage.mode
    ]
    if plan is None:
        yield NO_PLAN
        return
    for watermark in plan.watermarks:
        yield f"waits {watermark.delay} for late {watermark.column}"
    yield from (described(operator) for operator in plan.operators)
    if not plan.operators:
        yield "keeps no state"
    if plan.python:
        yield "calls functions in Python"


def described(operator: Operator) -> str:
    """An operator as people say it, like ``aggregation by tumbling window of 1 second, trades.symbol: sum(…)``."""
    kind = f"{operator.kind} ({operator.detail})" if operator.detail else operator.kind
    keys = ", ".join(key.window.label() if key.window else key.text for key in operator.keys)
    what = [aggregate.text for aggregate in operator.aggregates]
    what += [f"{item.kind} {item.name}" for item in operator.variables or ()]
    return f"{kind}{f' by {keys}' if keys else ''}{': ' if what else ''}{', '.join(what)}"


def _sink(sink: Sink) -> str:
    return f"InfluxDB {sink.influxdb.measurement}" if sink.influxdb else "the job's log"


def _about(sink: Sink) -> Iterator[str]:
    if sink.influxdb and sink.influxdb.tags:
        yield f"by {', '.join(sink.influxdb.tags)}"
    if sink.influxdb and sink.influxdb.elsewhere:
        yield f"where secret {sink.influxdb.secret} says"
