"""What a recount's own words cannot say: the job's functions, run as a batch query over the same range of the ledger.

This path is not independent of the job, and the report says so: it shares the stage's function and how a row becomes a
point. What it does not share is the stream with its state, checkpoints, restarts and sinks, so it finds what these
lost, doubled or mixed up, and not what the function itself gets wrong.

The functions run on local Spark in a process of their own, which is told nothing but the code and the records.
"""

from __future__ import annotations

import json
import tempfile
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from streamops.clients.kafka import Ledger
from streamops.model.definitions import Definition, InfluxSink, Param
from streamops.model.errors import DefinitionError, UnhealthyError
from streamops.recount.reach import Reach
from streamops.recount.report import Comparison, Measured, Nothing, moment
from streamops.recount.values import Value
from streamops.recount.windows import Expected, Tags, Window
from streamops.spark import local_spark

MOST = 3_000_000  # events of one stage: some minutes of local Spark, and half a gigabyte of files
RUN_S = 1800.0
Records = Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]]  # source -> first and end offset by partition


@dataclass(frozen=True)
class Job:
    """What is run: the code lies in ``directory``, which this module may write to."""

    definition: Definition
    params: Mapping[str, Param]
    directory: Path
    library: Path | None = None


@dataclass(frozen=True)
class Range:
    """What a stage is recounted from: records by source, and windows that end by ``bound_ms``.

    ``whole_only``: before the first record there are others, so what reaches back to them is left out.
    """

    stage: str
    records: Records
    bound_ms: int
    whole_only: bool = False
    had_forerunner: bool = False
    after_ms: int = -1
    young: bool = False


def recount(
    job: Job,
    asked: Range,
    reached: Reach,
    ledger: Ledger,
    topics: Mapping[str, str],
    comparison: Callable[[InfluxSink, str], Comparison],
) -> tuple[Measured, int]:
    """Recount one stage with its function. Returns what was found, and how many records were read.

    Raises:
        DefinitionError: the function does not run as a batch query.
        UnhealthyError: local Spark does not work here.
    """
    sink = next(sink.influxdb for sink in job.definition.stages[asked.stage].sinks if sink.influxdb)
    name = sink.field if not sink.fields else next(iter(sink.fields))
    compared = comparison(sink, name)
    count = sum(end[part] - start.get(part, 0) for start, end in asked.records.values() for part in end)
    if count > MOST:
        return _measured(compared, asked, nothing="too many events"), 0
    if reached.joined and asked.whole_only:  # what is joined with events before the range would seem to be too much
        return _measured(compared, asked, nothing="short range"), 0
    told, points = _run(job, asked, reached, ledger, topics)
    name, bound = compared.field, _bound_ms(asked, reached, told)
    compared.explained = reached.windows is None
    compared.from_ms = _from_ms(asked, reached, told, points)
    for time_ms, window in groupby(sorted(key for key in points if key[0] <= bound), key=lambda key: key[0]):
        compared.add(Window(time_ms, False, {key[1]: points[key] for key in window}))
    compared.settle(bound, now=True)
    if compared.unexplained:  # written and not committed, by events that came since
        since = {
            source: (start if reached.joined else end, ledger.end_offsets(topics[source]))
            for source, (start, end) in asked.records.items()
        }
        later = Range(asked.stage, since, asked.bound_ms)
        for (time_ms, tags), expected in _run(job, later, reached, ledger, topics)[1].items():
            for value in (expected.value, *expected.others):
                compared.explain(time_ms, tags, value)
    nothing: Nothing | None = None
    if not compared.compared:
        nothing = "no event" if not told["events"] else "no closed window" if reached.windows else "no event counts"
        nothing = "short range" if asked.whole_only and nothing != "no event counts" else nothing
    return _measured(compared, asked, nothing=nothing, late=told["late"], closed_until=moment(bound)), count


def _measured(compared: Comparison, asked: Range, **more: object) -> Measured:
    notes = ("computed with the job's own function as a batch query, so its function is not checked, only its stream",)
    return compared.result(by="functions", young=asked.young, notes=notes, **more)


def _bound_ms(asked: Range, reached: Reach, told: Mapping[str, Any]) -> int:
    """Until when points are compared: a window may stand at its begin or its end, and is over after the later one."""
    if reached.windows is None:
        return int(told["newest_ms"] if told["newest_ms"] is not None else -1)
    return asked.bound_ms - reached.windows


def _from_ms(asked: Range, reached: Reach, told: Mapping[str, Any], points: Mapping[tuple[int, Tags], Expected]) -> int:
    begun = 0
    if asked.whole_only and told["begun_ms"] is not None:
        begun = int(told["begun_ms"]) + (reached.windows or 0) + (reached.delay or 0) + 1
    elif asked.had_forerunner:
        begun = min((time_ms for time_ms, _ in points), default=0)
    return max(begun, asked.after_ms + 1)


def _run(
    job: Job, asked: Range, reached: Reach, ledger: Ledger, topics: Mapping[str, str]
) -> tuple[dict[str, Any], dict[tuple[int, Tags], Expected]]:
    """What the function gives: numbers about its events, and the points that are right by time and tags."""
    with tempfile.TemporaryDirectory(dir=job.directory) as place:
        private = Path(place)
        files = {}
        for number, (source, (start, end)) in enumerate(asked.records.items()):
            files[source] = str(Path(private.name) / f"{number}.tsv")
            with (job.directory / files[source]).open("w", encoding="ascii") as file:
                file.writelines(_lines(ledger, topics[source], start, end))
        request = job.directory / "request.json"
        definition = job.definition.model_dump(mode="json", by_alias=True, exclude_none=True)
        body = {"definition": definition, "params": dict(job.params), "stage": asked.stage, "files": files,
                "delay_ms": reached.delay}  # fmt: skip
        request.write_text(json.dumps(body), encoding="utf-8")
        try:
            ran = local_spark.ask("recompute", str(request), timeout_s=RUN_S, library=job.library, bare=job.directory)
        except TimeoutError:
            raise UnhealthyError(f"Local Spark took longer than {RUN_S:.0f} s; recount since a later time.") from None
    answer = ran.answers[-1] if ran.answers else {}
    if "error" in answer:
        raise DefinitionError(f"its function does not run as a batch query: {answer['error']}")
    if "told" not in answer:
        raise UnhealthyError(f"Local Spark could not recount (exit code {ran.code}): {ran.error}")
    told = dict(answer["told"])
    everything = _points(job, asked.stage, "all.jsonl")
    if not told["late"]:
        return told, {key: Expected(values[-1], tuple(values[:-1])) for key, values in everything.items()}
    return told, dict(_either(everything, _points(job, asked.stage, "sure.jsonl")))


def _lines(ledger: Ledger, topic: str, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[str]:
    """Records as the process reads them: partition, offset, time, key and value, the last two in base64."""
    for part, stop in end.items():
        for messages in ledger.messages(topic, int(part), start.get(part, 0), stop):
            for item in messages:
                key, value = (b64encode(body).decode() if body else "" for body in (item.key(), item.value()))
                yield f"{part}\t{item.offset()}\t{item.timestamp()[1]}\t{key}\t{value}\n"


def _points(job: Job, stage: str, name: str) -> dict[tuple[int, Tags], list[Value]]:
    """Points as the process has written them; several with one identity are each right."""
    sink = next(sink.influxdb for sink in job.definition.stages[stage].sinks if sink.influxdb)
    found: dict[tuple[int, Tags], list[Value]] = defaultdict(list)
    with (job.directory / name).open(encoding="utf-8") as file:
        for line in file:
            time_ms, tags, fields = json.loads(line)
            value = fields.get(next(iter(sink.columns(fields)), ""))
            if value is not None:
                found[time_ms, tuple(tags)].append(value)
    return found


def _either(
    everything: Mapping[tuple[int, Tags], list[Value]], sure: Mapping[tuple[int, Tags], list[Value]]
) -> Iterable[tuple[tuple[int, Tags], Expected]]:
    """What is right where some events may have been dropped as late: with them, without them, or in between."""
    for key in everything.keys() | sure.keys():
        values = [*sure.get(key, ()), *everything.get(key, ())]
        numbers = all(isinstance(value, int | float) for value in values)
        between = (min(values), max(values)) if numbers else None
        yield key, Expected(sure[key][-1] if key in sure and key in everything else None, tuple(values), between)
