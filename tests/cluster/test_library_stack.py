"""A shared library changes under its jobs: shutdown, new library, restart, through Airflow."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import pytest

from demos.fleet.recount import CODES, Key, with_codes
from fresh_fleet import LIBRARY, Fleet
from fresh_job import as_root, wait_for
from streamops.clients.airflow import Airflow
from streamops.model.errors import StreamOpsError
from streamops.operations.follow import Runbooks, request
from streamops.operations.operation import Operation
from streamops.settings import Settings
from streamops.store import jobs, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, libraries
from support import Operator, first_members

pytestmark = [pytest.mark.stack, pytest.mark.long]
PATIENT = {"healthy_timeout_s": 600}  # the machine may be busy with other tests


def new_codes(fleet: Fleet, plain: Container[Key]) -> Counter[str]:
    """How many pings that were written since then have codes, by fleet."""
    return with_codes(fields for key, fields in fleet.points().items() if key not in plain)


@pytest.fixture
def fleet(stack: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """What a failed test would leave to the next ones: a stopped cluster, a running job, a library nothing can use."""
    operator = Operator(stack)
    first_members(operator)
    fleet = Fleet(stack, tmp_path)
    yield fleet
    first_members(operator)
    record = jobs.record(fleet.store, fleet.name)
    if record is not None and record.desired == "running":
        operator.run("cancel_job", fleet.name)
    root = ObjectStore(as_root(stack))  # it is the newest, which a deployment gets that asks for none
    root.delete([info.key for info in root.list(f"{keys.library_versions('fleet_types')}broken/")])


@pytest.mark.timeout(1500)
def test_jobs_come_back_on_the_new_library_and_their_artifacts_stay_as_they_were(
    fleet: Fleet, airflow: Airflow, tmp_path: Path
) -> None:
    runbooks = Runbooks(airflow, fleet.store)

    def run(runbook: str, **asked: Any) -> Operation:
        return runbooks.run(request(runbook, **asked), lambda steps: None)

    def deployment() -> Any:
        return jobs.deployment(fleet.store, fleet.name, 1)

    with fleet.simulator("alpha"), fleet.simulator("beta"):
        asked = {"job": fleet.name, "version": "v1", "addresses": fleet.addresses, "library": "fleet_types/v1"}
        run("deploy_job", **asked, **PATIENT)
        wait_for(lambda: fleet.saved() > 30, 270, "pings of both fleets as points")
        before = deployment()
        assert before.library.label == "fleet_types/v1"

        broken = Path(shutil.copytree(LIBRARY / "v2", tmp_path / "broken"))
        (broken / "library.yaml").write_text("library: fleet_types\nversion: broken\n")
        (broken / "fleet_types.py").write_text("BETA = ALPHA = 'vin string'\n")
        libraries.publish(fleet.store, broken)
        with pytest.raises(
            StreamOpsError, match=r"cannot continue with library fleet_types/broken: sources\.alpha"
        ):  # before anything is touched
            run("shutdown_cluster", library="fleet_types/broken")
        status = fleet.status()
        assert status is not None
        assert status.state == "running"

        done = run("shutdown_cluster", library="fleet_types/v2", stop_timeout_s=120)
        assert set(done.facts("check")["library_verdicts"]) == {fleet.name}
        plain = fleet.points()
        assert plain
        assert not [key for key, fields in plain.items() if CODES in fields]
        run("restart_cluster", **PATIENT)
        wait_for(lambda: set(new_codes(fleet, plain)) == {"alpha", "beta"}, 360, "pings of both fleets with codes")
        after = deployment()
        assert after.library.label == "fleet_types/v2"
        assert after == before.model_copy(update={"library": after.library})
        published = artifacts.load_manifest(fleet.store, fleet.name, "v1")
        assert (after.artifact_sha256, after.runtime_sha256) == (published.artifact_sha256, published.runtime_sha256)
    found = fleet.recounted(plain)
    assert found.clean, found
    run("cancel_job", job=fleet.name)
