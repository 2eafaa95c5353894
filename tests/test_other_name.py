"""The same code as another job: published under its name by the operation, never on the points of one that runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes.rig import JOB, Rig, patient
from streamops.model.errors import DefinitionError, NotFoundError, PublishedError, RefusedError
from streamops.operations.operation import Operation
from streamops.operations.requests import NewVersion
from streamops.store import documents, jobs, keys
from streamops.versions import archives, artifacts

EU = "sums-eu"


@pytest.fixture
def coded(rig: Rig) -> Rig:
    """The rig's versions with archives that hold code; v1 runs."""
    for version in ("v1", "v2"):
        artifact = archives.pack({"code/sums.py": version.encode(), "definition.json": b"{}"})
        found = artifacts.load_manifest(rig.store, JOB, version)
        found = found.model_copy(update={"artifact_sha256": archives.sha256(artifact)})
        rig.store.put(found.archive, artifact)
        documents.write(rig.store, keys.artifact_manifest(JOB, version), found)
    rig.run("deploy_job", version="v1")
    return rig


def as_eu(rig: Rig, runbook: str, version: str, **more: Any) -> Operation:
    asked = patient(runbook, job=EU, version=version, code_of=JOB, **more)
    assert isinstance(asked, NewVersion)
    owner = rig.owner()
    return rig.engine().run(asked, owner, f"{runbook}-{rig.count}")


def test_it_is_a_job_of_its_own_with_measurements_of_its_own(coded: Rig) -> None:
    rig, before = coded, coded.record()
    with pytest.raises(RefusedError, match=r"Job sums runs and writes a: .*measurement_prefix"):
        as_eu(rig, "deploy_job", "v1")
    with pytest.raises(NotFoundError, match="no version v9"):
        as_eu(rig, "deploy_job", "v9", measurement_prefix="eu_")
    with pytest.raises(DefinitionError, match="belong to restore tests"):
        rig.engine().run(patient("deploy_job", job="scratch-x", version="v1", code_of=JOB), rig.owner(), "scratch")
    assert artifacts.versions(rig.store, EU) == []  # what is refused publishes nothing

    done = as_eu(rig, "deploy_job", "v1", measurement_prefix="eu_")
    made = artifacts.load_manifest(rig.store, EU, "v1")
    assert (made.publisher.user, made.publisher.place) == ("ada", f"operation {done.id}")
    assert f"{EU} v1 ({made.artifact_sha256[:12]}) was {made.origin}" in rig.said  # so its first run's log says it
    made = artifacts.load_manifest(rig.store, EU, "v1")
    assert (made.job, made.definition.job, made.definition.measurements) == (EU, EU, ("eu_a",))
    files = archives.unpack(rig.store.get(artifacts.load_manifest(rig.store, EU, "v1").archive).body)
    assert files["code/sums.py"] == b"v1"
    assert json.loads(files["definition.json"])["job"] == EU
    deployed = jobs.deployment(rig.store, EU, 1)
    assert (deployed.artifact_sha256, deployed.version) == (made.artifact_sha256, "v1")
    assert f"{EU} v1 is the code of {JOB} v1 ({made.artifact_sha256[:12]})" in rig.said
    assert rig.record() == before
    assert len(rig.cluster.alive()) == 2

    assert as_eu(rig, "deploy_job", "v1", measurement_prefix="eu_").facts("check")["unchanged"] is True
    with pytest.raises(PublishedError, match="choose a new version name"):
        as_eu(rig, "deploy_job", "v1", measurement_prefix="asia_")


@pytest.mark.full
def test_it_is_upgraded_to_another_version_of_that_code(coded: Rig) -> None:
    rig = coded
    as_eu(rig, "deploy_job", "v1", measurement_prefix="eu_")
    as_eu(rig, "upgrade_job", "v2", measurement_prefix="eu_", snapshot="s", recount=False)
    record = jobs.record(rig.store, EU)
    assert record is not None
    assert (record.version, record.desired) == ("v2", "running")
    assert artifacts.load_manifest(rig.store, EU, "v2").definition.measurements == ("eu_a", "eu_b")
    rig.commits_more()


@pytest.mark.full
def test_it_may_take_over_the_measurements_of_a_job_that_was_stopped(coded: Rig) -> None:
    rig = coded
    rig.run("snapshot_job", snapshot="SavePoint1", cancel=True)
    as_eu(rig, "deploy_job", "v2", from_snapshot=f"{JOB}/SavePoint1", fork=True)
    assert artifacts.load_manifest(rig.store, EU, "v2").definition.measurements == ("a", "b")
    assert jobs.deployment(rig.store, EU, 1).from_snapshot == f"{JOB}/SavePoint1"
    with pytest.raises(RefusedError, match="Job sums-eu runs and writes a, b"):
        rig.engine().run(patient("deploy_job", job="third", version="v2", code_of=JOB), rig.owner(), "third")
