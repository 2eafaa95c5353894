"""A small driver that keeps the runner's contract without Spark: record, lease, control, status, checkpoints.

It sums a made-up ledger (event ``n`` has the value ``n``, and 40 arrive a second) into windows of ten events, and
writes each closed window as an object. Its state is laid out like Spark's: a changelog for each version, and a full
version with a shared file now and then. Loss, double counting or a wrong restore shows as a wrong sum.
"""

from __future__ import annotations

import io
import json
import time
import uuid
import zipfile
from datetime import datetime
from pathlib import Path

import boto3

from streamops.model.errors import LeaseLostError, UnhealthyError
from streamops.model.records import LEVEL, SHADOW_RUN, Control, DriverStatus, Shadow, StageStatus, State, now
from streamops.settings import Settings
from streamops.spark import checkpoints
from streamops.store import jobs, keys, leases
from streamops.store.documents import read, write
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts

WINDOW = 10
BATCH_S = 0.25
FULL_EVERY = 4
# Drivers are forked from a process that imported this module, and inherit what the SDK has read once: its
# descriptions of S3, which take 0.1 s of a core each time.
boto3.client("s3", region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none")


def point_key(job: str, stage: str, window: int) -> str:
    """Where the result of a window is written."""
    return f"points/{job}/{stage}/{window:06d}.json"


def time_ms(began_s: float, event: int) -> int:
    """When an event arrives, in milliseconds since the epoch."""
    return int((began_s + event / 40) * 1000)


class Stage:
    """One query: its place, its state, and where it stands."""

    def __init__(self, store: ObjectStore, sink: ObjectStore, job: str, name: str, prefix: str, start: int) -> None:
        self.sink = sink  # stands for another server, so it is not the identity of the job's that writes there
        self.store, self.job, self.name, self.prefix = store, job, name, prefix
        self.batch, self.offset, self.ids = -1, start, []
        self.state: dict[str, int] = {}
        self.commits = self.outputs = self.rows = self.failures = 0
        self.last_output: datetime | None = None
        self.last_commit: datetime | None = None
        self._restore()

    def _restore(self) -> None:
        commits = [i.key.rsplit("/", 1)[1] for i in self.store.list(f"{self.prefix}commits/")]
        if not commits:
            self._put("metadata", json.dumps({"id": str(uuid.uuid4())}))
            return
        assert self.store.get(f"{self.prefix}metadata").body
        self.batch = max(map(int, commits))
        if self.batch:
            self.store.get(f"{self.prefix}offsets/{self.batch - 1}")
        text = self.store.get(f"{self.prefix}offsets/{self.batch}").body.decode()
        self.offset = checkpoints.parse_offsets(text)[0]["events"]["0"]
        names = {i.key.removeprefix(self.prefix) for i in self.store.list(f"{self.prefix}state/0/0/")}
        version, changes = self.batch + 1, []
        while version > 0:
            commit = json.loads(self.store.get(f"{self.prefix}commits/{version - 1}").body.decode().split("\n")[1])
            identity = commit["stateUniqueIds"]["0"][0][0]
            stem = f"state/0/0/{version}_{identity}"
            if f"{stem}.zip" in names:
                archive = zipfile.ZipFile(io.BytesIO(self.store.get(f"{self.prefix}{stem}.zip").body))
                described = json.loads(archive.read("metadata").decode().split("\n", 1)[1])
                file = described["sstFiles"][0]["dfsSstFileName"]
                self.state = json.loads(self.store.get(f"{self.prefix}state/0/0/SSTs/{file}").body)
                break
            changes.append(json.loads(self.store.get(f"{self.prefix}{stem}.changelog").body))
            version -= 1
        for change in reversed(changes):
            self._apply(change)

    def _apply(self, change: dict[str, int | None]) -> None:
        for key, value in change.items():
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value

    def _put(self, path: str, body: str | bytes) -> None:
        self.store.put(self.prefix + path, body.encode() if isinstance(body, str) else body)

    def run_batch(self, end: int, check: callable, *, silent: bool = False) -> None:
        """Read to ``end``, write what closed (unless ``silent``), commit."""
        if end <= self.offset:
            return
        number = self.batch + 1
        metadata = {"batchWatermarkMs": self.offset, "batchTimestampMs": 0, "conf": {}}
        self._put(f"offsets/{number}", f'v2\n{json.dumps(metadata)}\nevents:{{"events":{{"0":{end}}}}}')
        change: dict[str, int | None] = {}
        for event in range(self.offset, end):
            key = str(event // WINDOW)
            change[key] = (change.get(key) or self.state.get(key, 0)) + event
        closed = [key for key in {*self.state, *change} if not silent and (int(key) + 1) * WINDOW <= end]
        values = {**self.state, **change}
        check()
        for key in sorted(closed, key=int):  # whoever lists the points meanwhile finds no hole
            value = {"sum": values[key], "window": int(key)}
            self.sink.put(point_key(self.job, self.name, int(key)), json.dumps(value).encode())
            change[key] = None
        if closed:
            self.rows, self.outputs, self.last_output = self.rows + len(closed), self.outputs + 1, now()
        identity, version = str(uuid.uuid4()), number + 1
        self._apply(change)
        self._put(f"state/0/0/{version}_{identity}.changelog", json.dumps(change))
        self._put(f"state/0/0/{version}_{identity}.changelog.crc", "{}")
        if version % FULL_EVERY == 0:
            file = f"{version:06d}-{uuid.uuid4()}.sst"
            self._put(f"state/0/0/SSTs/{file}", json.dumps(self.state))
            body = io.BytesIO()
            with zipfile.ZipFile(body, "w") as archive:
                archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [{"dfsSstFileName": file}]}))
            self._put(f"state/0/0/{version}_{identity}.zip", body.getvalue())
        check()
        commit = {"nextBatchWatermarkMs": end, "stateUniqueIds": {"0": [[identity]]}}
        self._put(f"commits/{number}", f"v2\n{json.dumps(commit)}")
        self.batch, self.offset, self.commits, self.last_commit = number, end, self.commits + 1, now()

    def status(self, began_s: float) -> StageStatus:
        """As the runner publishes it."""
        offsets = {"events": {"0": self.offset}}
        return StageStatus(
            batch_id=self.batch, commits=self.commits, offsets=offsets, output_rows=self.rows, outputs=self.outputs,
            last_output=self.last_output, failures=self.failures, last_commit=self.last_commit,
            watermark_ms=time_ms(began_s, self.offset),
        )  # fmt: skip


class Driver:
    """One process; ``behaviour`` is ``good``, or how it goes wrong: ``dies`` before its first commit,
    ``falls behind``, ``silent`` (writes nothing), ``fails`` (again and again), ``dies in shadow``."""

    def __init__(
        self,
        settings: Settings,
        sink: Settings,
        job: str,
        launch: str,
        number: int,
        epoch_s: float,
        behaviour: str,
        name: str = "",
    ) -> None:
        self.store, self.sink = ObjectStore(settings), ObjectStore(sink)
        self.job, self.launch, self.number = job, launch, number
        self.began, self.behaviour = epoch_s, behaviour
        moment = now()
        self.status = DriverStatus(
            job=job, deployment=number, launch=launch, holder=uuid.uuid4().hex, state=State.STARTING, started=moment,
            updated=moment, driver=name,
        )  # fmt: skip

    def publish(self, state: State, reason: str = "", **more: object) -> None:
        update = {"state": state, "reason": reason, "updated": now(), **more}
        self.status = self.status.model_copy(update=update)
        write(self.store, keys.status(self.job, self.launch), self.status)

    def statuses(self, stages: list[Stage]) -> dict[str, StageStatus]:
        return {stage.name: stage.status(self.began) for stage in stages}

    def shadows(self) -> dict[str, StageStatus]:
        """Level from the first moment on; what they give, the made-up ledger (``rig.Topic``) makes up."""
        end, found = int((time.time() - self.began) * 40), {}
        for name in jobs.deployment(self.store, self.job, self.number).stages:
            note = {"deployment": self.number, "epoch": jobs.next_epoch(self.store, self.job, self.launch)}
            shadow = Shadow(job=self.job, stage=name, since=0, run=SHADOW_RUN + self.number, **note)
            write(self.store, keys.shadow(self.job, name), shadow)
            found[name] = StageStatus(
                phase=LEVEL, commits=2, offsets={"events": {"0": 0}}, last_commit=now(),  # it has written nothing
                watermark_ms=time_ms(self.began, end),
            )  # fmt: skip
        return found

    def command(self) -> str | None:
        found = read(self.store, keys.control(self.job, self.launch), Control)
        return found.value.command if found else None

    def run(self) -> None:
        """To the final status."""
        record = jobs.record(self.store, self.job)
        if record is None or self.launch not in (record.launch, record.standby):
            return self.publish(State.STOPPED, "not named")
        self.publish(State.STARTING)
        if record.standby == self.launch:
            self.publish(State.STANDBY)
            while True:
                record, command = jobs.record(self.store, self.job), self.command()
                if command == "stop" or record is None or self.launch not in (record.launch, record.standby):
                    return self.publish(State.STOPPED, "dismissed")
                if command == "run" and record.launch == self.launch:
                    break
                if command == "shadow":  # on the state that it will continue from
                    self.publish(State.STANDBY, stages=self.shadows())
                    if self.behaviour == "dies in shadow":
                        return self.publish(State.FAILED, "a stage failed in shadow")
                time.sleep(0.1)
        if self.command() == "stop":
            return self.publish(State.STOPPED, "asked to stop before it had begun")
        if self.behaviour == "dies":
            return self.publish(State.FAILED, "the first batch failed")
        try:
            held = leases.take(self.store, record, self.launch, self.status.holder)
            return self._work(held)
        except (LeaseLostError, UnhealthyError) as error:
            return self.publish(State.STOPPED, str(error))

    def _work(self, held: object) -> None:
        epoch = held.value.epoch
        deployment = jobs.deployment(self.store, self.job, self.number)
        names = list(artifacts.load_manifest(self.store, self.job, deployment.version).definition.stages)
        checkpoints.prepare_epoch(self.store, self.job, self.number, epoch, names)
        stages = [
            Stage(
                self.store, self.sink, self.job, name, keys.stage(self.job, self.number, epoch, name),
                deployment.stages[name].offsets["events"]["0"],
            )
            for name in names
        ]  # fmt: skip
        check = lambda: leases.check(self.store, held.value)  # noqa: E731
        while self.command() != "stop":
            for stage in stages:
                end = int((time.time() - self.began) * 40)
                if self.behaviour == "falls behind" and stage.commits:
                    end = min(end, stage.offset + 1)
                stage.failures += self.behaviour == "fails" and stage.commits > 0
                stage.run_batch(end, check, silent=self.behaviour == "silent")
            self.publish(State.RUNNING, epoch=epoch, stages=self.statuses(stages))
            time.sleep(BATCH_S)
        leases.release(self.store, held)
        self.publish(State.STOPPED, "asked to stop", stages=self.statuses(stages))


def main(env: str, job: str, launch: str, number: int, began: float, behaviour: str, name: str = "") -> None:
    """One driver process; the address of its sink lies beside its own settings."""
    sink = Settings.load(Path(env).with_name("sink.env"))
    Driver(Settings.load(Path(env)), sink, job, launch, number, began, behaviour, name).run()
