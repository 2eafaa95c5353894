"""What is decided about reading state without any Spark."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from streamops.cli import options
from streamops.model import records
from streamops.model.errors import RefusedError
from streamops.snapshots import state
from streamops.snapshots.marks import Check, Checks, How
from streamops.snapshots.state import Choice, Found, StateStore

NOW = records.now()


@pytest.mark.parametrize(
    ("text", "pair"), [("k=v", ("k", "v")), ("w.end=2026-01-01T00:00:00Z", ("w.end", "2026-01-01T00:00:00Z")),
                       ("k=", ("k", "")), ("k=a=b", ("k", "a=b"))],
)  # fmt: skip
def test_a_key_is_a_name_and_a_value(text: str, pair: tuple[str, str]) -> None:
    assert options.pairs("--key", [text]) == (pair,)


@pytest.mark.parametrize("text", ["k", "=v", ""])
def test_a_key_without_a_name_or_an_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="is not of the form NAME=VALUE"):
        options.pairs("--key", [text])


def test_a_choice_among_several_stores_is_answered_with_what_there_is() -> None:
    stores = [
        StateStore(operator=0, operator_name="stateStoreSave", name="default"),
        StateStore(operator=1, operator_name="symmetricHashJoin", name="left-keyToNumValues"),
        StateStore(operator=2, operator_name="transformWithStateExec", name="default", variables=("a", "b")),
    ]
    assert state.choose(stores, Choice()) == stores[0]
    assert state.choose(stores, Choice(operator=2, variable="b")) == stores[2]
    for wrong in (Choice(operator=1), Choice(operator=2), Choice(operator=2, variable="c"), Choice(variable="a")):
        with pytest.raises(RefusedError) as refused:
            state.choose(stores, wrong)
        assert all(str(store) in str(refused.value) for store in stores)


def test_the_rows_that_a_limit_leaves_out_are_counted() -> None:
    store = StateStore(operator=0, operator_name="x", name="default")
    assert Found(store=store, total=5, rows=({"partition": 0}, {"partition": 1})).more == 3


@pytest.mark.parametrize(
    ("ids", "partitions"), [({"0": [[["a"]], [["b"]]], "1": [[["c"]]]}, 2), ({"0": [["a"]]}, 1), ({}, 0), (None, 0)]
)
def test_the_number_of_partitions_comes_from_the_commit(ids: dict | None, partitions: int) -> None:
    fields = {"nextBatchWatermarkMs": 0} | ({"stateUniqueIds": ids} if ids is not None else {})
    assert state.partitions_of("v2\n" + json.dumps(fields)) == partitions


def known(**problems: tuple[int, str]) -> Checks:
    """Verifications by kind: how many hours ago, and what was found."""
    kinds: dict[str, How] = {"read": "read back", "state": "state"}
    return Checks(
        checks={
            kinds[kind]: Check(how=kinds[kind], when=NOW - timedelta(hours=hours), attempt="a", problem=problem)
            for kind, (hours, problem) in problems.items()
        }
    )


def test_good_objects_do_not_make_up_for_state_that_cannot_be_read_nor_the_other_way_round() -> None:
    assert known(read=(1, ""), state=(5, "no lineage")).problem() == "no lineage"
    assert known(read=(5, "missing"), state=(1, "")).problem() == "missing"
    assert known(read=(5, ""), state=(1, "")).problem() == ""
    assert known().problem() == ""
