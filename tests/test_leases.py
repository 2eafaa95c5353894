"""The lease on a real object store: one writer at a time, epochs that only grow."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from fakes.fixtures import bucket, object_store_server  # noqa: F401
from streamops.model.errors import ConflictError, LeaseLostError, UnhealthyError
from streamops.model.records import JobRecord, Lease
from streamops.settings import Settings
from streamops.store import documents, keys, leases
from streamops.store.object_store import ObjectStore


@pytest.fixture
def store(bucket: Settings) -> ObjectStore:  # noqa: F811
    return ObjectStore(bucket)


@pytest.fixture
def record(store: ObjectStore) -> JobRecord:
    job = f"job-{uuid.uuid4().hex[:8]}"
    value = JobRecord(job=job, desired="running", version="v1", deployment=1, last_deployment=1, launch="first")
    documents.write(store, keys.record(job), value)
    return value


def stored(store: ObjectStore, job: str) -> Lease:
    found = documents.read(store, keys.lease(job), Lease)
    assert found
    return found.value


def test_two_processes_of_one_launch_race_and_get_different_epochs(store: ObjectStore, record: JobRecord) -> None:
    barrier = Barrier(2)

    def take(holder: str) -> Lease:
        barrier.wait(10)
        return leases.take(store, record, "first", holder).value

    with ThreadPoolExecutor(2) as pool:
        taken = sorted(pool.map(take, ("a", "b")), key=lambda lease: lease.epoch)
    assert [lease.epoch for lease in taken] == [1, 2]
    with pytest.raises(LeaseLostError, match="Epoch 1"):
        leases.check(store, taken[0])
    leases.check(store, taken[1])


def test_a_launch_that_the_record_does_not_name_may_not_take_it(store: ObjectStore, record: JobRecord) -> None:
    with pytest.raises(LeaseLostError, match="names first"):
        leases.take(store, record, "other", "a")
    assert documents.read(store, keys.lease(record.job), Lease) is None


def test_a_granted_lease_is_adopted_at_its_epoch(store: ObjectStore, record: JobRecord) -> None:
    held = leases.take(store, record, "first", "old")
    granted = leases.grant(store, record.job, "second", 2)
    assert (granted.value.epoch, granted.value.holder) == (2, None)
    with pytest.raises(LeaseLostError):
        leases.check(store, held.value)
    with pytest.raises(LeaseLostError):
        leases.renew(store, held)
    after = record.model_copy(update={"launch": "second", "deployment": 2})
    taken = leases.take(store, after, "second", "new").value
    assert (taken.epoch, taken.holder, taken.deployment) == (2, "new", 2)


def test_granting_again_changes_nothing(store: ObjectStore, record: JobRecord) -> None:
    first = leases.grant(store, record.job, "second", 2)
    assert leases.grant(store, record.job, "second", 2) == first
    leases.take(store, record.model_copy(update={"launch": "second", "deployment": 2}), "second", "new")
    assert leases.grant(store, record.job, "second", 2).value.holder == "new"


def test_a_relaunch_raises_the_epoch_and_counts_as_fruitless(store: ObjectStore, record: JobRecord) -> None:
    leases.take(store, record, "first", "a")
    again = leases.take(store, record, "first", "b").value
    assert (again.epoch, again.fruitless) == (2, 1)


def test_the_fourth_relaunch_without_a_commit_gives_up(store: ObjectStore, record: JobRecord) -> None:
    for number in range(1 + leases.MOST_FRUITLESS):
        leases.take(store, record, "first", f"holder-{number}")
    with pytest.raises(UnhealthyError, match="without a new commit of each stage"):
        leases.take(store, record, "first", "one-too-many")
    assert stored(store, record.job).holder == "holder-3"


def test_it_names_the_stages_that_did_not_commit(store: ObjectStore, record: JobRecord) -> None:
    for number in range(1 + leases.MOST_FRUITLESS):
        held = leases.take(store, record, "first", f"holder-{number}")
        if number < leases.MOST_FRUITLESS:  # the last one ended before it could tell
            leases.renew(store, held, ["avg_1m", "vol_1s"])
    with pytest.raises(UnhealthyError, match="without a new commit of stage avg_1m, vol_1s;"):
        leases.take(store, record, "first", "one-too-many")


def test_a_commit_clears_the_count(store: ObjectStore, record: JobRecord) -> None:
    for number in range(1 + leases.MOST_FRUITLESS):
        held = leases.take(store, record, "first", f"holder-{number}")
    leases.renew(store, held, [])
    assert leases.take(store, record, "first", "later").value.fruitless == 1


def test_another_launch_begins_its_own_count(store: ObjectStore, record: JobRecord) -> None:
    for number in range(1 + leases.MOST_FRUITLESS):
        leases.take(store, record, "first", f"holder-{number}")
    after = record.model_copy(update={"launch": "second"})
    assert leases.take(store, after, "second", "new").value.fruitless == 0


def test_a_released_lease_keeps_its_epoch_and_refuses_the_one_who_gave_it_back(
    store: ObjectStore, record: JobRecord
) -> None:
    held = leases.take(store, record, "first", "a")
    leases.release(store, held)
    assert stored(store, record.job).epoch == 1
    with pytest.raises(LeaseLostError):
        leases.check(store, held.value)


def test_taking_twice_as_the_same_holder_is_one_taking(store: ObjectStore, record: JobRecord) -> None:
    first = leases.take(store, record, "first", "a")
    assert leases.take(store, record, "first", "a") == first


class Overtaken(ObjectStore):
    """Another launch is given the lease beside the first write, whose answer is lost."""

    def __init__(self, settings: Settings, meanwhile: Callable[[], object], *, written: bool) -> None:
        super().__init__(settings)
        self.meanwhile, self.written, self.done = meanwhile, written, False

    def put(self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        if self.done:
            return super().put(key, body, if_match=if_match, if_absent=if_absent)
        self.done = True
        if self.written:
            super().put(key, body, if_match=if_match, if_absent=if_absent)
        self.meanwhile()
        raise ConflictError("as the SDK sees a write that it repeats")


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("act", [leases.renew, leases.release])
def test_a_write_whose_answer_is_lost_neither_adopts_nor_clears_what_another_holds_by_now(
    store: ObjectStore,
    record: JobRecord,
    bucket: Settings,  # noqa: F811
    act: Callable[..., object],
    written: bool,
) -> None:
    after = record.model_copy(update={"launch": "second", "deployment": 2})

    def other() -> None:
        leases.grant(store, record.job, "second", 2)
        leases.take(store, after, "second", "new")

    held = leases.take(store, record, "first", "old")
    slow = Overtaken(bucket, other, written=written)
    with pytest.raises(LeaseLostError):
        act(slow, held)
    assert (stored(store, record.job).holder, stored(store, record.job).launch) == ("new", "second")
