"""What the first steps of the runbooks of the cluster ask before anything is touched."""

from __future__ import annotations

from streamops.cluster.capacity import Need
from streamops.model.errors import DefinitionError, RefusedError
from streamops.model.records import JobRecord
from streamops.operations.ports import Ports
from streamops.store import jobs
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, compatibility, libraries, verdicts

MASTER = "master"


def known(store: ObjectStore) -> list[JobRecord]:
    """The records of all jobs that were ever deployed."""
    found = (jobs.record(store, name) for name in jobs.names(store))
    return [record for record in found if record is not None and record.deployment]


def should_run(store: ObjectStore) -> list[JobRecord]:
    """The records of the jobs that should run."""
    return [record for record in known(store) if record.desired == "running"]


def library_verdicts(store: ObjectStore, library: str, coming: list[JobRecord]) -> dict[str, dict[str, str]]:
    """What becomes of the state of each job that uses the library, by job and stage.

    Their plans are built with the new version.

    Raises:
        RefusedError: the state of a job could not be continued; NotFoundError: there is no such version.
    """
    name, version = library.split("/")
    new = libraries.load(store, name, version).use
    found = {}
    for record in coming:
        deployment = jobs.deployment(store, record.job, record.deployment)
        artifact = artifacts.load_manifest(store, record.job, deployment.version)
        old = deployment.library
        if old is None or old.name != name or old == new:
            continue
        try:
            before, after = (artifacts.plans_with(store, artifact, use) for use in (old, new))
            told = verdicts.require(compatibility.verdicts(before, after, version=f"{record.job} on {library}"), ())
        except (RefusedError, DefinitionError) as error:
            raise RefusedError(f"{record.job} cannot continue with library {library}: {error}") from None
        found[record.job] = told["verdicts"]
    if not found:
        raise RefusedError(f"No running job would get another library with {library}; leave it out.")
    return found


def needs(ports: Ports) -> list[Need]:
    """What the jobs that should run need."""
    found = []
    for record in should_run(ports.store):
        deployment = jobs.deployment(ports.store, record.job, record.deployment)
        defined = artifacts.load_manifest(ports.store, record.job, deployment.version).definition
        definition = defined.with_resources(deployment.resources)
        found.append(Need(record.job, definition.resources, definition.spark_settings))
    return found
