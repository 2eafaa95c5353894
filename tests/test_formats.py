"""Stored records: each format that was ever written can be read, and a change keeps what it does not know.

``tests/formats`` holds RECORD.FORMAT.json, as they were written. A new format adds a file; none is ever changed.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import streamops
from streamops.model.errors import DamagedError
from streamops.model.records import Control, JobRecord, Lease
from streamops.model.stored import Stored
from streamops.operations.operation import Operation
from streamops.settings import Settings
from streamops.store import documents
from streamops.store.object_store import ObjectStore

for module in pkgutil.walk_packages(streamops.__path__, "streamops."):
    importlib.import_module(module.name)
EXAMPLES = sorted((Path(__file__).parent / "formats").glob("*.json"))
RECORDS = {kind.__name__: kind for kind in Stored.__subclasses__()}


@pytest.fixture
def store(bucket: Settings) -> ObjectStore:
    return ObjectStore(bucket)


def test_every_record_has_an_example_of_its_format():
    written = {f"{name}.{kind.model_fields['format'].default}.json" for name, kind in RECORDS.items()}
    assert written <= {path.name for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_what_was_written_is_read_and_written_again_with_nothing_lost(path: Path):
    record = RECORDS[path.name.split(".")[0]]
    stored = {**json.loads(path.read_text()), "from_another_release": {"a": [1, 2]}}
    again = json.loads(record.model_validate_json(json.dumps(stored)).model_dump_json())
    assert kept(stored, again) == stored


def kept(stored: Any, again: Any) -> Any:
    """Of what was written again, that which was there before; a field that is new has its default."""
    if isinstance(stored, dict):
        return {name: kept(value, again.get(name)) for name, value in stored.items()}
    if isinstance(stored, list):
        return [kept(value, other) for value, other in zip(stored, again, strict=True)]
    return again


def test_parts_of_a_record_keep_what_they_do_not_know():
    stored = json.loads((Path(__file__).parent / "formats" / "Operation.1.json").read_text())
    for part in (stored["request"], stored["owner"], stored["steps"]["check"], stored["before"]):
        part["from_another_release"] = 1
    again = Operation.model_validate_json(json.dumps(stored)).model_copy(update={"state": "failed"})
    wanted = {**stored, "state": "failed"}
    assert kept(wanted, json.loads(again.model_dump_json())) == wanted


def test_a_change_of_one_field_leaves_those_of_another_release(store: ObjectStore):
    lease = Lease(job="j", epoch=1, launch="l", deployment=1)
    store.put("jobs/j/lease.json", json.dumps({**json.loads(lease.model_dump_json()), "shard": 7}).encode())

    def taken(found: Lease | None) -> Lease:
        assert found is not None
        return found.model_copy(update={"holder": "h"})

    documents.update(store, "jobs/j/lease.json", Lease, taken)
    after = json.loads(store.get("jobs/j/lease.json").body)
    assert (after["holder"], after["shard"]) == ("h", 7)


def test_a_format_that_is_not_known_is_refused_with_what_to_do(store: ObjectStore):
    store.put("jobs/j/record.json", json.dumps({"format": 2, "job": "j"}).encode())
    with pytest.raises(DamagedError, match="has format 2, which this release does not know; use the"):
        documents.read(store, "jobs/j/record.json", JobRecord)


def test_a_command_that_is_not_known_can_be_read(store: ObjectStore):
    store.put("control.json", b'{"format": 1, "command": "dance", "operation": "o", "sequence": 3}')
    found = documents.read(store, "control.json", Control)
    assert found is not None
    assert found.value.command == "dance"
