"""Points that a sink refused, on a real object store."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from fakes import shelf as shelves
from fakes.rig import definition
from streamops.model.definitions import Definition
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.records import now
from streamops.operations import checks, receipts
from streamops.operations.engine import AtPoint, Engine
from streamops.operations.follow import request as ask
from streamops.settings import Settings
from streamops.store import documents, keys, quarantine
from streamops.store.object_store import ObjectStore
from streamops.versions.artifacts import ArtifactManifest


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


def published(store: ObjectStore, secret: str) -> Definition:
    """A version whose points go to the InfluxDB that a secret names."""
    made = definition("v1", ("avg_1s",), job="trades")
    stage = made.stages["avg_1s"]
    (sink,) = stage.sinks
    elsewhere = sink.model_copy(update={"influxdb": sink.influxdb.model_copy(update={"secret": secret})})
    stages = {"avg_1s": stage.model_copy(update={"sinks": (elsewhere,)})}
    made = made.model_copy(update={"stages": stages})
    manifest = ArtifactManifest(
        job="trades", version="v1", artifact_sha256="a" * 64, size=1, runtime_sha256="r" * 64, definition=made,
        published=now(),
    )  # fmt: skip
    documents.write(store, keys.artifact_manifest("trades", "v1"), manifest)
    return made


def test_points_of_another_influxdb_are_not_written_to_the_installations(store: ObjectStore) -> None:
    published(store, "elsewhere")
    made = shelves.engine(store, store)
    written: list[str] = []
    engine = Engine(replace(made.ports, write_points=written.extend))
    quarantine.put(store, "trades", "avg_1s", "v1", points("a"))
    body = points("a")[0].model_dump_json().encode()
    sha256 = hashlib.sha256(body).hexdigest()
    store.put(keys.corrections("trades", sha256), body)
    with pytest.raises(RefusedError, match="secret elsewhere"):
        engine.run(ask("manage_quarantine", job="trades", action="write", file=sha256), shelves.ADA, "write")
    assert written == []
    assert listed(store) == ["a"]


@pytest.mark.parametrize(("secret", "asked"), [("influx", 1), ("elsewhere", 0)])
def test_an_influxdb_that_a_version_does_not_write_to_is_not_asked_whether_it_answers(
    store: ObjectStore, secret: str, asked: int
) -> None:
    answers: list[None] = []
    ports = replace(shelves.engine(store, store).ports, sinks_answer=lambda: answers.append(None))
    checks.reachable(ports, published(store, secret), {})
    assert len(answers) == asked


def test_points_are_written_or_forgotten_by_an_operation_that_may_be_killed_anywhere(store: ObjectStore) -> None:
    written: list[str] = []

    def engine(at_point: AtPoint = lambda step, when: None) -> Engine:
        made = shelves.engine(store, store, at_point)
        return Engine(replace(made.ports, write_points=written.extend), at_point=at_point)

    def refused(says: str, **asked: object) -> None:
        with pytest.raises((RefusedError, NotFoundError), match=says):
            engine().run(ask("manage_quarantine", job="trades", **asked), shelves.ADA, f"refused-{len(says)}")
        assert not written

    quarantine.put(store, "trades", "avg_1s", "v1", points("a", "b"))
    first, second = points("a", "b")
    corrected = first.model_copy(update={"tags": {"symbol": "A"}})
    body = f"{corrected.model_dump_json()}\n".encode()
    sha256 = hashlib.sha256(body).hexdigest()
    refused("uploads it", action="write", file=sha256)
    refused("None of these", action="drop", points=["0" * 16])
    bad = first.model_copy(update={"tags": {"symbol": "A\\"}}).model_dump_json().encode()
    for lines, says in (
        (bad, "Line 1: tag symbol ends in a backslash"),
        (corrected.model_dump_json().replace("A", "\u00c4").encode("latin-1"), "is not UTF-8"),
    ):
        file = hashlib.sha256(lines).hexdigest()
        store.put(keys.corrections("trades", file), lines)
        refused(says, action="write", file=file)
    store.put(keys.corrections("trades", sha256), bad)  # by someone who writes into the job's folder
    refused("is not the one that was uploaded", action="write", file=sha256)
    store.put(keys.corrections("trades", sha256), body)
    asked = ask("manage_quarantine", job="trades", action="write", file=sha256)
    shelves.killed_everywhere(engine, asked, "write")
    assert set(written) == {"avg_1s,symbol=A value=1.5 7000"}
    assert listed(store) == ["b"]
    shelves.killed_everywhere(engine, ask("manage_quarantine", job="trades", action="drop", points=[second.id]), "drop")
    assert listed(store) == []
    for name in ("write", "drop"):
        receipt = receipts.read(store, "trades", name)
        assert receipt is not None
        assert (receipt.state, receipt.requested_by) == ("succeeded", "ada")
