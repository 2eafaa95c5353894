"""Where everything lies in the bucket. No other module spells a key."""

from streamops.model.names import CLUSTER, checked

UPLOAD = "upload-"  # begins, in the place of an attempt's name, the name of an archive that is to be imported

# Of no single job: prefixes, and the cluster's two documents.
ARTIFACTS = "artifacts/"  # all published versions of all jobs
LIBRARIES = "libraries/"  # all shared libraries
JOBS = "jobs/"  # all job records
SNAPSHOTS = "snapshots/"  # everything that belongs to snapshots
CLUSTER_RECORD = "cluster/record.json"  # what should be of the cluster: its nodes, and the jobs that a shutdown stopped
INVENTORY = "cluster/inventory.json"  # which nodes there are, for hosts that have no file of them


def artifact(job: str, version: str, sha256: str | None) -> str:
    """The archive of a published version: named by its hash, or as before manifests of format 2 (None)."""
    return f"{versions(job)}{checked('version', version)}/{sha256 or 'artifact'}.zip"


def artifact_manifest(job: str, version: str) -> str:
    """Written last at publish; a version exists when this object exists."""
    return f"{versions(job)}{checked('version', version)}/manifest.json"


def runtime(sha256: str) -> str:
    """The runner and its Python dependencies, shared by all versions published with the same bytes."""
    return f"runtimes/{sha256}.zip"


def library_versions(library: str) -> str:
    """Prefix of all published versions of a shared library."""
    return f"{LIBRARIES}{checked('library', library)}/"


def library(library: str, version: str, sha256: str | None) -> str:
    """The archive of a version of a shared library: named by its hash, or as before manifests of format 2 (None)."""
    return f"{library_versions(library)}{checked('version', version)}/{sha256 or 'library'}.zip"


def library_manifest(library: str, version: str) -> str:
    """Written last; a version of a shared library exists when this object exists."""
    return f"{library_versions(library)}{checked('version', version)}/manifest.json"


def versions(job: str) -> str:
    """Prefix of all published versions of a job."""
    return f"{ARTIFACTS}{checked('job', job)}/"


def _home(scope: str) -> str:
    """Prefix of what operations keep about their object: a job, or the cluster."""
    return "cluster/" if scope == CLUSTER else f"jobs/{checked('job', scope)}/"


def record(job: str) -> str:
    """The job record."""
    return f"jobs/{checked('job', job)}/record.json"


def lease(job: str) -> str:
    """The right to write."""
    return f"jobs/{checked('job', job)}/lease.json"


def lock(job: str) -> str:
    """The operation lock of a job, or of the cluster."""
    return f"{_home(job)}lock.json"


def operations(job: str) -> str:
    """Prefix of the operation objects of a job, or of the cluster."""
    return f"{_home(job)}operations/"


def operation(job: str, operation_id: str) -> str:
    """One operation object."""
    return f"{operations(job)}{checked('snapshot', operation_id)}.json"


def receipts(job: str) -> str:
    """Prefix of the receipts of a job, or of the cluster."""
    return f"{_home(job)}receipts/"


def receipt(job: str, operation_id: str) -> str:
    """One receipt."""
    return f"{receipts(job)}{checked('snapshot', operation_id)}.json"


def told(job: str, operation_id: str) -> str:
    """The log of an operation that a command carried out; that of a DAG run is Airflow's."""
    return f"{_home(job)}told/{checked('snapshot', operation_id)}.log"


def rehearsals(job: str) -> str:
    """Prefix of what rehearsals of a job found."""
    return f"jobs/{checked('job', job)}/rehearsals/"


def rehearsal(job: str, operation_id: str) -> str:
    """What one rehearsal found."""
    return f"{rehearsals(job)}{checked('snapshot', operation_id)}.json"


def deployments(job: str) -> str:
    """Prefix of a job's deployment records."""
    return f"jobs/{checked('job', job)}/deployments/"


def deployment(job: str, number: int) -> str:
    """One deployment record."""
    return f"{deployments(job)}{number:06d}.json"


def control(job: str, launch: str) -> str:
    """The control object that the driver of this launch watches."""
    return f"jobs/{checked('job', job)}/launches/{checked('snapshot', launch)}/control.json"


def status(job: str, launch: str) -> str:
    """What the driver of this launch publishes about itself."""
    return f"jobs/{checked('job', job)}/launches/{checked('snapshot', launch)}/status.json"


def launches(job: str) -> str:
    """Prefix of what the launches of a job were told and have published."""
    return f"jobs/{checked('job', job)}/launches/"


def names_in(prefixes: list[str]) -> list[str]:
    """The names that prefixes end with: of jobs, of versions, of launches."""
    return [prefix.rstrip("/").rsplit("/", 1)[1] for prefix in prefixes]


def logs(job: str) -> str:
    """Prefix of everything that the drivers of a job have logged."""
    return f"jobs/{checked('job', job)}/logs/"


def log_chunk(job: str, driver: str, number: int) -> str:
    """Some lines of one driver process; ``driver`` begins with its start, so that keys are in the order of time."""
    return f"{logs(job)}{checked('snapshot', driver)}/{number:08d}.jsonl"


def removable(job: str) -> dict[str, tuple[str, ...]]:
    """Prefixes of what belongs to a job, by what it is.

    Operations and receipts stay as the record of what was done, and the lease, so that nobody who held it writes again.
    """
    name = checked("job", job)
    return {
        "checkpoints": (f"checkpoints/{name}/",),
        "snapshots": (f"snapshots/{name}/",),
        "logs": (logs(job),),
        "deployments": (deployments(job), launches(job), every_result(job), rehearsals(job)),
        "versions": (versions(job),),
        "record": (record(job),),  # last: as long as it is there, the job is
    }


def results(job: str, stage: str) -> str:
    """How far a stage's results topic was written to its sink, and whose results count."""
    return f"{every_result(job)}{checked('stage', stage)}.json"


def shadow(job: str, stage: str) -> str:
    """Since when the results of a version that may not write yet wait in the stage's results topic."""
    return f"{every_result(job)}{checked('stage', stage)}.shadow.json"


def feed(job: str, stage: str, deployment: int) -> str:
    """What must be remembered of the feed through which a stage is read by others of a deployment."""
    return f"{every_result(job)}{checked('stage', stage)}.feed-{deployment}.json"


def every_result(job: str) -> str:
    """Prefix of what ``results`` names."""
    return f"jobs/{checked('job', job)}/results/"


def quarantine(job: str) -> str:
    """Prefix of the points that sinks refused."""
    return f"{every_result(job)}quarantine/"


def corrections(job: str, sha256: str) -> str:
    """A file of corrected points, by its hash; it stays, so that one can see what was written."""
    return f"{every_result(job)}corrections/{sha256}.jsonl"


def refused(job: str, stage: str, digest: str) -> str:
    """Points of a stage that one write refused; ``digest`` is of them, so that the same ones stand there once."""
    return f"{quarantine(job)}{checked('stage', stage)}/{digest}.json"


def results_topic(job: str, stage: str) -> str:
    """The topic through which a real-time stage's results leave Spark."""
    return f"{results_topics(job)}{checked('stage', stage)}"


def feed_topic(job: str, stage: str, deployment: int) -> str:
    """The topic through which other stages of a deployment read a stage's results."""
    return f"{feed_topics(job, deployment)}{checked('stage', stage)}"


def feed_topics(job: str, deployment: int) -> str:
    """What the names of a deployment's feeds begin with; they are among the job's results topics."""
    return f"{results_topics(job)}feed.{deployment}."


def warm_up_topics(job: str, launch: str) -> str:
    """What the names of the topics of a launch's warm-up begin with; they are among the job's results topics."""
    return f"{results_topics(job)}warm-up.{launch}."


def results_topics(job: str) -> str:
    """What the names of a job's results topics begin with; no other job's do."""
    return f"streamops.results.{checked('job', job)}."


def second_driver(job: str, launch: str) -> str:
    """What the second driver of a launch says of itself while the first one works."""
    return f"jobs/{checked('job', job)}/launches/{checked('snapshot', launch)}/second.json"


def warm_up(job: str, launch: str) -> str:
    """Prefix of what a standby writes to warm up, and removes."""
    return f"jobs/{checked('job', job)}/launches/{checked('snapshot', launch)}/warm-up/"


def checkpoints(job: str, deployment: int) -> str:
    """Prefix of all epochs of a deployment."""
    return f"checkpoints/{checked('job', job)}/{deployment:06d}/"


def epoch(job: str, deployment: int, epoch: int) -> str:
    """Prefix of the checkpoints that one lease holder writes."""
    return f"{checkpoints(job, deployment)}e{epoch:06d}/"


def epoch_ready(job: str, deployment: int, epoch_number: int) -> str:
    """Written once the epoch's checkpoints are completely in place; an epoch without it never counts."""
    return f"{epoch(job, deployment, epoch_number)}ready.json"


def stage(job: str, deployment: int, epoch_number: int, stage: str) -> str:
    """A stage's checkpoint: the directory that Spark owns."""
    return f"{epoch(job, deployment, epoch_number)}{checked('stage', stage)}/"


def snapshots(job: str) -> str:
    """Prefix of the manifests of a job's snapshots."""
    return f"{SNAPSHOTS}{checked('job', job)}/manifests/"


def manifest(job: str, snapshot: str) -> str:
    """The manifest; a snapshot exists when this object exists."""
    return f"{snapshots(job)}{checked('snapshot', snapshot)}.json"


def snapshot_data(job: str, attempt: str, stage: str) -> str:
    """Prefix of one stage's objects, unique to the attempt that copied them."""
    return f"snapshots/{checked('job', job)}/data/{checked('snapshot', attempt)}/{checked('stage', stage)}/"


def snapshot_draft(job: str, attempt: str) -> str:
    """The manifest of an attempt that is not a snapshot yet."""
    return f"snapshots/{checked('job', job)}/data/{checked('snapshot', attempt)}/manifest.json"


def snapshot_upload(job: str, sha256: str) -> str:
    """An archive that is to be imported, by its hash; under a prefix as if it were an attempt's, for retention."""
    return f"{snapshots_data(job)}{UPLOAD}{sha256[:32]}/archive.tar"


def snapshots_data(job: str) -> str:
    """Prefix of the objects of all attempts of a job."""
    return f"snapshots/{checked('job', job)}/data/"


def removed_snapshots(job: str) -> str:
    """Prefix of what is remembered of removed snapshots while they can be brought back."""
    return f"snapshots/{checked('job', job)}/removed/"


def removed_snapshot(job: str, snapshot: str) -> str:
    """One removed snapshot."""
    return f"{removed_snapshots(job)}{checked('snapshot', snapshot)}.json"


def snapshot_pin(job: str, snapshot: str) -> str:
    """Says that a snapshot must be kept, and why."""
    return f"snapshots/{checked('job', job)}/pins/{checked('snapshot', snapshot)}.json"


def snapshot_checks(job: str) -> str:
    """Prefix of what verifications found."""
    return f"snapshots/{checked('job', job)}/checks/"


def snapshot_check(job: str, snapshot: str) -> str:
    """When a snapshot was last verified, how, and what was found."""
    return f"{snapshot_checks(job)}{checked('snapshot', snapshot)}.json"


def snapshot_schedule(job: str) -> str:
    """What the schedule of a job's snapshots last did."""
    return f"snapshots/{checked('job', job)}/schedule.json"


# --- what the object store's policies name: * stands for anything, slashes included

EVERYTHING = ("*",)

# What drivers fetch when they start: published versions, runtimes and shared libraries.
EVERY_ARTIFACT = ("artifacts/*", "runtimes/*", "libraries/*")

# What Spark owns: the checkpoints of all jobs, and those of warm-ups.
EVERY_CHECKPOINT = ("checkpoints/*", "jobs/*/launches/*/warm-up/*")

# What Spark's file system looks at above a checkpoint, where no object is: it asks for each name on the way.
EVERY_CHECKPOINT_ANCESTOR = ("checkpoints", "jobs")

# What is kept of all jobs: records, leases, locks, operations, launches, logs.
EVERY_JOB = ("jobs/*",)

# What drivers say of themselves for a while and remove again: the second driver's state, and old chunks of logs.
EVERY_DRIVER_SCRAP = ("jobs/*/launches/*/second.json", "jobs/*/logs/*")

# What drivers say of themselves: leases, states and logs.
EVERY_DRIVER_NOTE = (
    *("jobs/*/lease.json", "jobs/*/launches/*/status.json", "jobs/*/results/*"),
    *EVERY_DRIVER_SCRAP,
)

# What is written over or removed again and again for as long as a job runs; only what is there now counts.
UNVERSIONED = (
    "checkpoints/",
    *("jobs/*/launches/", "jobs/*/results/", "jobs/*/logs/", "jobs/*/lease.json", "jobs/*/lock.json"),
    *("cluster/lock.json", "snapshots/*/schedule.json"),
)

# How many days versions are kept that were written over or deleted, by prefix; elsewhere for as long as needed.
OLD_VERSIONS_DAYS = {"checkpoints/": 1, "jobs/": 14, "cluster/": 14}

# The operation locks of all jobs.
EVERY_LOCK = ("jobs/*/lock.json",)

# By what a snapshot is in the catalogue, or among the removed ones.
EVERY_SNAPSHOT_ENTRY = ("snapshots/*/manifests/*", "snapshots/*/removed/*")

# What ``removable`` names, of all jobs.
EVERY_REMOVABLE = (
    *("checkpoints/*", "snapshots/*", "artifacts/*"),
    *("jobs/*/logs/*", "jobs/*/deployments/*", "jobs/*/launches/*", "jobs/*/results/*", "jobs/*/rehearsals/*"),
    *("jobs/*/lease.json", "jobs/*/record.json"),
)
