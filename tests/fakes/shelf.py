"""A job's checkpoints and snapshots without any process: batches are run, and snapshots taken, by the test itself."""

from __future__ import annotations

from collections.abc import Callable

from fakes import object_server
from fakes.driver import Stage
from fakes.rig import Killed, Runs, definition
from streamops import snapshots
from streamops.model import records
from streamops.model.manifest import Manifest
from streamops.model.owner import Owner
from streamops.model.records import Deployment, JobRecord, StageStart
from streamops.operations import runbooks
from streamops.operations.engine import AtPoint, Engine
from streamops.operations.operation import Operation, Request
from streamops.operations.ports import Ports
from streamops.settings import Settings
from streamops.snapshots import Origin
from streamops.spark import checkpoints
from streamops.store import documents, jobs, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import archives
from streamops.versions.artifacts import ArtifactManifest

JOB = "sums"
STAGES = ("a", "b")


ADA = Owner(kind="airflow", dag_id="runbook", run_id="run", user="ada")


def engine(store: ObjectStore, retention: ObjectStore, at_point: AtPoint = lambda step, when: None) -> Engine:
    """For operations that neither put anything on the cluster nor read a topic."""
    nothing: dict[str, object] = {"submitter": None, "ledger": None, "recount": None}
    return Engine(Ports(store=store, owners=Runs(), retention=lambda: retention, **nothing), at_point=at_point)


def killed_everywhere(of: Callable[[AtPoint], Engine], asked: Request, name: str = "op") -> Operation:
    """A DAG run's tasks, killed at each point that they reach for the first time, and tried again."""
    points: list[tuple[str, str]] = []

    def at_point(step: str, when: str) -> None:
        if (step, when) not in points:
            points.append((step, when))
            raise Killed

    while True:
        made = of(at_point)
        try:
            made.begin(asked, ADA, name)
            for task in runbooks.of(asked).tasks:
                made.run_task(asked.job, name, task)
            made.release(asked.job, name)
            break
        except Killed:
            continue
    assert points == [(step.name, when) for step in runbooks.of(asked).plan(asked) for when in ("before", "after")]
    found = made.find(asked.job, name)
    assert found is not None
    assert found.state == "succeeded"
    return found


class Shelf:
    """One job with one deployment, whose two stages have state laid out like Spark's."""

    def __init__(self, settings: Settings, job: str = JOB) -> None:
        self.settings, self.job = settings, job
        self.store = ObjectStore(settings)
        self.retention = ObjectStore(settings.for_retention())
        self.root = ObjectStore(object_server.as_root(settings))  # someone with all rights
        self.driver = ObjectStore(object_server.as_job(settings))
        self.s3 = object_server.client(object_server.as_root(settings))
        self.count = 0
        self.deploy(1)

    def deploy(self, number: int, from_snapshot: str | None = None) -> None:
        """A new deployment with an empty checkpoint, which is the current one from now on."""
        deployment = Deployment(
            job=self.job, number=number, version=f"v{number}", artifact_sha256="a" * 64, runtime_sha256="r" * 64,
            created=records.now(), created_by="test", from_snapshot=from_snapshot,
            stages={name: StageStart(since_deployment=number) for name in STAGES},
        )  # fmt: skip
        documents.write(self.store, keys.deployment(self.job, number), deployment)
        record = JobRecord(job=self.job, desired="running", version=f"v{number}", deployment=number)
        documents.write(self.store, keys.record(self.job), record)
        checkpoints.mark_ready(self.store, keys.epoch_ready(self.job, number, 1), {}, "nothing")
        self.number = number
        place = {name: keys.stage(self.job, number, 1, name) for name in STAGES}
        self.stages = [Stage(self.driver, self.root, self.job, name, place[name], 0) for name in STAGES]

    def publish(self, code: bytes, runtime: bytes) -> None:
        """The version of the current deployment, which runs just that."""
        made = ArtifactManifest(
            job=self.job, version=f"v{self.number}", artifact_sha256=archives.sha256(code), size=len(code),
            runtime_sha256=archives.sha256(runtime), definition=definition(f"v{self.number}", STAGES, job=self.job),
            published=records.now(),
        )  # fmt: skip
        self.store.put(made.archive, code)
        self.store.put(keys.runtime(made.runtime_sha256), runtime)
        documents.write(self.store, keys.artifact_manifest(self.job, made.version), made)
        hashes = {"artifact_sha256": made.artifact_sha256, "runtime_sha256": made.runtime_sha256}
        deployment = jobs.deployment(self.store, self.job, self.number).model_copy(update=hashes)
        documents.write(self.store, keys.deployment(self.job, self.number), deployment)

    def batches(self, count: int = 1) -> None:
        """So many more batches of each stage."""
        for _ in range(count):
            for stage in self.stages:
                stage.run_batch(stage.offset + 7, lambda: None)

    def export(self, name: str, attempt: str | None = None, **more: object) -> Manifest:
        """Copied, but not a snapshot yet."""
        self.count += 1
        deployment = jobs.deployment(self.store, self.job, self.number)
        names = [stage.name for stage in self.stages]
        made = snapshots.Export(self.store, deployment, attempt or f"attempt-{self.count}")
        return made.run(name, names, Origin("op", "ada"), live=True, **more)

    def take(self, name: str) -> Manifest:
        """A snapshot."""
        manifest = self.export(name)
        snapshots.commit_manifest(self.store, manifest)
        return manifest

    def overwrite(self, key: str, body: bytes) -> None:
        """What someone can do who may write."""
        self.s3.put_object(Bucket=self.settings.s3_bucket, Key=key, Body=body, ChecksumAlgorithm="SHA256")

    def destroy(self, key: str) -> None:
        """What only someone with all rights can do: no version is left."""
        self.root.delete_versions([version for version in self.root.versions(key) if version.key == key])

    def alter(self, key: str, body: bytes) -> None:
        """Other bytes, and nothing of what was there: as an object store without versions would be left."""
        self.destroy(key)
        self.overwrite(key, body)

    def bytes_kept(self) -> int:
        """Of all versions of all data objects of the job."""
        return sum(version.size for version in self.store.versions(keys.snapshots_data(self.job)))
