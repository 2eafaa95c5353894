"""Points that a sink refused, on a real object store."""

from __future__ import annotations

import pytest

from streamops.settings import Settings
from streamops.store import quarantine
from streamops.store.object_store import ObjectStore


@pytest.fixture
def store(bucket: Settings) -> ObjectStore:
    return ObjectStore(bucket)


def points(*names: str):
    return [quarantine.point("avg_1s", {"symbol": name}, {"value": 1.5}, 7000, "too long") for name in names]


def listed(store: ObjectStore) -> list[str]:
    return [item.tags["symbol"] for _, item in quarantine.read(store, "trades")]


def test_what_is_put_aside_again_stands_there_once(store: ObjectStore) -> None:
    quarantine.put(store, "trades", "avg_1s", "v1", points("a", "b"))
    quarantine.put(store, "trades", "avg_1s", "v1", points("a", "b"))  # the batch is run again
    quarantine.put(store, "trades", "avg_1s", "v1", points("b", "c"))  # and once more, cut at another place
    assert listed(store) == ["a", "b", "c"]
    assert [item for _, item in quarantine.read(store, "others")] == []


def test_points_are_forgotten_wherever_they_stand_and_the_others_stay(store: ObjectStore) -> None:
    quarantine.put(store, "trades", "avg_1s", "v1", points("a", "b"))
    quarantine.put(store, "trades", "avg_1s", "v1", points("b", "c"))
    first, second = (item.id for item in points("a", "b"))
    assert quarantine.remove(store, "trades", {second, "unknown"}) == 1
    assert listed(store) == ["a", "c"]
    assert quarantine.remove(store, "trades", {first, points("c")[0].id}) == 2
    assert listed(store) == []


def test_a_point_is_known_by_what_it_is_and_not_by_why_it_was_refused() -> None:
    one = quarantine.point("m", {"a": "1", "b": "2"}, {"value": 1}, 7, "because")
    assert one.id == quarantine.point("m", {"b": "2", "a": "1"}, {"value": 1}, 7, "for another reason").id
    assert one.id != quarantine.point("m", {"a": "1", "b": "2"}, {"value": 2}, 7, "because").id
