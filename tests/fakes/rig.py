"""A job on a made-up cluster: real object store, real processes as drivers, the real engine."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from asking import fitting
from fakes import driver, object_server
from fakes.driver import WINDOW, point_key
from fakes.nodes import Nodes
from streamops.model import records
from streamops.model.definitions import Definition, InfluxSink, parse
from streamops.model.errors import NotFoundError
from streamops.model.owner import Owner
from streamops.model.records import FINAL, Shadow
from streamops.model.results import mark
from streamops.operations import runbooks
from streamops.operations.engine import Engine
from streamops.operations.follow import request as ask
from streamops.operations.operation import Operation as Operation
from streamops.operations.operation import Request
from streamops.operations.ports import Ports
from streamops.operations.receipts import Receipt
from streamops.settings import Settings
from streamops.spark.submission import Submission
from streamops.store import documents, jobs, keys, waiting
from streamops.store.object_store import ObjectStore
from streamops.versions import archives
from streamops.versions.artifacts import BATCHES_IN_SHADOW, BROKERS, LEVELS, ArtifactManifest
from streamops.versions.fingerprints import Aggregate, Fingerprint, Key, Operator, Slot, Watermark, Window

JOB = "sums"
# Deadlines find what hangs on a busy machine; nothing is measured with them.
PATIENT = {"healthy_timeout_s": 300, "stop_timeout_s": 300, "members_timeout_s": 120, "probation_s": 0}
LOOK_S = 0.05  # looking costs more than waiting: a look is four requests to the object store, on cores that all share
SUM = Fingerprint(  # what these drivers do, in Spark's words
    spark="4.2.0",
    output="append",
    provider="RocksDBStateStoreProvider",
    partitions=2,
    sources=("events",),
    operators=(
        Operator(
            kind="aggregation",
            keys=(Key(text="window", type="bigint", columns=("events.n",)),),
            aggregates=(Aggregate(function="sum", text="sum(events.n)", buffer=(Slot(type="long", nullable=True),)),),
        ),
    ),
)

_AT = Window(kind="tumbling", time="events.n", size_us=WINDOW * 25_000)  # 40 events come a second
WINDOWED = SUM.model_copy(  # the same, as windows of time
    update={
        "watermarks": (Watermark(column="events.n", delay="0 seconds"),),
        "operators": (
            Operator(
                kind="aggregation",
                keys=(SUM.operators[0].keys[0].model_copy(update={"window": _AT}),),
                aggregates=SUM.operators[0].aggregates,
            ),
        ),
    }
)


@cache
def drivers() -> ForkServerContext:
    """Makes the processes of drivers, which need not import everything again: the server that forks them has.

    Before Python 3.12.8 and 3.13.1 that server does not get ``sys.path``, and is silent about what it does not find.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fakes.driver"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    return context


def patient(runbook: str, **asked: object) -> Request:
    """A request with the patient ones of the deadlines that its runbook has."""
    return ask(runbook, **{**fitting(runbook, PATIENT), **asked})


class Killed(BaseException):
    """The process that carried out the operation is gone."""


def definition(version: str, stages: tuple[str, ...], partitions: int = 2, job: str = JOB, *, live: bool = False):
    """A version with these stages."""
    mode = "mode: realtime, output: update, " if live else ""
    wired = "\n".join(f"  {name}: {{{mode}sinks: [{{influxdb: {{measurement: {name}}}}}]}}" for name in stages)
    return parse(
        f"job: {job}\nversion: {version}\ncode: sums.py\nparams: {{size: 10}}\n"
        f'sources: {{events: {{kafka: {{topic: events}}, schema: "n long"}}}}\nstages:\n{wired}\n'
        f"resources: {{state_partitions: {partitions}}}\n"
    )


@dataclass
class Cluster:
    """Starts drivers as processes of this machine."""

    settings: Settings
    directory: Path
    began: float
    behaviour: dict[str, str] = field(default_factory=dict)  # by version
    room: bool = True
    cores: int = 1024  # of a driver that has room
    processes: list[tuple[str, BaseProcess]] = field(default_factory=list)
    submitted: dict[str, Submission] = field(default_factory=dict)

    def relaunch(self, launch: str) -> None:
        """As a master does with a supervised driver whose worker is gone."""
        self.submit(self.submitted[launch])

    def submit(self, submission: Submission) -> str:
        self.submitted[submission.launch] = submission
        how = self.behaviour.get(submission.version, "good")
        args = (
            str(self.directory / "node.env"),
            submission.job,
            submission.launch,
            submission.deployment,
            self.began,
            how,
            f"driver-{len(self.processes) + 1}",
        )
        process = drivers().Process(target=driver.main, args=args, daemon=True)
        process.start()
        self.processes.append((submission.launch, process))
        return f"driver-{len(self.processes)}"

    def end_driver(self, driver: str) -> None:
        self.processes[int(driver.removeprefix("driver-")) - 1][1].kill()

    def room_for(self, definition: Definition) -> bool:
        return self.room and definition.resources.cores <= self.cores

    def alive(self) -> list[str]:
        return [launch for launch, process in self.processes if process.is_alive()]

    def end(self) -> None:
        for _, process in self.processes:
            process.kill()
            process.join(30)


@dataclass
class Topic:
    """The made-up ledger's ends; ``made`` are topics besides ``events``, with what they were made with."""

    began: float
    first: int = 0
    made: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    store: ObjectStore | None = None  # where shadows note who they are
    dropped: list[str] = field(default_factory=list)  # what was asked to go
    ends: dict[str, int] = field(default_factory=dict)  # of topics that get no more events
    old: dict[str, int] = field(default_factory=dict)  # of topics in ``made``: how many events are older than any time
    marks: int = 0  # of the last records, how many only mark the end of a transaction
    other: set[str] = field(default_factory=set)  # stages of which a version in shadow gives other results
    in_batches: set[str] = field(default_factory=set)  # stages of which the first version gives none to a topic

    def ensure_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> bool:
        if topic == "events" or topic in self.made:
            return False
        self.made[topic] = (partitions, dict(config or {}))
        return True

    def beginning_offsets(self, topic: str) -> dict[str, int]:
        if topic != "events" and topic not in self.made and not topic.startswith(keys.results_topics(JOB)):
            raise NotFoundError(f"There is no topic {topic}.")
        return {"0": self.first}

    def end_offsets(self, topic: str) -> dict[str, int]:
        return {"0": self.ends.get(topic, int((time.time() - self.began) * 40))}

    def offsets_at(self, topic: str, time_ms: int) -> dict[str, int]:
        return {"0": self.old.get(topic, 0) if topic in self.made else max(0, int((time_ms / 1000 - self.began) * 40))}

    def read(
        self, topic: str, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Iterator[tuple[int, int, int, bytes | None]]:
        yield from ((0, offset, 0, b"") for offset in range(start["0"], end["0"] - self.marks))

    def read_keyed(self, topic: str, start: int, end: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Results of a stage as both versions give them: the first one, if it is in real time, and one in shadow."""
        stage = topic.removeprefix(keys.results_topics(JOB))
        assert self.store is not None
        shadow = documents.read(self.store, keys.shadow(JOB, stage), Shadow)
        whose = [] if stage in self.in_batches else [mark(1, 1)]
        whose += [mark(shadow.value.epoch, shadow.value.run)] if shadow else []
        for row in self._windows():
            for who in whose:
                value = row["value"] + (stage in self.other and who != mark(1, 1))
                given = json.dumps({**row, "value": value})
                yield row["time"] + 7, str(row["time"]).encode(), who + b"0 " + given.encode()

    def points(self, sink: InfluxSink, start_ms: int, end_ms: int) -> list[dict[str, int]]:
        """What a version in batches has written of its windows, as InfluxDB gives it."""
        return [row for row in self._windows() if start_ms <= row["time"] < end_ms]

    def _windows(self) -> Iterator[dict[str, int]]:
        for window in range(int((time.time() - self.began) * 40) // WINDOW):
            total = sum(range(window * WINDOW, (window + 1) * WINDOW))
            yield {"time": driver.time_ms(self.began, (window + 1) * WINDOW), "value": total}

    def delete_topic(self, topic: str) -> bool:
        self.dropped.append(topic)
        return topic == "events" or self.made.pop(topic, None) is not None

    def delete_topics(self, prefix: str) -> list[str]:
        self.dropped.append(prefix)
        return []


@dataclass
class Runs:
    """What a scheduler would say of its runs."""

    over: dict[str, bool] = field(default_factory=dict)

    def finished(self, owner: Owner) -> bool | None:
        return self.over.get(owner.run_id)

    def forgotten(self, owner: Owner) -> bool:
        return owner.kind == "airflow" and owner.run_id not in self.over


def write_env(path: Path, settings: Settings, *, every_secret: bool = False) -> None:
    """A private file as nodes have it; with every secret, as an operator's host has it."""
    pairs = {key: value for key, value in settings if isinstance(value, str)}
    pairs |= {"s3_secret_key": settings.s3_secret_key.get_secret_value(), "influx_token": "none"}
    if every_secret:
        pairs |= {key: value.get_secret_value() for key, value in settings if isinstance(value, SecretStr)}
    path.write_text("".join(f"{key.upper()}={value}\n" for key, value in pairs.items()))


@dataclass(frozen=True)
class Compared:
    """What a recount found of one stage."""

    points: int
    missing: list[int]  # windows
    wrong: list[str]
    unexpected: list[str]

    def clean(self) -> bool:
        return not (self.missing or self.wrong or self.unexpected)

    def counts(self) -> dict[str, int]:
        return {"missing": len(self.missing), "wrong": len(self.wrong), "unexpected": len(self.unexpected)}

    def __str__(self) -> str:
        return f"windows missing: {self.missing}; wrong: {self.wrong}; too many: {self.unexpected}"


class Rig:
    """One test's installation."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.settings, self.store = settings, ObjectStore(settings)
        self.retention = ObjectStore(settings.for_retention())
        self.root = ObjectStore(object_server.as_root(settings))  # someone with all rights
        write_env(directory / "node.env", object_server.as_job(settings))
        write_env(directory / "sink.env", object_server.as_root(settings))
        began = time.time()
        self.cluster, self.topic, self.runs = Cluster(settings, directory, began), Topic(began), Runs()
        self.topic.store = self.store
        self.nodes = Nodes(self.cluster.processes, relaunch=self.cluster.relaunch)
        self.said: list[str] = []
        self.marked: list[Receipt] = []  # on the dashboards
        self.written: list[str] = []  # by hand, as line protocol
        self._read: dict[str, tuple[str, dict[str, int]]] = {}  # points by key, as they were when last read
        self.free: int | None = None
        self.count = 0

    def publish(
        self,
        version: str,
        stages: tuple[str, ...],
        partitions: int = 2,
        job: str = JOB,
        *,
        live: bool = False,
        can: tuple[str, ...] = (LEVELS, BROKERS, BATCHES_IN_SHADOW),
        does: Fingerprint = SUM,
    ) -> None:
        """Archives without content: these drivers need no code."""
        artifact, runtime = f"{job} {version}".encode(), b"runtime"
        manifest = ArtifactManifest(
            job=job, version=version, artifact_sha256=archives.sha256(artifact), size=1,
            runtime_sha256=archives.sha256(runtime),
            definition=definition(version, stages, partitions, job, live=live), published=records.now(),
            runtime_can=can, fingerprints={stage: does.model_dump(mode="json") for stage in stages},
        )  # fmt: skip
        self.store.put(manifest.archive, artifact)
        self.store.put(keys.runtime(manifest.runtime_sha256), runtime)
        documents.write(self.store, keys.artifact_manifest(job, version), manifest)

    def go_live(self) -> None:
        """Deploy the job in real time, as ``live``; ``live2`` is the same."""
        for version in ("live", "live2"):
            self.publish(version, ("a",), live=True)
        self.run("deploy_job", version="live")
        self.commits_more(windows=1)

    def engine(self, at_point: Callable[[str, str], None] = lambda step, when: None, **changes: Any) -> Engine:
        """An engine of a process of its own, with the rig's ports; ``changes`` replace some of them."""
        ports = Ports(
            store=self.store,
            submitter=self.cluster,
            ledger=self.topic,
            owners=self.runs,
            recount=self.report,
            retention=lambda: self.retention,
            free_bytes=lambda: self.free,
            nodes=lambda: self.nodes,
            write_points=self.written.extend,
            read_points=self.topic.points,
            mark=lambda found, say: self.marked.append(found),
            adopt_wait_s=60,  # of a busy machine: a driver that was submitted is not submitted again
            look_s=LOOK_S,
        )
        return Engine(replace(ports, **changes), self.said.append, at_point)

    def owner(self) -> Owner:
        self.count += 1
        return Owner(kind="airflow", dag_id="runbook", run_id=f"run-{self.count}", user="ada")

    def run(self, runbook: str, engine: Engine | None = None, **asked: object) -> Operation:
        """One operation to its end, as ``Engine.run`` does it."""
        owner = self.owner()
        return (engine or self.engine()).run(patient(runbook, job=JOB, **asked), owner, f"{runbook}-{self.count}")

    def tasks(self, engine: Engine, request: Request, owner: Owner, operation_id: str) -> None:
        """As the tasks of a DAG run would do it, from the first on."""
        engine.begin(request, owner, operation_id)
        for task in runbooks.of(request).tasks:
            engine.run_task(request.job, operation_id, task)
        engine.release(request.job, operation_id)

    def leave(self, *tasks: str) -> None:
        """Begin the upgrade ``left`` to v2, carry out some tasks, and let its run be over."""
        engine, owner = self.engine(), self.owner()
        engine.begin(patient("upgrade_job", job=JOB, version="v2", snapshot="s"), owner, "left")
        for task in tasks:
            engine.run_task(JOB, "left", task)
        self.runs.over[owner.run_id] = True

    def died(self, job: str) -> None:
        """Have a job's driver be dead for a while."""
        found = jobs.record(self.store, job)
        assert found is not None
        launch = found.launch or ""
        for name, process in self.cluster.processes:
            if name == launch:
                process.kill()
                process.join(30)
        status = jobs.status(self.store, job, launch)
        assert status is not None
        old = status.model_copy(update={"updated": status.updated - timedelta(minutes=5)})
        documents.write(self.store, keys.status(job, launch), old)

    def record(self) -> records.JobRecord:
        """The job's, without the fence: each operation raises that, whatever else it does."""
        found = jobs.record(self.store, JOB)
        assert found is not None
        return found.model_copy(update={"fence": 0})

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 300) -> None:
        assert waiting.until(condition, seconds, LOOK_S), f"{what} did not happen in {seconds:g} s"

    def offset(self, launch: str, stage: str) -> int:
        found = jobs.status(self.store, JOB, launch)
        return found.stages[stage].offsets["events"]["0"] if found and stage in found.stages else 0

    def commits_more(self, stage: str = "a", windows: int = 2) -> None:
        """The launch named in the record continues writing."""
        launch = self.record().launch
        start = self.offset(launch, stage)
        self.wait(lambda: self.offset(launch, stage) >= start + windows * WINDOW, "progress")

    def recount(self, stage: str, since: int = 0) -> int:
        """Compare every point with the ledger; how many there are.

        ``since`` is where the stage's state begins: a window that it cuts counts from there.
        """
        found = self.compare(JOB, stage, since)
        assert found.clean(), f"{stage}: {found}"
        return found.points

    def compare(self, job: str, stage: str, cut: int = 0, begin: int | None = None) -> Compared:
        """The points of a stage, compared with the ledger. Due is what its driver says that it has committed.

        Args:
            cut: the offset at which the stage's state begins; the window around it counts from there.
            begin: look only at windows that begin from this offset on, and at the one that is cut; that one may still
                show what an earlier life of the stage has written, until it is due. None: no earlier window may be.
        """
        committed = self._committed(job, stage)
        points, extra = self._points(job, stage)
        first = max(cut // WINDOW, -(-(begin or 0) // WINDOW))
        end = max(first, committed // WINDOW, *(window + 1 for window in points))
        missing = [window for window in range(first, end) if window not in points]
        wrong = []
        for window in points:
            whole = range(window * WINDOW, (window + 1) * WINDOW)
            due = {sum(event for event in whole if event >= cut)}
            if begin is not None and whole.stop > committed:
                due.add(sum(whole))
            if window >= first and points[window] not in due:
                wrong.append(f"window {window} is {points[window]} instead of {min(due)}")
        if begin is None:
            extra += [f"window {window}" for window in points if window < first]
        return Compared(len(points), missing, wrong, extra)

    def report(self, job: str, since: records.Offsets | None) -> dict[str, Any]:
        """The recount of a job as operations ask for it: what its stages have written, compared with the ledger."""
        record = jobs.record(self.store, job)
        assert record is not None
        begin = (since or {}).get("events", {}).get("0", 0)
        starts = jobs.deployment(self.store, job, record.deployment).stages
        found = {
            name: self.compare(job, name, start.offsets.get("events", {}).get("0", 0), begin)
            for name, start in starts.items()
        }
        off = [f"{name}: {item}" for name, item in found.items() if not item.clean()]
        counts = [{"measurement": name, "expected": item.points, **item.counts()} for name, item in found.items()]
        return {"clean": not off, "reason": "; ".join(off) or "all as it should be", "measurements": counts}

    def _committed(self, job: str, stage: str) -> int:
        record = jobs.record(self.store, job)
        found = jobs.status(self.store, job, record.launch) if record and record.launch else None
        return found.stages[stage].offsets["events"]["0"] if found and stage in found.stages else 0

    def _points(self, job: str, stage: str) -> tuple[dict[int, int], list[str]]:
        """Window -> sum, and the points that stand where none should: under a name that is not their window's."""
        points: dict[int, int] = {}
        extra = []
        for info in self.store.list(point_key(job, stage, 0).rsplit("/", 1)[0] + "/"):
            if self._read.get(info.key, ("",))[0] != info.etag:
                self._read[info.key] = info.etag, json.loads(self.store.get(info.key).body)
            point = self._read[info.key][1]
            if info.key != point_key(job, stage, point["window"]):
                extra.append(info.key)
            else:
                points[point["window"]] = point["sum"]
        return points, extra

    def drivers_that_write(self) -> list[str]:
        """Launches that are alive and not at their end: more than one must never hold the lease."""
        alive = []
        for launch in self.cluster.alive():
            found = jobs.status(self.store, JOB, launch)
            if found and found.state not in FINAL:
                alive.append(launch)
        return alive
