"""Job definitions: what a user writes in ``<version>.yaml``, checked field by field.

A definition says how a job is wired; the functions beside it say what it computes. Every model refuses
unknown fields, so that a typing error is an error and not a setting that silently does nothing.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from streamops.model import conditions, names
from streamops.model.discretion import STORED, without_credentials
from streamops.model.errors import DefinitionError, NameRefusedError
from streamops.model.names import checked, library, reference

MAX_BYTES = 256 * 1024
MIN_SNAPSHOT_MS = 60_000  # between two scheduled snapshots: a watcher looks four times as often, cron knows no less

# Spark settings that a definition may carry: tuning only. Nothing here can load code, name a file, or open a port.
# For tuning only. What changes the meaning of state or results (zone, format of the state, whether the last windows are
# written) is the runtime's, and how many partitions state has is said once, by ``resources.state_partitions``.
_ROCKSDB = (
    "blockSizeKB", "blockCacheSizeMB", "writeBufferSizeMB", "maxWriteBufferNumber", "maxOpenFiles",
    "boundedMemoryUsage", "maxMemoryUsageMB", "compactOnCommit", "trackTotalNumberOfRows", "lockAcquireTimeoutMs",
)  # fmt: skip
ALLOWED_SPARK_CONF = re.compile(
    r"spark\.sql\.streaming\.minBatchesToRetain"
    rf"|spark\.sql\.streaming\.stateStore\.rocksdb\.({'|'.join(_ROCKSDB)})"
    r"|spark\.(locality\.wait|task\.maxFailures|memory\.fraction|memory\.storageFraction)"
    r"|spark\.executor\.(cores|memoryOverhead)"
)
ALLOWED_SPARK_CONF_TEXT = (
    f"spark.sql.streaming.minBatchesToRetain; of spark.sql.streaming.stateStore.rocksdb {', '.join(_ROCKSDB)}; "
    "spark.locality.wait, spark.task.maxFailures, spark.memory.fraction, spark.memory.storageFraction, "
    "spark.executor.cores and .memoryOverhead"
)


def _checked(rule: Callable[[object], str]) -> AfterValidator:
    def check(value: str) -> str:
        try:
            return rule(value)
        except NameRefusedError as error:
            raise ValueError(str(error)) from None

    return AfterValidator(check)


def _like(pattern: str) -> WithJsonSchema:
    """For forms, which search for a pattern where the rule for names matches whole ones."""
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$"})


def _without_password(place: str, info: ValidationInfo) -> str:
    if info.context != STORED and "://" in place and without_credentials(place) != place:
        raise ValueError("a URL with a user or a password is stored and shown like every other; no source needs one")
    return place


JobName = Annotated[str, _checked(partial(checked, "job")), _like(names.JOB.pattern)]
VersionName = Annotated[str, _checked(partial(checked, "version")), _like(names.VERSION.pattern)]
StageName = Annotated[str, _checked(partial(checked, "stage")), _like(names.STAGE.pattern)]
SnapshotName = Annotated[str, _checked(partial(checked, "snapshot")), _like(names.SNAPSHOT.pattern)]
NodeName = Annotated[str, Field(pattern=f"^(?:{names.NODE.pattern})$")]
TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
SnapshotReference = Annotated[  # NAME, or JOB/NAME for another job's
    str, _checked(reference), _like(f"({names.JOB.pattern}/)?{names.SNAPSHOT.pattern}")
]
LibraryName = Annotated[str, _checked(partial(checked, "library")), _like(names.LIBRARY.pattern)]
LibraryReference = Annotated[  # LIBRARY/VERSION
    str, _checked(library), _like(f"{names.LIBRARY.pattern}/{names.VERSION.pattern}")
]
SourceName = Annotated[str, _checked(partial(checked, "source")), _like(names.STAGE.pattern)]
Place = Annotated[str, AfterValidator(_without_password)]  # a directory, a topic or a URL, as records and pages show it
Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[mg]$", description="megabytes or gigabytes, like 800m or 1g")]
Duration = Annotated[str, Field(pattern=r"^[0-9]+ (millisecond|second|minute|hour|day)s?$")]
Param = str | int | float | bool
LoggerName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$")]
LogLevel = Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR"]

_MILLISECONDS = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}


def milliseconds(duration: str) -> int:
    """Length of a duration such as ``10 seconds``, in milliseconds."""
    amount, unit = duration.split()
    return int(amount) * _MILLISECONDS[unit.removesuffix("s")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)  # what is written can be read


_BROKER = r"[A-Za-z0-9._-]{1,253}:[0-9]{1,5}"


class Kafka(_Model):
    """Where a source reads: one topic, of the installation's broker or of another one."""

    topic: TopicName
    servers: Annotated[str | None, Field(pattern=f"^{_BROKER}(,{_BROKER})*$", description="HOST:PORT,...")] = None

    @classmethod
    def at(cls, place: str) -> Kafka:
        """``TOPIC`` or ``TOPIC@HOST:PORT,...``, as it is written in one word. Raises ValidationError."""
        topic, at, servers = place.partition("@")
        return cls(topic=topic, servers=servers if at else None)

    @property
    def place(self) -> str:
        """In one word."""
        return f"{self.topic}@{self.servers}" if self.servers else self.topic


class CsvTail(_Model):
    """Where a source reads: lines that are appended to the files of a directory, which every node sees."""

    directory: Annotated[str, Field(pattern=r"^/[^\x00]*$", description="absolute path")]
    files: Annotated[str, Field(pattern=r"^[^/\x00]+$", description="which files, like *.csv")] = "*.csv"


class Http(_Model):
    """Where a source reads: ``GET url?since=SEQUENCE&limit=N`` gives a JSON array in the order of ``sequence``."""

    url: Annotated[Place, Field(pattern=r"^https?://[^\s?#]+$")]
    limit: Annotated[int, Field(ge=1, le=10_000)] = 200
    sequence: SourceName = "sequence"


class StageChanges(_Model):
    """Where a source reads: what changes in the results of another stage of the job, which runs in real time.

    A record is a point of that stage's sink: its tags and its time, and of each column in ``add``, which is a whole
    number, by how much it has changed since the record before. So added up they are what the stage says, whatever came
    late or twice, and a point's first record is usually its last: it comes when the point is written.
    """

    name: StageName
    add: Annotated[tuple[str, ...], Field(min_length=1)]


class Source(_Model):
    """One named input, of exactly one kind. ``schema`` is a Spark DDL string for what each record holds."""

    kafka: Kafka | None = None
    csv_tail: CsvTail | None = None
    http: Http | None = None
    stage: StageChanges | None = None
    fields: Annotated[str, Field(alias="schema", min_length=1)]
    key: SourceName | None = None  # kafka: the column that gets the record's key, as text
    value: SourceName | None = None  # the column that gets the record's value as it is, as text
    event_time: SourceName | None = None
    # How a numeric event time counts from the epoch; a column declared as timestamp needs no unit.
    event_time_unit: Literal["milliseconds", "seconds"] = "milliseconds"
    max_ahead: Duration = "10 seconds"
    start: Literal["earliest", "latest"] = "earliest"
    max_per_batch: Annotated[int, Field(ge=1)] = 100_000  # so that batches stay bounded while catching up

    @model_validator(mode="after")
    def _one_kind(self) -> Source:
        if sum(kind is not None for kind in (self.kafka, self.csv_tail, self.http, self.stage)) != 1:
            raise ValueError("a source is exactly one of: kafka, csv_tail, http, stage")
        if self.key and not self.kafka:
            raise ValueError("key: only records of kafka have a key")
        return self

    @property
    def kind(self) -> str:
        """What it reads, as the definition names it."""
        return next(kind for kind in ("kafka", "csv_tail", "http", "stage") if getattr(self, kind) is not None)

    @property
    def address(self) -> str:
        """Where it reads by its definition: a topic with its broker, a directory, a URL, or the name of a stage."""
        if self.kafka:
            return self.kafka.place
        if self.stage:
            return self.stage.name
        if self.csv_tail:
            return self.csv_tail.directory
        assert self.http is not None
        return self.http.url


# A schema may be a constant of the job's library, so that it can change without the job: fleet_types.PING
SCHEMA_CONSTANT = re.compile(r"([a-z_][a-z0-9_]*)\.([A-Z][A-Z0-9_]*)")
EVERY = ("*",)  # as the fields of a sink: every column
INSTALLATION = "influx"  # the secret of the installation's own InfluxDB


class InfluxSink(_Model):
    """Points identified by measurement, tags and time, so that a replayed batch overwrites itself."""

    measurement: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
    tags: tuple[str, ...] = ()
    field: str = "value"
    fields: tuple[str, ...] = ()  # several columns, each a field of the point under its own name, instead of field
    time: str = "time"
    secret: str = INSTALLATION

    @property
    def elsewhere(self) -> bool:
        """Whether it is another InfluxDB than the installation's: only nodes know where that is."""
        return self.secret != INSTALLATION

    def columns(self, there: Iterable[str] = ()) -> tuple[str, ...]:
        """The columns that become fields: those named, or with ``*`` all that are neither tag nor time.

        Args:
            there: the columns that there are.
        """
        if self.fields == EVERY:
            return tuple(name for name in there if name not in self.tags and name != self.time)
        return self.fields or (self.field,)


class LogSink(_Model):
    """One line per row in the job's log; after a crash a batch may be logged again."""

    format: str = "{row}"


class Sink(_Model):
    """Exactly one kind of sink."""

    influxdb: InfluxSink | None = None
    log: LogSink | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Sink:
        if (self.influxdb is None) == (self.log is None):
            raise ValueError("a sink is exactly one of: influxdb, log")
        return self


def _condition(text: str) -> str:
    conditions.parse(text)  # raises ValueError, with what is wrong
    return text


class Recount(_Model):
    """How a recount computes a stage's results from the ledger, in words of its own.

    It shares no code with the stage's function; ``window`` and ``slide`` are durations, points stand at
    the window's end. Without ``aggregate`` every event is a point, which stands at its own time.
    """

    source: SourceName
    # ``first`` and ``last`` go by the event time; of events at the same time, each is right.
    aggregate: Literal["average", "sum", "count", "min", "max", "first", "last", "count distinct"] | None = None
    column: str | None = None
    by: tuple[str, ...] = ()
    where: Annotated[str, AfterValidator(_condition)] | None = None  # as Spark SQL has it (``conditions``)
    window: Duration | None = None
    slide: Duration | None = None
    delay: Duration = "0 seconds"  # the stage's watermark delay: events that are less late count for certain

    @model_validator(mode="after")
    def _whole(self) -> Recount:
        if self.aggregate and not self.window:
            raise ValueError(
                f"aggregate: {self.aggregate} is taken over a window; say how long it is (window: 1 minute)"
            )
        if not self.aggregate and (self.window or self.slide):
            raise ValueError("window: without an aggregate each event is a point of its own; say which aggregate")
        if self.column is None and self.aggregate != "count":
            raise ValueError(f"column: name the column that {self.aggregate or 'a point'} is made of")
        return self

    @property
    def reach_ms(self) -> int:
        """How long before a point the first of its events may lie, in milliseconds."""
        return milliseconds(self.window) if self.window else 0

    @property
    def step_ms(self) -> int:
        """How long after a point the next may stand, in milliseconds."""
        return milliseconds(self.slide or self.window or "0 seconds")


class Stage(_Model):
    """A part of the job that owns state; its name is the identity of the state."""

    # In real time each row passes as it comes, and results are there in tenths of a second instead of seconds.
    # ``auto`` goes back to batches for as long as the stage is so far behind that these get there sooner.
    mode: Literal["batch", "realtime", "auto"] = "batch"
    output: Literal["append", "update"] = "append"
    sinks: Annotated[tuple[Sink, ...], Field(min_length=1)]
    recount: Recount | None = None
    deterministic: bool | None = None  # false: the same events may give other rows when its function runs again
    renamed_from: StageName | None = None  # its name in the version before: without state, it continues there
    fill: Duration | None = None  # new in a version, it begins to read this long before the others stand

    @model_validator(mode="after")
    def _real_time(self) -> Stage:
        if self.realtime and self.renamed_from:
            raise ValueError(f"mode: {self.mode} keeps results under the stage's name, so it takes no renamed_from")
        if self.realtime and self.output != "update":
            raise ValueError(f"mode: {self.mode} gives each result as it changes, so it needs output: update")
        if self.realtime and (len(self.sinks) != 1 or self.sinks[0].influxdb is None):
            raise ValueError(f"mode: {self.mode} writes a point again when it changes, so it needs one sink, influxdb")
        return self

    @property
    def realtime(self) -> bool:
        """Whether it runs in real time, always or where it can."""
        return self.mode != "batch"

    @property
    def influx_sinks(self) -> tuple[InfluxSink, ...]:
        """Where it writes points."""
        return tuple(sink.influxdb for sink in self.sinks if sink.influxdb)

    @property
    def points(self) -> InfluxSink | None:
        """The first of these, if there is one."""
        return next(iter(self.influx_sinks), None)


Cores = Annotated[int, Field(ge=1, le=1024)]
OF_DEPLOYMENT = ("cores", "executor_memory", "driver_memory")  # of the resources, what need not be the version's


class Resources(_Model):
    """What one deployment may use. ``cores`` is the most that its executors take together."""

    cores: Cores = 2
    executor_memory: Memory = "800m"
    driver_memory: Memory = "800m"
    state_partitions: Annotated[int, Field(ge=1, le=1024)] = 2


class Keep(_Model):
    """How many snapshots to keep: the last ones, and the newest of each hour, day and week that has any (UTC)."""

    last: Annotated[int, Field(ge=1, le=1000)] = 3
    hourly: Annotated[int, Field(ge=0, le=1000)] = 0
    daily: Annotated[int, Field(ge=0, le=1000)] = 0
    weekly: Annotated[int, Field(ge=0, le=1000)] = 0


class Snapshots(_Model):
    """When snapshots are taken by themselves while the job runs, and which are kept. Without ``keep``, all are."""

    every: Duration | None = None  # at whole multiples of it since the epoch, so 1 hour means at the full hour
    cron: Annotated[str, Field(pattern=r"^[0-9*,/-]+( [0-9A-Za-z*,/#-]+){4}$")] | None = None  # five fields, UTC
    keep: Keep | None = None

    @model_validator(mode="after")
    def _one_schedule(self) -> Snapshots:
        if self.every and self.cron:
            raise ValueError("choose one of every, cron")
        if self.every and milliseconds(self.every) < MIN_SNAPSHOT_MS:
            raise ValueError("every: at least 1 minute")
        return self


class Definition(_Model):
    """One version of a job."""

    job: JobName
    version: VersionName
    code: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\.py$")]
    library: LibraryName | None = None  # code that it shares with other jobs; its version is chosen at deploy
    description: str = ""
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once"
    trigger: Duration | None = None  # time between batches; none means one batch after the other
    params: dict[str, Param] = {}
    sources: Annotated[dict[SourceName, Source], Field(min_length=1)]
    stages: Annotated[dict[StageName, Stage], Field(min_length=1)]
    resources: Resources = Resources()
    standby_driver: bool = False  # a second driver, warm, that takes over when the first has gone
    spark: dict[str, Param] = {}
    logging: dict[LoggerName, LogLevel] = {}  # logger -> least level that is kept; INFO where nothing is said
    snapshots: Snapshots | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Definition:
        self._allow_spark_settings()
        self._keep_the_guarantee()
        self._continue_each_stage_once()
        self._write_each_field_from_one_stage()
        self._read_stages_that_hand_on()
        self._recount_topics()
        return self

    def _allow_spark_settings(self) -> None:
        for key in self.spark:
            if not ALLOWED_SPARK_CONF.fullmatch(key):
                raise ValueError(f"spark: {key} is not allowed; allowed is {ALLOWED_SPARK_CONF_TEXT}")

    def _keep_the_guarantee(self) -> None:
        for name, stage in self.stages.items():
            if self.guarantee == "exactly-once" and all(sink.log for sink in stage.sinks):
                raise ValueError(
                    f"stages.{name}: a log sink repeats lines after a crash, so it cannot give exactly-once; "
                    "add a sink with keys, or set guarantee: at-least-once"
                )

    def _continue_each_stage_once(self) -> None:
        for name, stage in self.stages.items():
            others = [other.renamed_from for at, other in self.stages.items() if at != name]
            if stage.renamed_from in {*self.stages, *others} - {None}:
                raise ValueError(f"stages.{name}.renamed_from: another stage continues {stage.renamed_from}")

    def _write_each_field_from_one_stage(self) -> None:
        written: list[tuple[str, str, str]] = []  # measurement, field or "*", and the stage that writes it
        for name, stage in self.stages.items():
            for point in stage.influx_sinks:
                own = point.fields or point.columns()
                for measurement, field, other in written:
                    same = field in own or "*" in (field, *own)
                    if other != name and measurement == point.measurement and same:
                        raise ValueError(
                            f"stages.{name}: measurement {measurement} is written by stage {other}; "
                            "points of both could be the same point, so give it another name"
                        )
                written += [(point.measurement, field, name) for field in own]

    def _read_stages_that_hand_on(self) -> None:
        for name, source in self.sources.items():
            if source.stage is None:
                continue
            read = self.stages.get(source.stage.name)
            if read is None:
                raise ValueError(f"sources.{name}.stage: there is no stage {source.stage.name}")
            if not read.realtime:
                raise ValueError(
                    f"sources.{name}.stage: stage {source.stage.name} runs in batches; only a stage with "
                    "mode: realtime or auto can be read by another"
                )

    def _recount_topics(self) -> None:
        for name, stage in self.stages.items():
            if stage.recount is None:
                continue
            counted = self.sources.get(stage.recount.source)
            if counted is None:
                raise ValueError(f"stages.{name}.recount.source: there is no source {stage.recount.source!r}")
            if not counted.kafka or counted.key or counted.value or SCHEMA_CONSTANT.fullmatch(counted.fields):
                raise ValueError(f"stages.{name}.recount: only a topic of JSON values can be recounted in these words")

    def under_name(self, job: str, prefix: str = "") -> Definition:
        """The same as a version of another job, whose measurements' names begin with ``prefix``.

        Raises:
            DefinitionError: such a name is too long.
        """
        stages = self.writing(lambda measurement: f"{prefix}{measurement}")
        return parse(self.model_copy(update={"job": job, "stages": stages}).canonical(), f"{job} {self.version}")

    def writing(self, renamed: Callable[[str], str]) -> dict[StageName, Stage]:
        """The stages as they would write measurements of other names."""

        def moved(sink: Sink) -> Sink:
            if sink.influxdb is None:
                return sink
            target = sink.influxdb.model_copy(update={"measurement": renamed(sink.influxdb.measurement)})
            return sink.model_copy(update={"influxdb": target})

        return {
            name: stage.model_copy(update={"sinks": tuple(moved(sink) for sink in stage.sinks)})
            for name, stage in self.stages.items()
        }

    def renamed(self, known: Collection[str], before: Definition | None = None) -> dict[str, str]:
        """The stages that continue one of another name, with that name.

        Args:
            known: the stages of the version before.
            before: its definition. What it had renamed gets its old name back.
        """
        found = {name: stage.renamed_from for name, stage in self.stages.items() if stage.renamed_from}
        found |= {stage.renamed_from: name for name, stage in (before.stages if before else {}).items()
                  if stage.renamed_from in self.stages}  # fmt: skip
        return {
            name: old for name, old in found.items() if name not in known and old in known and old not in self.stages
        }

    @property
    def measurements(self) -> tuple[str, ...]:
        """Where its points are written, in the order of the stages, each once."""
        return tuple(dict.fromkeys(sink.measurement for sink in self.influx_sinks))

    @property
    def feeding(self) -> dict[StageName, tuple[str, ...]]:
        """The stages that other stages read, each with the columns whose changes it hands on."""
        found: dict[StageName, tuple[str, ...]] = {}
        for read in (source.stage for source in self.sources.values() if source.stage):
            found[read.name] = tuple(dict.fromkeys((*found.get(read.name, ()), *read.add)))
        return found

    @property
    def realtime(self) -> bool:
        """Whether any stage runs in real time."""
        return any(stage.realtime for stage in self.stages.values())

    @property
    def influx_sinks(self) -> list[InfluxSink]:
        """Where its stages write points."""
        return [sink for stage in self.stages.values() for sink in stage.influx_sinks]

    @property
    def in_batches(self) -> list[str]:
        """The stages that never run in real time."""
        return [name for name, stage in self.stages.items() if not stage.realtime]

    @property
    def spark_settings(self) -> dict[str, Param]:
        """Settings of Spark, with those that follow from other choices.

        With a second driver, executors have one core each: the master spreads them over the workers, so that not all
        that are warm can be on the worker that is lost, which is the one with the first driver.
        """
        return ({"spark.executor.cores": 1} if self.standby_driver else {}) | self.spark

    def with_resources(self, over: Mapping[str, Param]) -> Definition:
        """As it runs in a deployment that has other resources. What a later release has added has no effect."""
        known = {name: value for name, value in over.items() if name in Resources.model_fields}
        sizes = Resources.model_validate({**self.resources.model_dump(), **known})
        return self.model_copy(update={"resources": sizes})

    def canonical(self) -> str:
        """The definition as JSON; parsing it again gives an equal definition."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


class _Loader(yaml.SafeLoader):
    """Plain values only: no anchors, aliases or merges, and no key twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(problem="merge keys are not allowed", problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value} stands twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def documents(text: str, name: str) -> list[Any]:
    """The YAML documents of a file that a user wrote, empty ones left out.

    Raises:
        DefinitionError: too large, nested too deeply, or not YAML; names the line and the column.
    """
    if len(text.encode()) > MAX_BYTES:
        raise DefinitionError(f"{name} is larger than {MAX_BYTES} bytes; it says what shall be, it holds no code.")
    try:
        return [item for item in yaml.load_all(text, _Loader) if item is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown line"
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise DefinitionError(f"{name} is not YAML ({where}): {problem}.") from None
    except RecursionError:
        raise DefinitionError(f"{name} is nested too deeply; four levels are enough.") from None


def text_of(path: Path) -> str:
    """What a file that a user wrote says. Raises DefinitionError when it cannot be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{path} cannot be read as text: {error}.") from None


def parse(text: str, name: str = "definition") -> Definition:
    """Read a definition from YAML (or JSON) text.

    Raises:
        DefinitionError: with the line for broken YAML, or with each wrong field and what is allowed there.
    """
    found = documents(text, name)
    if len(found) > 1:
        raise DefinitionError(f"{name} holds another document after the first; a definition is one document.")
    data = found[0] if found else None
    if not isinstance(data, dict):
        raise DefinitionError(f"{name} must be a mapping with at least job, version, code, sources and stages.")
    try:
        return Definition.model_validate(data)
    except ValidationError as error:
        items = error.errors()
        # A list whose only item is wrong is reported as too short as well, which would mislead.
        wrong = [item for item in items if item["type"] != "too_short" or not _inside(item, items)]
        raise DefinitionError(f"{name}: " + "; ".join(_explain(item) for item in wrong) + ".") from None


def load(path: Path) -> Definition:
    """Read a definition file. Raises DefinitionError."""
    return parse(text_of(path), path.name)


def _inside(item: Any, items: Any) -> bool:
    """Whether another error lies inside this one's place."""
    place = item["loc"]
    return any(other is not item and other["loc"][: len(place)] == place for other in items)


def _explain(item: Any) -> str:
    place = tuple(part for part in item["loc"])
    where = ".".join(str(part) for part in place if part not in ("str", "int", "float", "bool"))
    if not where and item["type"] == "value_error":
        return str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"{where} is not a field; allowed here: {', '.join(_allowed(place[:-1]))}"
    if item["type"] == "missing":
        return f"{where} is missing"
    return f"{where}: {item['msg'].removeprefix('Value error, ')} (got {str(item.get('input'))[:60]!r})"


def _allowed(place: tuple[Any, ...]) -> list[str]:
    """Field names at a place in the definition, followed through the models' annotations."""
    annotation: Any = Definition
    for part in place:
        annotation = _at(annotation, part)
    model = _model_in(annotation)
    return sorted(field.alias or name for name, field in model.model_fields.items()) if model else []


def _at(annotation: Any, part: Any) -> Any:
    """What an annotation holds under a key, an index, or a field's name."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        fields = {(field.alias or name): field.annotation for name, field in annotation.model_fields.items()}
        return fields.get(part)
    if origin is Annotated:
        return _at(arguments[0], part)
    if origin is dict:
        return arguments[1]
    if origin in (tuple, list):
        return arguments[0]
    return next((found for item in arguments if (found := _at(item, part)) is not None), None)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation is, or that a union or an Annotated holds; else None."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (dict, tuple, list):
        return None
    return next((model for item in get_args(annotation) if (model := _model_in(item)) is not None), None)
