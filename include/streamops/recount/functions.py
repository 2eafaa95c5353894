"""What a recount's own words cannot say: the job's functions, run as a batch query over the same range of the ledger.

This path is not independent of the job, and the report says so: it shares the stage's function and how a row becomes a
point. What it does not share is the stream with its state, checkpoints, restarts and sinks, so it finds what these
lost, doubled or mixed up, and not what the function itself gets wrong.

The functions run on local Spark in a process of their own, which is told nothing but the code and the records.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from streamops.model.definitions import EVERY, Definition, InfluxSink, Param
from streamops.model.errors import DefinitionError, UnhealthyError
from streamops.model.values import Value
from streamops.recount.held import Held, partitions
from streamops.recount.reach import Reach
from streamops.recount.report import Comparison, Measured, Nothing, moment
from streamops.recount.windows import Expected, Tags, Window
from streamops.spark import local_spark

MOST = 3_000_000  # events of one stage, and values: some minutes of local Spark, and half a gigabyte of files
RUN_S = 1800.0
Offsets = Mapping[str, int]  # by partition
Records = Mapping[str, tuple[Offsets, Offsets | None]]  # source -> first and end, which is None for all there is now
Place = tuple[int, Tags]  # of a point: its time in milliseconds


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
    job: Job, asked: Range, reached: Reach, held: Held, comparison: Callable[[InfluxSink, str], Comparison]
) -> tuple[list[Measured], int]:
    """Recount one stage with its function. Returns what was found of each field, and how many events were read.

    Raises:
        DefinitionError: the function does not run as a batch query.
        GoneError: what it has read is not there any more.
        UnhealthyError: local Spark does not work here.
    """
    sink = job.definition.stages[asked.stage].points
    assert sink is not None  # else there is no range to ask for
    known = () if sink.fields == EVERY else sink.fields or (sink.field,)
    nothing = _too_much(job, asked, reached)
    if nothing:
        return [_measured(comparison(sink, name), asked, nothing=nothing) for name in known or EVERY], 0
    told, points = _run(job, asked, reached, held)
    bound, from_ms = _bound_ms(asked, reached, told), _from_ms(asked, reached, told, points)
    left = told["left"]
    compared = [comparison(sink, name) for name in known or sorted(points) or EVERY if name not in left]
    for one in compared:
        one.explained, one.from_ms = reached.windows is None, from_ms
        _compare(one, points.get(one.field, {}), bound)
    if any(one.unexplained for one in compared):  # written and not committed, by events that came since
        since = {
            source: (start if reached.joined or end is None else end, None)
            for source, (start, end) in asked.records.items()
        }
        _, later = _run(job, Range(asked.stage, since, asked.bound_ms), reached, held)
        for one in compared:
            for (time_ms, tags), expected in later.get(one.field, {}).items():
                for value in (expected.value, *expected.others):
                    one.explain(time_ms, tags, value)
    nothing = None if any(one.compared for one in compared) else _nothing(asked, reached, told)
    more = {"nothing": nothing, "late": told["late"], "closed_until": moment(bound)}
    notes = (f"{', '.join(sorted(left))} of its fields are not compared, among so many events",) if left else ()
    return [_measured(one, asked, notes, **more) for one in compared], told["read"]


def _too_much(job: Job, asked: Range, reached: Reach) -> Nothing | None:
    """Why nothing is run, if it is not."""
    sources = job.definition.sources
    topics = [of for source, of in asked.records.items() if sources[source].kafka]
    if sum(stop - start.get(part, 0) for start, end in topics for part, stop in (end or {}).items()) > MOST:
        return "too many events"
    # What is joined with events before the range would seem to be too much.
    return "short range" if reached.joined and asked.whole_only else None


def _compare(compared: Comparison, points: Mapping[Place, Expected], bound: int) -> None:
    for time_ms, window in groupby(sorted(key for key in points if key[0] <= bound), key=lambda key: key[0]):
        compared.add(Window(time_ms, False, {key[1]: points[key] for key in window}))
    compared.settle(bound, now=True)


def _nothing(asked: Range, reached: Reach, told: Mapping[str, Any]) -> Nothing:
    """Why nothing was compared."""
    if told["events"] and reached.windows is None:
        return "no event counts"
    if asked.whole_only:
        return "short range"
    return "no closed window" if told["events"] else "no event"


def _measured(compared: Comparison, asked: Range, notes: tuple[str, ...] = (), **more: object) -> Measured:
    how = "computed with the job's own function as a batch query, so its function is not checked, only its stream"
    return compared.result(by="functions", young=asked.young, notes=(how, *notes), **more)


def _bound_ms(asked: Range, reached: Reach, told: Mapping[str, Any]) -> int:
    """Until when points are compared: a window may stand at its begin or its end, and is over after the later one."""
    if reached.windows is None:
        return int(told["newest_ms"] if told["newest_ms"] is not None else -1)
    return asked.bound_ms - reached.windows


def _from_ms(
    asked: Range, reached: Reach, told: Mapping[str, Any], points: Mapping[str, Mapping[Place, Expected]]
) -> int:
    begun = 0
    if asked.whole_only and told["begun_ms"] is not None:
        begun = int(told["begun_ms"]) + (reached.windows or 0) + (reached.delay or 0) + 1
    elif asked.had_forerunner:
        begun = min((time_ms for found in points.values() for time_ms, _ in found), default=0)
    return max(begun, asked.after_ms + 1)


def _run(job: Job, asked: Range, reached: Reach, held: Held) -> tuple[dict[str, Any], dict[str, dict[Place, Expected]]]:
    """What the function gives: numbers about its events, and by field the points that are right.

    The numbers are those of ``streamops_runtime.recompute``, how many records were ``read``, and the fields that are
    ``left`` out, because there are too many values.
    """
    with tempfile.TemporaryDirectory(dir=job.directory) as place:
        private, read = Path(place), 0
        files, cut = {}, {}
        for number, (source, (start, end)) in enumerate(asked.records.items()):
            files[source] = str(Path(private.name) / f"{number}.tsv")
            if not job.definition.sources[source].kafka:  # of these, parts may be read from their beginning
                cut[source] = [number for part, number in partitions(end or {}).items() if start.get(part, 0)]
            with (job.directory / files[source]).open("w", encoding="ascii") as file:
                for line in held.lines(source, start, end):
                    file.write(line)
                    read += 1
        request = job.directory / "request.json"
        definition = job.definition.model_dump(mode="json", by_alias=True, exclude_none=True)
        body = {"definition": definition, "params": dict(job.params), "stage": asked.stage, "files": files, "cut": cut,
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
    most = max(1, MOST // max(1, read))
    everything, left = _points(job, "all.jsonl", most)
    told = {**answer["told"], "read": read, "left": left}
    if told["late"]:
        return told, _either(everything, _points(job, "sure.jsonl", most)[0])
    return told, {
        name: {key: Expected(values[-1], tuple(values[:-1])) for key, values in found.items()}
        for name, found in everything.items()
    }


def _points(job: Job, name: str, most: int) -> tuple[dict[str, dict[Place, list[Value]]], set[str]]:
    """Points as the process has written them, by field; several with one identity are each right.

    Args:
        most: fields that are kept; the names of the others come beside them.
    """
    found: dict[str, dict[Place, list[Value]]] = defaultdict(lambda: defaultdict(list))
    left: set[str] = set()
    with (job.directory / name).open(encoding="utf-8") as file:
        for line in file:
            time_ms, tags, fields = json.loads(line)
            for field, value in fields.items():
                if field in found or len(found) < most:
                    found[field][time_ms, tuple(tags)].append(value)
                else:
                    left.add(field)
    return found, left


def _either(
    everything: Mapping[str, Mapping[Place, list[Value]]], sure: Mapping[str, Mapping[Place, list[Value]]]
) -> dict[str, dict[Place, Expected]]:
    """What is right where some events may have been dropped as late: with them, without them, or in between."""
    found: dict[str, dict[Place, Expected]] = defaultdict(dict)
    for field in everything.keys() | sure.keys():
        every, known = everything.get(field, {}), sure.get(field, {})
        for key in every.keys() | known.keys():
            values = [*known.get(key, ()), *every.get(key, ())]
            numbers = all(isinstance(value, int | float) for value in values)
            between = (min(values), max(values)) if numbers else None
            found[field][key] = Expected(known[key][-1] if key in known and key in every else None, tuple(values),
                                         between)  # fmt: skip
    return found
