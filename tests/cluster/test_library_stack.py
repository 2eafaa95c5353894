"""A shared library changes under its jobs: shutdown, new library, restart, through Airflow."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from demos.fleet.recount import CODES, Key, with_codes
from fresh_fleet import LIBRARY, Fleet
from fresh_job import as_root, wait_for
from streamops.clients.airflow import Airflow
from streamops.model.errors import StreamOpsError
from streamops.model.records import Deployment
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
def fleets(stack: Settings, tmp_path: Path) -> Iterator[list[Fleet]]:
    """Two jobs that use the library.

    What a failed test would leave to the next ones goes: a stopped cluster, running jobs, a library nothing can use.
    """
    operator = Operator(stack)
    first_members(operator)
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
    found = [Fleet(stack, place) for place in places]
    yield found
    first_members(operator)
    for fleet in found:
        record = jobs.record(fleet.store, fleet.name)
        if record is not None and record.desired == "running":
            operator.run("cancel_job", fleet.name)
    root = ObjectStore(as_root(stack))  # it is the newest, which a deployment gets that asks for none
    root.delete([info.key for info in root.list(f"{keys.library_versions('fleet_types')}broken/")])


@pytest.mark.timeout(1500)
def test_jobs_come_back_on_the_new_library_and_their_artifacts_stay_as_they_were(
    fleets: list[Fleet], airflow: Airflow, tmp_path: Path
) -> None:
    store = fleets[0].store
    runbooks = Runbooks(airflow, store)

    def run(runbook: str, **asked: Any) -> Operation:
        return runbooks.run(request(runbook, **asked), lambda steps: None)

    def deployments() -> list[Deployment]:
        return [jobs.deployment(store, fleet.name, 1) for fleet in fleets]

    with ExitStack() as stack:
        for fleet in fleets:
            stack.enter_context(fleet.simulator("alpha"))
            stack.enter_context(fleet.simulator("beta"))
            asked = {"job": fleet.name, "version": "v1", "addresses": fleet.addresses, "library": "fleet_types/v1"}
            run("deploy_job", **asked, **PATIENT)
        for fleet in fleets:
            wait_for(lambda fleet=fleet: fleet.saved() > 30, 270, "pings of both fleets as points")
        before = deployments()
        assert [found.library.label for found in before] == ["fleet_types/v1"] * 2

        broken = Path(shutil.copytree(LIBRARY / "v2", tmp_path / "broken"))
        (broken / "library.yaml").write_text("library: fleet_types\nversion: broken\n")
        (broken / "fleet_types.py").write_text("BETA = ALPHA = 'vin string'\n")
        libraries.publish(store, broken)
        with pytest.raises(
            StreamOpsError, match=r"cannot continue with library fleet_types/broken: sources\.alpha"
        ):  # before anything is touched
            run("shutdown_cluster", library="fleet_types/broken")
        assert [status and status.state for status in map(Fleet.status, fleets)] == ["running"] * 2

        done = run("shutdown_cluster", library="fleet_types/v2", stop_timeout_s=120)
        assert set(done.facts("check")["library_verdicts"]) == {fleet.name for fleet in fleets}
        plain = [fleet.points() for fleet in fleets]
        assert all(plain)
        assert not [key for points in plain for key, fields in points.items() if CODES in fields]
        run("restart_cluster", **PATIENT)
        for fleet, old in zip(fleets, plain, strict=True):
            wait_for(
                lambda fleet=fleet, old=old: set(new_codes(fleet, old)) == {"alpha", "beta"},
                360,
                "pings of both fleets with codes",
            )
        after = deployments()
        assert [found.library.label for found in after] == ["fleet_types/v2"] * 2
        for fleet, old, new in zip(fleets, before, after, strict=True):
            assert new == old.model_copy(update={"library": new.library, "library_since": new.library_since})
            assert set(new.library_since["vehicles"]) == {"alpha", "beta"}
            published = artifacts.load_manifest(store, fleet.name, "v1")
            hashes = (published.artifact_sha256, published.runtime_sha256)
            assert (new.artifact_sha256, new.runtime_sha256) == hashes
    for fleet, old in zip(fleets, plain, strict=True):
        found = fleet.recounted(old)
        assert found.clean, found
        report = fleet.report()  # of what has come since there are codes: what the library before gave has none
        assert report.clean, report
        assert "obd_codes" in {item.field for item in report.measurements}
        run("cancel_job", job=fleet.name)
