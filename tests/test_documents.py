"""Stored models that several writers change: what someone else wrote meanwhile is never lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import BaseModel

from streamops.model.errors import ConflictError, NotFoundError
from streamops.settings import Settings
from streamops.store import documents, waiting
from streamops.store.object_store import ObjectStore

KEY = "numbers.json"


class Numbers(BaseModel):
    known: tuple[int, ...] = ()


@pytest.fixture
def store(bucket: Settings) -> ObjectStore:
    return ObjectStore(bucket)


def add(store: ObjectStore, number: int, before: list[int] | None = None) -> documents.Versioned[Numbers]:
    """Add a number; someone else adds one of ``before`` between each look and the write that follows."""

    def change(found: Numbers | None) -> Numbers:
        if before:
            add(store, before.pop())
        return Numbers(known=(*(found.known if found else ()), number))

    return documents.update(store, KEY, Numbers, change)


def stored(store: ObjectStore) -> tuple[int, ...]:
    found = documents.read(store, KEY, Numbers)
    return found.value.known if found else ()


def test_writers_at_the_same_moment_all_have_their_change(store: ObjectStore) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: add(store, number), range(8)))
    assert sorted(stored(store)) == list(range(8))


def test_what_others_write_again_and_again_meanwhile_is_kept(store: ObjectStore) -> None:
    add(store, 1, before=[4, 3, 2])
    assert stored(store) == (2, 3, 4, 1)


def test_what_the_caller_knows_saves_a_read_and_need_not_be_true_any_more(store: ObjectStore) -> None:
    known = add(store, 1)
    add(store, 2)
    found = documents.update(
        store, KEY, Numbers, lambda old: Numbers(known=(*(old or Numbers()).known, 3)), known=known
    )
    assert found.value.known == stored(store) == (1, 2, 3)
    assert documents.update(store, KEY, Numbers, lambda old: old or Numbers(), known=found) is found


class ReadOnly(ObjectStore):
    def put(self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        raise AssertionError(f"{key} was written")


def test_nothing_is_written_for_the_same_again(store: ObjectStore, bucket: Settings) -> None:
    first = add(store, 1)
    again = documents.update(ReadOnly(bucket), KEY, Numbers, lambda old: Numbers(known=(1,)))
    assert again.etag == first.etag


def test_two_looks_at_one_model_are_equal(store: ObjectStore) -> None:
    add(store, 1)
    looks = [documents.read(store, KEY, Numbers)]

    def older() -> bool:
        looks.append(documents.read(store, KEY, Numbers))
        return looks[-1].age > looks[0].age

    assert waiting.until(older, 30, 0.1)
    assert looks[-1] == looks[0]


def test_a_change_that_is_refused_leaves_what_is_there(store: ObjectStore) -> None:
    add(store, 1)

    def refuse(found: Numbers | None) -> Numbers:
        raise NotFoundError("no such number")

    with pytest.raises(NotFoundError, match="no such number"):
        documents.update(store, KEY, Numbers, refuse)
    assert stored(store) == (1,)


def test_it_gives_up_when_others_never_stop(store: ObjectStore) -> None:
    with pytest.raises(ConflictError, match=rf"{KEY} keeps changing; 'streamops operations'"):
        add(store, 1, before=list(range(2, 100)))
    assert 1 not in stored(store)
