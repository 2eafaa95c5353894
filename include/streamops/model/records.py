"""What the object store remembers of a job: record, deployments, lease, control and status.

Each is one small JSON object; ``documents`` reads and writes them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from streamops.model import results
from streamops.model.definitions import Keep, Param, Snapshots
from streamops.model.stored import Part, Stored

Offsets = dict[str, dict[str, int]]  # source -> partition -> next offset to read


def distance(start: Offsets, end: Offsets) -> int:
    """Events between two positions; a partition that only one of them knows counts nothing."""
    return sum(
        max(0, end.get(source, {}).get(partition, offset) - offset)
        for source, partitions in start.items()
        for partition, offset in partitions.items()
    )


class State(StrEnum):
    """States of a job as shown everywhere."""

    STARTING = "starting"
    STANDBY = "standby"
    RUNNING = "running"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    STOPPED = "stopped"
    STOPPED_WITH_SNAPSHOT = "stopped-with-snapshot"
    FAILED = "failed"
    UNKNOWN = "unknown"


FINAL = frozenset({State.STOPPED, State.STOPPED_WITH_SNAPSHOT, State.FAILED})


class ChosenSnapshots(Part):
    """A schedule and a rule for keeping that were set for a job, instead of those of its definition."""

    since: datetime  # no time before that is made up for
    every: str | None = None
    cron: str | None = None
    keep: dict[str, int] = {}

    @property
    def plan(self) -> Snapshots:
        """As a definition says it."""
        return Snapshots(every=self.every, cron=self.cron, keep=Keep(**self.keep) if self.keep else None)


class JobRecord(Stored):
    """What should be: written only by operations, conditionally."""

    job: str
    desired: Literal["running", "stopped", "stopped-with-snapshot"] = "stopped"
    version: str | None = None
    deployment: int = 0  # the current one; 0 means never deployed
    last_deployment: int = 0  # highest number ever given out
    launch: str | None = None  # the only launch that may take the lease
    standby: str | None = None  # a launch that may warm up, but not take the lease
    paused: bool = False  # reconciliation leaves it alone
    snapshot: str | None = None  # the snapshot it was stopped with, if any
    snapshots: ChosenSnapshots | None = None  # None: as its definition says
    changed_by: str = ""  # operation id
    fence: int = 0  # of the highest lock that wrote it; what holds a lower one may not


class Move(Part):
    """A source continues in another topic: ``before`` was read to its end, of ``after`` it reads from ``begin`` on."""

    before: str
    after: str
    begin: dict[str, int]  # partition -> next offset


class StageStart(Part):
    """From where a stage's state counts: the recount begins exactly here."""

    since_deployment: int
    offsets: Offsets = {}  # empty means: from the source's own start
    moved: dict[str, str] = {}  # source -> the topic before, whose events are in the state as well
    whole_after_ms: int | None = None  # results up to this time are left out: the version before has written them
    filled_to_ms: int | None = None  # where the others stood: up to there it fills itself, and gives way to them


class LibraryUse(Part):
    """A version of a shared library, with the hash of its archive."""

    name: str
    version: str
    sha256: str

    @property
    def label(self) -> str:
        """As people write it."""
        return f"{self.name}/{self.version}"


class Deployment(Stored):
    """One lineage of a version with its own checkpoint location.

    Never changed after it is written, but for the library: a restart of the cluster may bring its jobs back on another.
    """

    job: str
    number: int
    version: str
    artifact_sha256: str
    runtime_sha256: str
    created: datetime
    created_by: str  # operation id
    from_snapshot: str | None = None  # "job/name"
    from_deployment: int | None = None
    params: dict[str, Param] = {}  # set at deploy, over those of the definition
    topics: dict[str, str] = {}  # source -> topic, directory or URL, set at deploy
    logging: dict[str, str] = {}  # logger -> level, set at deploy
    resources: dict[str, Param] = {}  # cores, executor_memory, driver_memory; set at deploy
    library: LibraryUse | None = None
    library_since: dict[str, Offsets] = {}  # stage -> where it stood when a restart of the cluster brought another one
    stages: dict[str, StageStart] = {}


class Lease(Stored):
    """The right to write. ``holder`` is None while it is granted to a launch that has not taken it yet."""

    job: str
    epoch: int
    launch: str
    deployment: int
    holder: str | None = None  # unique per driver process
    taken: datetime | None = None
    renewed: datetime | None = None
    fruitless: int = 0  # holders in a row of this launch that committed nothing
    idle: tuple[str, ...] = ()  # stages of which the last holder that told had seen no commit


class EarlierRun(Part):
    """A run of a real-time stage that is over: of its results, those before ``until`` count."""

    epoch: int
    run: int
    until: int


class ResultsPosition(Stored):
    """How far a real-time stage's results topic was written to its sink.

    A result counts only if it carries the epoch and run that stand here: they are set before the queries of that run
    start, and after all results of the run before were read. Of runs before, results count that wait for the end of
    their windows.
    """

    job: str
    stage: str
    deployment: int = 0  # whose queries give the results
    epoch: int = 0
    run: int = 0  # starts of the stage's query in this epoch, after a failure or a stop
    offset: int = 0  # the next result to read
    before: tuple[EarlierRun, ...] = ()
    reached: dict[int, int] = {}  # state partition -> time of the newest point that it gave, in milliseconds
    behind: tuple[int, ...] = ()  # state partitions that in this run have not passed what they had given before
    written_ms: int | None = None  # in this run, all points up to this time were written

    def is_part(self, value: bytes) -> bool:
        """Whether a result may be of a part of a window whose whole value an earlier run had given."""
        return value.startswith(results.mark(self.epoch, self.run)) and results.state_partition(value) in self.behind

    def counts(self, offset: int, value: bytes) -> bool:
        """Whether a result of the topic counts: it begins with who gives it."""
        if value.startswith(results.mark(self.epoch, self.run)):
            return True
        return any(offset < item.until and value.startswith(results.mark(item.epoch, item.run)) for item in self.before)


# Of an epoch; with a deployment's number, the run of its shadow: several shadows may wait for the same epoch, and what
# a dismissed one still sends must be no other's. What is started after the lease was taken counts from 1.
SHADOW_RUN = 1_000_000


class Shadow(Stored):
    """A real-time stage of a version that runs before it may write: its results since then wait in the topic.

    ``epoch`` is the one that it will write in, unless a driver takes the lease before. From ``since`` on, Kafka keeps
    the results for as long as the version stands by. Whoever writes first for the deployment counts them.
    """

    job: str
    stage: str
    deployment: int
    epoch: int
    since: int
    run: int = SHADOW_RUN


class FeedPosition(Stored):
    """What a driver remembers of a stage's feed.

    Points up to ``closed_ms`` (since the epoch) do not change any more; ``since`` is the first offset that tells
    something of a later one.
    """

    job: str
    stage: str
    deployment: int
    since: int = 0
    closed_ms: int | None = None


class FeedSlice(Stored):
    """The part of a stage's feed that a snapshot needs: what another deployment's feed begins with.

    ``records`` are those that a reader has not taken in, or that tell of points that may still change. ``pending`` are
    results that were not handed on yet; of points up to ``closed_ms`` there are none. ``readers`` are the stages whose
    state is made of what was handed on: where none of them is continued, everything is handed on again.
    """

    job: str
    stage: str
    deployment: int
    records: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    closed_ms: int | None = None


Command = Literal["run", "stop", "shadow"]


class Control(Stored):
    """An operation's word to one launch."""

    command: Command | str  # a driver leaves alone what it does not know
    operation: str = ""
    sequence: int = 0
    logging: dict[str, str] = {}  # logger -> level, over those of the deployment


LIVE = "live"  # the phase of a real-time stage in which each event passes as it comes
SHADOW = "shadow"  # the same, before its version may write
LEVEL = "level"  # in shadow, and it has read all there is


class StageStatus(Part):
    """What one stage has done. Rates in rows per second, durations in milliseconds, sizes in bytes."""

    phase: str = ""  # of a real-time stage: settling, catching up, live, shadow, level
    batch_id: int = -1  # last committed
    commits: int = 0  # by this driver process
    quiet: bool = False  # completed a trigger and found no data
    offsets: Offsets = {}  # committed: next to read
    latest: Offsets = {}  # end of the topic at the last trigger
    started_from: Offsets = {}
    lag: int = 0
    input_rate: float = 0.0
    processed_rate: float = 0.0
    batch_ms: int = 0
    unpaced: bool = False  # a batch follows the one before at once, however little there is to read
    watermark_ms: int | None = None
    late_rows: int = 0  # of this driver process
    malformed_rows: int = 0
    ahead_rows: int = 0
    source_faults: dict[str, int] = {}  # "source.fault" -> how often, of this driver process
    output_rows: int = 0
    refused_rows: int = 0  # by a sink, and put aside; of this driver process
    outputs: int = 0  # batches that wrote rows
    last_output: datetime | None = None
    failures: int = 0  # of its query, by this driver process
    state_rows: int = 0
    state_bytes: int = 0
    state_partitions_on: dict[str, int] = {}  # executor host:port -> stateful tasks of the last batch, if known
    last_commit: datetime | None = None
    durations_ms: dict[str, int] = {}


class RefusedPoint(Part):
    """A point that InfluxDB would not take. ``id`` follows from what the point is, not from when it came."""

    id: str
    measurement: str
    tags: dict[str, str]
    fields: dict[str, float | int | str]
    time_ms: int
    reason: str


class RefusedPoints(Stored):
    """Points of a stage that were refused together."""

    job: str
    stage: str
    version: str
    at: datetime
    points: tuple[RefusedPoint, ...]


class DriverStatus(Stored):
    """Published by one driver process; never the basis of correctness."""

    job: str
    deployment: int
    launch: str
    holder: str
    epoch: int | None = None
    state: State
    reason: str = ""
    version: str = ""
    host: str = ""
    pid: int = 0
    app_id: str = ""
    driver: str = ""  # Spark's id of this driver; a relaunched one has another
    ui: str = ""
    started: datetime
    updated: datetime
    cpu_s: float | None = None  # what its processes on that node have taken of the processor; not its executors'
    memory_bytes: int | None = None  # what they hold
    phases_ms: dict[str, int] = {}  # how long context, artifact, standby, restore, first commit took
    stages: dict[str, StageStatus] = {}


def now() -> datetime:
    """The present, in UTC. For display and for expiry outside Airflow only; order comes from epochs."""
    return datetime.now(UTC)
