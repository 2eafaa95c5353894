"""A copy of trade-analyser under a name, topic and measurements of its own, so that tests do not meet each other."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyspark
from pydantic import SecretStr

from streamops.clients.kafka import Ledger
from streamops.model import records
from streamops.model.errors import UnreachableError
from streamops.model.records import DriverStatus, JobRecord, State
from streamops.recount.recounting import recount_job
from streamops.recount.report import Report
from streamops.settings import ENV_FILE, REPOSITORY, Settings, read_pairs
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts

PLANNING = REPOSITORY / "include" / "streamops"
# Of v3: one stage, and one that reads it, with room for a second driver beside theirs.
SMALL = (
    (re.compile(r"  vol_1s:.*?(?=resources:)", re.DOTALL), ""),
    (re.compile(r"resources: \{cores: 2"), "resources: {cores: 1"),
)


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait on a condition with a deadline: what a busy machine of two cores may need, several times what it takes.

    A deadline finds what hangs, it measures nothing. A server too busy to answer has not said no.
    """
    deadline = time.monotonic() + seconds
    while True:
        unheard = "not"
        try:
            if condition():
                return
        except UnreachableError as error:
            unheard = f"not ({error})"
        assert time.monotonic() < deadline, f"{what} did {unheard} happen in {seconds:g} s"
        time.sleep(0.4)  # looking costs too: at processes, objects and Airflow, on two cores


def as_root(settings: Settings) -> Settings:
    """The same stack's bucket with all rights, which only the stack's own file tells."""
    pairs = read_pairs(Path(os.environ[ENV_FILE]))
    root = {"s3_access_key": pairs["MINIO_ROOT_USER"], "s3_secret_key": SecretStr(pairs["MINIO_ROOT_PASSWORD"])}
    return settings.model_copy(update=root)


def publish_quickly(
    store: ObjectStore, directory: Path, version: str, like: str | None = None, plan: dict[str, Any] | None = None
) -> None:
    """Publish a copy of trade-analyser without asking Spark for its plans again: they are those of the original.

    Args:
        like: the version of trade-analyser whose state it continues, for one of another name.
        plan: its fingerprints, for one that is not a copy.
    """
    done = artifacts.publish(store, directory, version, check=False)
    manifest = artifacts.load_manifest(store, done.job, version)
    known = manifest.model_copy(update={"fingerprints": plan or plans(like or version)})
    documents.write(store, keys.artifact_manifest(done.job, version), known)


@cache
def plans(version: str) -> dict[str, Any]:
    """The fingerprints of trade-analyser, asked of Spark once for each state of the code that makes them."""
    source = REPOSITORY / "spark_jobs" / "trade_analyser"
    made_by = [*source.glob("*"), *(REPOSITORY / "spark_jobs").rglob("*.py"), *PLANNING.rglob("*.py")]
    digest = hashlib.sha256(pyspark.__version__.encode())
    for path in sorted(path for path in set(made_by) if path.is_file()):
        digest.update(path.name.encode() + path.read_bytes())
    kept = REPOSITORY / "build" / "plans" / f"{digest.hexdigest()[:16]}-{version}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        found = artifacts.plans(source, version)
        temporary = kept.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(found))
        temporary.rename(kept)
    return dict(json.loads(kept.read_text()))


@dataclass(frozen=True)
class FreshJob:
    """A published job that nothing else in the tests uses."""

    name: str
    settings: Settings
    store: ObjectStore
    directory: Path
    topic: str
    like: dict[str, str] = field(default_factory=dict)  # version -> that of trade-analyser whose plans it has

    @classmethod
    def publish(
        cls,
        settings: Settings,
        directory: Path,
        versions: tuple[str, ...] = ("v1", "v2"),
        more: str = "",
        topic: str | None = None,
    ) -> FreshJob:
        """Publish copies of trade-analyser's versions, and create their topic.

        Args:
            more: lines that each definition has besides.
            topic: that they read, if not one of their own.
        """
        name = f"trades-{uuid.uuid4().hex[:8]}"
        source, copy = REPOSITORY / "spark_jobs" / "trade_analyser", directory / name
        copy.mkdir(parents=True)
        for code in source.glob("*.py"):
            (copy / code.name).write_text(code.read_text())
        store = ObjectStore(settings)
        topic = topic or name
        with_ledger(settings, lambda ledger: ledger.ensure_topic(topic))
        for version in versions:
            text = (source / f"{version}.yaml").read_text()
            text = text.replace("job: trade-analyser", f"job: {name}").replace("topic: trades", f"topic: {topic}")
            text = text.replace("sources:", "trigger: 3 seconds\nsources:", 1)  # leaves two cores time for the rest
            text = re.sub(r"(?m)^snapshots: .*\n", "", text)  # tests take theirs themselves, or say so in ``more``
            text = re.sub(r"measurement: (\w+)", rf"measurement: {name.replace('-', '_')}_\1", text)
            (copy / f"{version}.yaml").write_text(text + more)
            publish_quickly(store, copy, version)
        return cls(name, settings, store, copy, topic, {version: version for version in versions})

    def vary(self, version: str, like: str, changes: Sequence[tuple[re.Pattern[str], str]] = ()) -> None:
        """Publish a version that is one of those of trade-analyser, with something replaced in its definition."""
        text = (self.directory / f"{like}.yaml").read_text().replace(f"version: {like}", f"version: {version}")
        for old, new in changes:
            text = old.sub(new, text)
        (self.directory / f"{version}.yaml").write_text(text)
        self.like[version] = like
        publish_quickly(self.store, self.directory, version, like=like)

    def publish_again(self) -> None:
        """Its versions, after it was deleted."""
        for version, like in self.like.items():
            publish_quickly(self.store, self.directory, version, like=like)

    @property
    def root(self) -> ObjectStore:
        """The bucket as someone with all rights sees it: the stack, and whoever breaks in."""
        return ObjectStore(as_root(self.settings))

    def destroy(self, key: str) -> None:
        """Leave no version of an object."""
        self.root.delete_versions([version for version in self.root.versions(key) if version.key == key])

    @contextmanager
    def trades(self, rate: int = 500, symbols: int = 20) -> Iterator[None]:
        """Trades arrive while the block runs."""
        command = [sys.executable, "-m", "stack.generator", "--bootstrap", self.settings.kafka_bootstrap_servers]
        command += ["--topic", self.topic, "--rate", str(rate), "--symbols", str(symbols), "--seed", "1"]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "include")}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            wait_for(lambda: self.end() > 0, 90, "the first trade")
            yield
        finally:
            process.terminate()
            process.wait(20)

    def end(self) -> int:
        """How many trades were written to the topic."""
        return sum(with_ledger(self.settings, lambda ledger: ledger.end_offsets(self.topic)).values())

    def record(self) -> JobRecord:
        """The job record, without the fence that each operation raises; an empty one before the first deploy."""
        found = documents.read(self.store, keys.record(self.name), JobRecord)
        return found.value.model_copy(update={"fence": 0}) if found else JobRecord(job=self.name)

    def status(self) -> DriverStatus | None:
        """What the driver named in the record says of itself."""
        launch = self.record().launch
        found = documents.read(self.store, keys.status(self.name, launch), DriverStatus) if launch else None
        return found.value if found else None

    def runs(self, version: str) -> bool:
        """Whether this version runs now, and its driver has spoken within the last seconds."""
        record, status = self.record(), self.status()
        if status is None or record.version != version or record.desired != "running":
            return False
        fresh = (records.now() - status.updated).total_seconds() < 10
        return fresh and status.state == State.RUNNING and status.version == version

    def read(self) -> int:
        """The lowest committed offset of the stages that read trades."""
        status = self.status()
        stages = status.stages.values() if status else ()
        offsets = [stage.offsets["trades"] for stage in stages if "trades" in stage.offsets]
        return min((sum(parts.values()) for parts in offsets), default=0)

    def caught_up(self, seconds: float = 180) -> None:
        """Wait until every stage has committed what is on the topic now."""
        end = self.end()
        wait_for(lambda: self.read() >= end, seconds, f"{self.name} reading up to {end}")

    def recount(self) -> Report:
        """What was written, compared with the topic."""
        return recount_job(self.settings, self.store, self.name)


def with_ledger(settings: Settings, use: Callable[[Ledger], object]):
    """Call ``use`` with a ledger and close it."""
    ledger = Ledger(settings)
    try:
        return use(ledger)
    finally:
        ledger.close()
