"""The operation lock: never taken over from an owner that may live."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from streamops.model.errors import LockedError
from streamops.model.owner import Owner
from streamops.model.records import now
from streamops.settings import Settings
from streamops.store import locks, waiting
from streamops.store.object_store import ObjectStore

RUN = Owner(kind="airflow", dag_id="d", run_id="r", user="ada")
SHELL = Owner(kind="cli", run_id="c", user="bob")


def take(
    store: ObjectStore, operation: str, owner: Owner = RUN, finished: bool | None = None, ahead: float = 0
) -> locks.Lock:
    """``ahead``: minutes that the clock of who takes it is ahead of the others'."""
    moment = now() + timedelta(minutes=ahead)
    return locks.acquire(store, "job", operation, "deploy_job", owner, lambda owner: finished, moment)


@pytest.fixture
def store(bucket: Settings) -> ObjectStore:
    return ObjectStore(bucket)


def test_of_many_that_try_at_once_one_gets_it(store: ObjectStore) -> None:
    def attempt(number: int) -> bool:
        try:
            take(store, f"op-{number}", SHELL)
        except LockedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(16))) == 1


def test_who_is_beaten_to_it_is_told_by_whom(store: ObjectStore) -> None:
    take(store, "one")

    def beaten(owner: Owner) -> bool:  # asked about operation one, between the look at the lock and the write
        take(store, "two", SHELL, finished=True)
        return True

    with pytest.raises(LockedError, match=r"Operation two \(deploy_job\) of command line c of bob holds job job"):
        locks.acquire(store, "job", "three", "deploy_job", RUN, beaten, now())


@pytest.mark.parametrize("finished", [False, None])
def test_a_dag_run_that_lives_or_is_unknown_keeps_its_lock_however_old(
    store: ObjectStore, finished: bool | None
) -> None:
    take(store, "one")
    with pytest.raises(LockedError, match="DAG run d/r of ada"):
        take(store, "two", finished=finished, ahead=10_000)


def test_the_lock_of_a_finished_dag_run_is_taken_over_and_the_abandoned_operation_named(store: ObjectStore) -> None:
    take(store, "one")
    assert take(store, "two", finished=True).abandoned == "one"
    with pytest.raises(LockedError, match="two does"):
        locks.renew(store, "job", "one", now(), fence=1)
    assert not locks.release(store, "job", "one")


@pytest.mark.full
def test_a_shells_lock_expires_only_without_renewal(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "EXPIRY", timedelta(seconds=10))  # the interval that is measured
    take(store, "one", SHELL)

    def age() -> timedelta:
        return locks.read(store, "job").age

    assert waiting.until(lambda: age() >= timedelta(seconds=5), 60, 0.1)
    locks.renew(store, "job", "one", now(), fence=1)
    assert age() < timedelta(seconds=5)
    with pytest.raises(LockedError, match="command line c of bob"):
        take(store, "two", SHELL)
    assert waiting.until(lambda: age() > timedelta(seconds=10), 60, 0.1)
    assert take(store, "two", SHELL).operation == "two"


@pytest.mark.parametrize("ahead", [-600, -10, 10, 600])
def test_clocks_of_hosts_that_differ_neither_take_a_lock_from_its_owner_nor_keep_it(
    store: ObjectStore, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(store, "one", SHELL, ahead=ahead)
    with pytest.raises(LockedError):
        take(store, "two", SHELL)
    monkeypatch.setattr(locks, "EXPIRY", timedelta(seconds=-1))  # it is over
    assert take(store, "two", SHELL, ahead=-ahead).operation == "two"


def test_no_abandoned_operation_is_forgotten_however_many_there_are(store: ObjectStore) -> None:
    take(store, "one")
    take(store, "two", finished=True)  # and is abandoned before it has settled one
    third = take(store, "three", finished=True)
    assert third.unsettled == ("one", "two")
    left = locks.renew(store, "job", "three", now(), fence=third.fence, settled=("one",))
    assert left.unsettled == ("two",)
    locks.release(store, "job", "three")
    assert locks.read(store, "job").value.unsettled == ("two",)
    assert take(store, "two").unsettled == ()  # that is on with it itself


def test_taking_it_again_is_no_conflict_and_a_released_lock_is_free(store: ObjectStore) -> None:
    take(store, "one")
    assert take(store, "one").operation == "one"
    assert locks.release(store, "job", "one")
    assert take(store, "two").abandoned is None
