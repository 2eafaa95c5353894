"""The recount: recompute a job's results from the ledger and compare them with what was written.

It shares no code with the job, but for stages that its words cannot describe (``functions``). For each stage with a
``recount`` specification it reads the source from the offset where the stage's state began to the offset that its last
committed batch reached, and compares every window that this batch had closed. What the job does with a window that is
open is not judged. Where each event is a point, all points of these events are compared, and those of later events may
be there or not.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from streamops.clients.influx import Points
from streamops.clients.kafka import Block, Ledger
from streamops.model import results
from streamops.model.definitions import EVERY, Definition, InfluxSink, Recount, Source, Stage
from streamops.model.errors import (
    CheckpointError,
    DefinitionError,
    NotFoundError,
    RefusedError,
    UnhealthyError,
    UnreachableError,
)
from streamops.model.manifest import Manifest
from streamops.model.records import Deployment, Offsets, RefusedPoint, ResultsPosition
from streamops.recount import functions
from streamops.recount.events import EventReader, Events
from streamops.recount.functions import Range
from streamops.recount.held import GoneError, Held
from streamops.recount.kept import Each, counted
from streamops.recount.reach import Reach, reach
from streamops.recount.report import Comparison, Measured, Nothing, Report, moment, verdict
from streamops.recount.windows import Tags, Windows
from streamops.settings import Settings
from streamops.spark import checkpoints
from streamops.store import documents, jobs, keys, quarantine
from streamops.store.object_store import ObjectStore
from streamops.store.waiting import until
from streamops.versions import artifacts, fingerprints, libraries
from streamops.versions.artifacts import ArtifactManifest
from streamops.versions.fingerprints import Fingerprint

_ROWS = 20_000  # records taken together: enough for numpy to pay, little enough to stay small
_FAR = 1 << 62
RESULTS_S = 180.0  # until what a real-time stage has given is written: its longest open window, and a busy machine


@dataclass(frozen=True)
class Span:
    """The events that a stage is recounted from: partition -> first and end offset.

    ``whole_only`` leaves out windows that began before ``start``: their other events are not read.
    ``from_the_beginning`` says that no event of the source lies before ``start``.
    """

    start: Mapping[str, int]
    end: Mapping[str, int]
    whole_only: bool = False
    from_the_beginning: bool = False
    notes: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is no event in it."""
        return all(self.start.get(part, 0) >= stop for part, stop in self.end.items())


@dataclass(frozen=True)
class StagePlan:
    """What to recount of one stage: windows that end by ``bound_ms``.

    ``had_forerunner`` says that an earlier deployment had a stage of this name, whose state was not kept: the points
    before this stage's first window are its, and are not looked at.
    ``after_ms``: windows that end by then were closed by someone else, and are not looked at.
    """

    stage: str
    spec: Recount
    sink: InfluxSink
    span: Span
    bound_ms: int
    had_forerunner: bool = False
    after_ms: int = -1
    young: bool = False  # whether its state began with this deployment


@dataclass
class _Stage:
    plan: StagePlan
    windows: Windows | Each
    comparison: Comparison
    placed: bool = False
    problem: str = ""
    from_ms: int = 0  # points before are not looked at

    def __post_init__(self) -> None:
        self._look_from(0)

    def _look_from(self, end_ms: int) -> None:
        self.from_ms = self.comparison.from_ms = max(end_ms, self.plan.after_ms + 1)

    def take(self, events: Events) -> None:
        """Count the events between this stage's offsets."""
        span = self.plan.span
        first = np.array([span.start.get(str(part), 0) for part in range(int(events.partitions.max()) + 1)])
        end = np.array([span.end.get(str(part), 0) for part in range(len(first))])
        inside = (events.offsets >= first[events.partitions]) & (events.offsets < end[events.partitions])
        try:
            self.windows.add(events.cut(inside))
        except (TypeError, ZeroDivisionError) as error:  # of a condition, which is the definition's
            self.problem = f"its recount cannot be carried out: {error}"
            return
        self.close(self.windows.due_ms())

    def close(self, until_ms: int, *, last: bool = False) -> None:
        """Hand closed windows to the comparison."""
        if self.windows.begun_us is None:
            return
        if self.plan.span.whole_only and not self.placed:
            if not last and until_ms * 1000 <= self.windows.begun_us:
                return
            self._look_from(self.windows.first_whole_end_ms())
            self.placed = True
        for window in self.windows.close(until_ms):
            if self.plan.had_forerunner and not self.placed:
                self._look_from(window.end_ms)
                self.placed = True
            self.comparison.add(window)
            self.comparison.settle(window.end_ms)
        if isinstance(self.windows, Each):
            self._explain(self.windows)
        if last:
            self.comparison.settle(self._bound_ms(), now=True)

    def _explain(self, each: Each) -> None:
        """Events that came after their time was compared."""
        for straggler in each.stragglers:
            if straggler.time_ms >= self.from_ms:
                self.comparison.straggler(*straggler)
        each.stragglers.clear()

    def explain(self, events: Events) -> None:
        """Points that events gave which the stage has not committed: it may have written them already."""
        assert isinstance(self.windows, Each)
        end, where = self.plan.span.end, zip(events.partitions.tolist(), events.offsets.tolist(), strict=True)
        after = [offset >= end.get(str(part), 0) for part, offset in where]
        for time_ms, tags, value in self.windows.rows(events.cut(np.array(after, bool))):
            self.comparison.explain(time_ms, tags, value)

    def _bound_ms(self) -> int:
        """Until when points are compared."""
        newest = self.windows.newest_us // 1000 if isinstance(self.windows, Each) else _FAR
        return min(self.plan.bound_ms, newest)

    def _nothing(self) -> Nothing | None:
        """Why nothing was compared."""
        windows, whole_only = self.windows, self.plan.span.whole_only
        if self.comparison.compared:
            return None
        if windows.begun_us is None:
            return "short range" if whole_only else "no event"
        step = max(1, self.plan.spec.step_ms)
        first = windows.first_whole_end_ms() if whole_only else (windows.begun_us // 1000 // step + 1) * step
        if self._bound_ms() < max(first, self.plan.after_ms + 1):
            return "short range" if whole_only else "no closed window"
        return "no event counts"

    def result(self) -> Measured:
        windows = self.windows
        notes = (*self.plan.span.notes, *_not_compared(self.plan))
        if windows.beyond:
            notes += (f"{windows.beyond} events came more than {windows.horizon_ms} ms late, after the comparison",)
        return self.comparison.result(
            late=windows.late,
            beyond=windows.beyond,
            closed_until=moment(self._bound_ms()),
            notes=notes,
            young=self.plan.young,
            nothing=self._nothing(),
            problem=self.problem,
        )


def recount_source(
    source: Source,
    plans: Iterable[StagePlan],
    blocks: Iterable[Block],
    points: Callable[[StagePlan], Comparison],
    since: Callable[[StagePlan], Iterable[Block]] = lambda plan: (),
) -> tuple[EventReader, int, tuple[Measured, ...]]:
    """Recount the stages of one source in a single pass over its records.

    Args:
        blocks: the records from the lowest start to the highest end of all plans, in order.
        points: where each stage's written points come from.
        since: the records after a plan's end, as many as there are by now; asked for where each event is a point.

    Returns:
        The reader with what it rejected, how many records there were, and each stage's result.

    Raises:
        DefinitionError: the source cannot be read for a recount.
    """
    reader, count = EventReader(source), 0
    stages = []
    for plan in plans:
        stage = _Stage(plan, counted(plan.spec, plan.bound_ms, plan.span.from_the_beginning), points(plan))
        stages.append(stage)
        try:
            reader.require(plan.spec)
        except DefinitionError as error:
            stage.problem = str(error)
    for partitions, offsets, timestamps, values in _gathered(blocks):
        count += len(values)
        events = reader.read(partitions, offsets, timestamps, values)
        if len(events.times):
            for stage in stages:
                if not stage.problem:
                    stage.take(events)
    for stage in stages:
        if stage.problem:
            continue
        stage.close(_FAR, last=True)
        if stage.comparison.unexplained:
            later = EventReader(source)  # of its own: what it rejects belongs to no committed batch
            for rows in _gathered(since(stage.plan)):
                stage.explain(later.read(*rows))
    return reader, count, tuple(stage.result() for stage in stages)


def recount_job(
    settings: Settings,
    store: ObjectStore,
    job: str,
    since: Offsets | None = None,
    measurements: Iterable[str] | None = None,
    after: Mapping[str, int] | None = None,
) -> Report:
    """Recount what a job has written, from its records, the ledger and InfluxDB.

    Args:
        since: source -> partition -> offset; windows that began before it are left out.
        measurements: only these; default: all of the definition's.
        after: stage -> milliseconds since the epoch; windows that end by then were written by another job.

    Raises:
        NotFoundError: the job or its deployment is not there.
        RefusedError: a measurement is not the job's.
        UnreachableError: a server did not answer.
    """
    begun = time.monotonic()
    deployment = jobs.current(store, job)
    manifest = artifacts.load_manifest(store, job, deployment.version)
    definition = manifest.definition
    with closing(Ledger(settings)) as ledger, closing(Points(settings, timeout_s=60)) as points:
        plans_of = fingerprints.read(manifest.fingerprints, definition.stages)
        held = Held(ledger, definition, deployment.topics)
        planner = _Planner(store, held, deployment, since or {}, after or {}, plans_of)
        aside = [item for _, item in quarantine.read(store, job)]
        offsets: dict[str, dict[str, tuple[int, int]]] = {}
        events = malformed = ahead = 0
        plans = planner.plans(set(measurements or ()))
        results = list(planner.waiting)
        for source, of_source in plans.items():
            start, end = _range(of_source)
            topic = held.place(source)
            blocks = ledger.read_blocks(topic, start, end)
            try:
                reader, count, measured = recount_source(
                    definition.sources[source],
                    of_source,
                    blocks,
                    lambda plan: _of_plan(points, plan, aside),
                    lambda plan, topic=topic: ledger.read_blocks(topic, plan.span.end, ledger.end_offsets(topic)),  # type: ignore[misc]
                )
            except (DefinitionError, NotFoundError) as error:
                planner.damaged.update({plan.stage: str(error) for plan in of_source})
                continue
            offsets[source] = {part: (start[part], end[part]) for part in end}
            events, malformed, ahead = events + count, malformed + reader.malformed, ahead + reader.ahead
            planner.damaged.update({item.stage: item.problem for item in measured if item.problem})
            results.extend(item for item in measured if not item.problem)
        if planner.functions:
            with _unpacked(store, manifest, deployment) as of_job:
                for asked, reached in planner.functions:
                    try:
                        found, count = functions.recount(
                            of_job,
                            asked,
                            reached,
                            held,
                            lambda sink, name, stage=asked.stage: _comparison(  # type: ignore[misc]
                                points, stage, sink, sink.tags, name, aside
                            ),
                        )
                    except GoneError as error:
                        planner.left_out[asked.stage] = str(error)
                        continue
                    except (DefinitionError, NotFoundError, UnhealthyError) as error:
                        planner.damaged[asked.stage] = str(error)
                        continue
                    events += count
                    offsets |= {
                        source: {part: (start.get(part, 0), stop) for part, stop in (end or {}).items()}
                        for source, (start, end) in asked.records.items()
                        if source not in offsets
                    }
                    results.extend(found)
    clean, reason = verdict(tuple(results), planner.damaged, planner.left_out)
    return Report(
        job=job,
        version=deployment.version,
        deployment=deployment.number,
        events=events,
        malformed=malformed,
        ahead=ahead,
        offsets=offsets,
        measurements=tuple(results),
        seconds=round(time.monotonic() - begun, 2),
        clean=clean,
        reason=reason,
        left_out=planner.left_out,
        damaged=planner.damaged,
    )


def _why_not(sink: InfluxSink | None, reached: Reach | str | None, wanted: set[str]) -> str | None:
    """Why a stage is left out of a recount."""
    if sink is None:
        return "it writes no points"
    if sink.elsewhere:
        return f"it writes to another InfluxDB (secret {sink.secret}), which is not read here"
    if isinstance(reached, str):
        return f"its definition does not say how (recount), and {reached}"
    return "it was not asked for" if wanted and sink.measurement not in wanted else None


@dataclass(frozen=True)
class _Planner:
    """Decides what to recount of a deployment; ``since`` and ``after`` are those of ``recount_job``.

    ``plans`` fills ``functions`` with what is recounted with the job's own functions, ``left_out`` with what cannot be
    recounted, ``damaged`` with what could not be, and ``waiting`` with what has nothing yet.
    """

    store: ObjectStore
    held: Held
    deployment: Deployment
    since: Offsets
    after: Mapping[str, int]
    fingerprints: Mapping[str, Fingerprint | None] = field(default_factory=dict)
    functions: list[tuple[Range, Reach]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    waiting: list[Measured] = field(default_factory=list)

    @property
    def definition(self) -> Definition:
        """Of the deployment."""
        return self.held.definition

    def plans(self, wanted: set[str]) -> dict[str, list[StagePlan]]:
        """By source, of the wanted measurements or all."""
        known = set(self.definition.measurements)
        if unknown := wanted - known:
            raise RefusedError(
                f"{', '.join(sorted(unknown))} is not written by {self.definition.job}; it has {sorted(known)}."
            )
        prefix = checkpoints.current_epoch_prefix(self.store, self.deployment.job, self.deployment.number)
        plans: dict[str, list[StagePlan]] = {}
        for name, stage in self.definition.stages.items():
            reached = None if stage.recount else reach(self.definition, name, self.fingerprints.get(name))
            if why := _why_not(stage.points, reached, wanted):
                self.left_out[name] = why
                continue
            try:
                plan = self._of(name, stage, reached, prefix)
            except (CheckpointError, NotFoundError, RefusedError) as error:
                self.damaged[name] = str(error)
                continue
            match plan:
                case None:
                    measurement = stage.points.measurement if stage.points else ""
                    self.waiting.append(
                        Measured(stage=name, measurement=measurement, young=self._young(name), nothing="not begun")
                    )
                case str():
                    self.left_out[name] = plan
                case Range():
                    assert isinstance(reached, Reach)
                    self.functions.append((plan, reached))
                case StagePlan():
                    plans.setdefault(plan.spec.source, []).append(plan)
        return plans

    def _of(
        self, name: str, stage: Stage, reached: Reach | str | None, prefix: str | None
    ) -> StagePlan | Range | str | None:
        """How a stage is recounted, or why not; None when it has not committed yet. Raises as ``_plan``."""
        tails = list(self._tails(name, prefix))
        if tails and stage.recount and stage.points:
            return self._plan(name, stage.recount, stage.points, tails)
        if tails and isinstance(reached, Reach):
            return self._range(name, reached, tails)
        return None

    def _written(self, tails: list[tuple[str, checkpoints.Tail]], windows: bool) -> None:
        """Wait until what real-time stages have given by here is written."""
        for read, tail in reversed(tails):
            if self.definition.stages[read].realtime:
                self._await_results(read, (tail.watermark_ms or 0) if windows else _FAR)

    def _range(self, name: str, reached: Reach, tails: list[tuple[str, checkpoints.Tail]]) -> Range | str:
        """What the function of a stage is run over, or why there is nothing. Raises as ``_plan``."""
        self._written(tails, reached.windows is not None)
        ((_, tail),) = tails  # it reads no other stage
        # Where windows are kept through a change of the code, what they hold is the same.
        own = {} if reached.windows is not None or reached.joined else self._own_code(name)
        since = {source: _later(self.since.get(source, {}), own.get(source, {})) for source in tail.offsets}
        spans = {
            source: self._span(name, source, end, since[source] or None)
            if self.definition.sources[source].kafka
            else self._newest(name, source, end, since[source])
            for source, end in tail.offsets.items()
        }
        if own and all(span.empty for span in spans.values()):
            return "nothing has come since the code that runs now took over"
        return Range(
            name,
            {source: (span.start, span.end) for source, span in spans.items()},
            tail.watermark_ms or 0,
            any(span.whole_only for span in spans.values()),
            self._had_forerunner(name),
            self._after_ms(name),
            self._young(name),
        )

    def _plan(self, name: str, spec: Recount, sink: InfluxSink, tails: list[tuple[str, checkpoints.Tail]]) -> StagePlan:
        """What to recount of a stage in words.

        Raises:
            NotFoundError, RefusedError: it cannot be recounted.
        """
        self._written(tails, spec.aggregate is not None)
        end = next((tail.offsets[spec.source] for _, tail in tails if spec.source in tail.offsets), {})
        bound_ms = min(tail.watermark_ms or 0 for _, tail in tails) if spec.aggregate else _FAR
        span, forerunner = self._span(name, spec.source, end, self.since.get(spec.source)), self._had_forerunner(name)
        return StagePlan(name, spec, sink, span, bound_ms, forerunner, self._after_ms(name), self._young(name))

    def _young(self, stage: str) -> bool:
        began = self.deployment.stages.get(stage)
        return began is None or began.since_deployment == self.deployment.number

    def _tails(self, stage: str, prefix: str | None) -> Iterator[tuple[str, checkpoints.Tail]]:
        """Where a stage stands, then the stages that it reads, and so on: what it has read they had read before."""
        tail = checkpoints.find_tail(self.store, f"{prefix}{stage}/") if prefix else None
        if tail is None:
            return
        yield stage, tail
        for read in (of.stage for name, of in self.definition.sources.items() if name in tail.offsets):
            if read:
                yield from self._tails(read.name, prefix)

    def _after_ms(self, stage: str) -> int:
        """Windows that end by then were written by another job, or by the version before."""
        began = self.deployment.stages.get(stage)
        return max(self.after.get(stage, -1), (began and began.whole_after_ms) or -1)

    def _await_results(self, stage: str, until_ms: int) -> None:
        """Wait until the driver has written what a real-time stage has given of windows that are over.

        Args:
            until_ms: the windows that end by then.

        Raises:
            UnreachableError: it did not; the recount would miss what is still in the stage's results topic.
        """
        job = self.deployment.job
        topic = keys.results_topic(job, stage)
        end = self.held.ledger.end_offsets(topic)["0"]

        def over(position: ResultsPosition) -> int:
            waiting = (item for some in self.held.ledger.messages(topic, 0, position.offset, end) for item in some)
            return sum(
                position.counts(item.offset() or 0, item.value() or b"")
                and results.time_ms(item.key() or b"0") <= until_ms
                for item in waiting
            )

        def left() -> int:
            return jobs.of_waiting_results(self.store, job, stage, over) or 0

        if (missing := until(left, RESULTS_S, 0.5, lambda left: left <= 0)) > 0:
            raise UnreachableError(
                f"{missing:,} results of stage {stage} are not written yet; see with 'streamops jobs show {job}' "
                "whether the job runs and its sink answers, and recount again."
            )

    def _own_code(self, stage: str) -> Offsets:
        """From where on the function that runs now gave a stage's points: what it read before, another one has seen."""
        found, begin = self.deployment, dict[str, dict[str, int]]()
        if found.library_since:
            return found.library_since.get(stage, {})
        while found.from_snapshot:
            job, _, name = found.from_snapshot.rpartition("/")
            manifest = documents.find(self.store, keys.manifest(job, name), Manifest)
            if manifest is None or stage not in manifest.stages:
                return begin
            begin, number = manifest.stages[stage].offsets, found.from_deployment
            before = documents.find(self.store, keys.deployment(found.job, number), Deployment) if number else None
            if before is None or before.library_since or _code(before) != _code(found):
                return begin
            found = before
        return {}

    def _newest(self, stage: str, source: str, end: Mapping[str, int], since: Mapping[str, int]) -> Span:
        """Of files and a web service, what was read lately."""
        began = self.deployment.stages.get(stage)
        own = began.offsets.get(source, {}) if began else {}
        start = self.held.newest(source, _later(own, since), end)
        return Span(start, end, whole_only=any(start.values()))

    def _span(self, stage: str, source: str, end: Mapping[str, int], since: Mapping[str, int] | None) -> Span:
        began = self.deployment.stages.get(stage)
        own = (began.offsets.get(source) if began else None) or None
        if own is None and self.definition.sources[source].start == "earliest":
            own = {}
        before = began.moved.get(source) if began else None
        kept = self.held.ledger.beginning_offsets(self.held.place(source))
        return span(stage, own, kept, end, since, before)

    def _had_forerunner(self, stage: str) -> bool:
        """Whether a stage of this name ran before the deployment in which the present state began."""
        began = self.deployment.stages.get(stage)
        numbers = range(1, began.since_deployment if began else 1)
        earlier = (documents.find(self.store, keys.deployment(self.deployment.job, n), Deployment) for n in numbers)
        return any(found is not None and stage in found.stages for found in earlier)


def _code(deployment: Deployment) -> tuple[object, ...]:
    """What a deployment runs, with what was set for it."""
    return deployment.artifact_sha256, deployment.library, deployment.params


def _later(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Of each partition, the higher offset."""
    return {part: max(one.get(part, 0), other.get(part, 0)) for part in one.keys() | other.keys()}


def span(
    stage: str,
    own: Mapping[str, int] | None,
    kept: Mapping[str, int],
    end: Mapping[str, int],
    since: Mapping[str, int] | None = None,
    before: str | None = None,
) -> Span:
    """Decide from where a stage is recounted.

    Args:
        own: where its state began; empty for the beginning of the source, None if no one knows.
        kept: first offsets that the topic still holds.
        end: what its last committed batch reached.
        since: leave out what lies before.
        before: the topic that it had read before this one, if any.

    Raises:
        RefusedError: the start is not recorded anywhere.
    """
    if own is None and since is None:
        raise RefusedError(
            f"Stage {stage} began at the end of its topic and no offset was recorded; name one to recount since."
        )
    began = {part: (own or {}).get(part, 0) for part in end}
    asked = {part: max(began[part], (since or {}).get(part, 0)) for part in end}
    start = {part: max(asked[part], kept.get(part, 0)) for part in end}
    notes = ("retention has removed the beginning of the ledger; earlier windows are not compared",)
    if before:
        told = f"it read topic {before} before; windows that hold events of that are not compared"
    return Span(
        start,
        end,
        whole_only=start != began or before is not None,
        from_the_beginning=not any(start.values()) and before is None,
        notes=(notes if start != asked else ()) + ((told,) if before else ()),
    )


def _of_plan(points: Points, plan: StagePlan, aside: Iterable[RefusedPoint]) -> Comparison:
    tags = plan.spec.by if set(plan.spec.by) == set(plan.sink.tags) else plan.sink.tags
    found = _comparison(points, plan.stage, plan.sink, tags, compared_field(plan), aside)
    found.explained = plan.spec.aggregate is None
    return found


def _comparison(
    points: Points, stage: str, sink: InfluxSink, tags: Tags, name: str, aside: Iterable[RefusedPoint]
) -> Comparison:
    """A comparison with the field ``name`` of the points that a stage has written."""
    return Comparison(
        stage,
        sink.measurement,
        lambda start, end: points.read(sink.measurement, start, end, tags, name),
        frozenset(
            (item.time_ms, tuple(item.tags.get(tag, "") for tag in tags))
            for item in aside
            if item.measurement == sink.measurement
        ),
        field=name,
    )


@contextmanager
def _unpacked(store: ObjectStore, manifest: ArtifactManifest, deployment: Deployment) -> Iterator[functions.Job]:
    """The code of a deployment in a directory of its own, for as long as it is run."""
    with (
        tempfile.TemporaryDirectory(prefix="streamops-recount-") as directory,
        libraries.unpacked(store, deployment.library) if deployment.library else nullcontext() as library,
    ):
        artifacts.unpack(store, manifest, Path(directory))
        yield functions.Job(manifest.definition, deployment.params, Path(directory), library)


def compared_field(plan: StagePlan) -> str:
    """The field of a stage's points that is compared: the one that is named as the column is, or the first."""
    fields = plan.sink.fields or (plan.sink.field,)
    return str(plan.spec.column) if plan.spec.column in fields or fields == EVERY else fields[0]


def _not_compared(plan: StagePlan) -> Iterator[str]:
    """What a stage writes beside what is compared."""
    others = [name for name in plan.sink.fields if name != compared_field(plan)]
    if others:
        told = "its other fields are" if others == [*EVERY] else f"{', '.join(others)} of its fields are"
        yield f"{told} not compared, only {compared_field(plan)}"


def _range(plans: list[StagePlan]) -> tuple[dict[str, int], dict[str, int]]:
    parts = {part for plan in plans for part in plan.span.end}
    start = {part: min(plan.span.start.get(part, _FAR) for plan in plans) for part in parts}
    return start, {part: max(plan.span.end.get(part, 0) for plan in plans) for part in parts}


def _gathered(blocks: Iterable[Block]) -> Iterator[tuple[list[int], list[int], list[int], list[bytes | None]]]:
    """Blocks joined to at least ``_ROWS`` rows, the last one to what is left."""
    partitions: list[int] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    values: list[bytes | None] = []
    for block in blocks:
        partitions += [block.partition] * len(block.offsets)
        offsets += block.offsets
        timestamps += block.timestamps
        values += block.values
        if len(values) >= _ROWS:
            yield partitions, offsets, timestamps, values
            partitions, offsets, timestamps, values = [], [], [], []
    if values:
        yield partitions, offsets, timestamps, values
