"""Verdicts from fingerprints written by hand: each kind of change, several at once, and what is not known."""

from __future__ import annotations

import pytest

from streamops.versions.compatibility import continued, lines, refused, verdicts
from streamops.versions.fingerprints import (
    Aggregate,
    Fingerprint,
    Key,
    Operator,
    Slot,
    Variable,
    Watermark,
    Window,
    read,
)

TEN, TWENTY = 10_000_000, 20_000_000
SUM = Aggregate(function="sum", text="sum(e.v)", buffer=(Slot(type="long", nullable=True),))
MAX = Aggregate(function="max", text="max(e.v)", buffer=(Slot(type="long", nullable=True),))
COUNT = Aggregate(function="count", text="count(1)", buffer=(Slot(type="long", nullable=False),))
BYTES = Aggregate(function="collect_set", text="collect_set(e.v)", buffer=(Slot(type="binary", nullable=True),))
PAGE = Key(text="e.page", type="string", columns=("e.page",))
SITE = Key(text="e.site", type="string", columns=("e.site",))


def over(window: Window) -> Key:
    text = f"{window.kind} {window.size_us} {window.slide_us} {window.gap}"
    return Key(text=text, type="struct<start:timestamp,end:timestamp>", columns=("e.time",), window=window)


TUMBLING = Window(kind="tumbling", time="e.time", size_us=TEN, slide_us=TEN)
SESSION = Window(kind="session", time="e.time", gap="10 seconds")


def stage(*operators: Operator, **values: object) -> Fingerprint:
    given = {"sources": ("e",), "watermarks": (Watermark(column="e.time", delay="5 seconds"),), **values}
    return Fingerprint(
        spark="4.2.0", output="append", provider="RocksDBStateStoreProvider", partitions=2, operators=operators, **given
    )


def grouped(
    *aggregates: Aggregate, window: Window | None = TUMBLING, keys: tuple[Key, ...] = (PAGE,), **values: object
):
    return Operator(
        kind="aggregation", keys=((over(window),) if window else ()) + keys, aggregates=aggregates or (SUM,), **values
    )


def processor(*variables: Variable, **values: object) -> Operator:
    return Operator(
        kind="transform with state", detail="Append None", keys=(PAGE,), **{"variables": variables, **values}
    )


COUNTER = Variable(name="count", kind="value", schema_="n bigint", ttl_ms=1000)
OLD = stage(grouped())
JOIN = Operator(kind="join", detail="Inner", keys=(PAGE,), bounds=("t2 > t",), rows=(("string",), ("string",)))
DEDUP = Operator(kind="deduplication", keys=(PAGE,))

CHANGES = {
    "nothing": (OLD, OLD, "kept"),
    "early results": (OLD, OLD.model_copy(update={"output": "update"}), "kept with caveat"),
    "no early results any more": (OLD.model_copy(update={"output": "update"}), OLD, "kept"),
    "another session gap": (
        stage(grouped(window=SESSION)),
        stage(grouped(window=SESSION.model_copy(update={"gap": "20 seconds"}))),
        "kept with caveat",
    ),
    "session instead of tumbling": (OLD, stage(grouped(window=SESSION)), "incompatible"),
    "another window size": (
        OLD,
        stage(grouped(window=TUMBLING.model_copy(update={"size_us": TWENTY, "slide_us": TWENTY}))),
        "starts empty",
    ),
    "windows no more": (OLD, stage(grouped(window=None)), "incompatible"),
    "another key of the same type": (OLD, stage(grouped(keys=(SITE,))), "incompatible"),
    "keys in another order": (
        stage(grouped(keys=(PAGE, SITE))),
        stage(grouped(keys=(SITE, PAGE))),
        "incompatible",
    ),
    "the same key computed otherwise": (
        OLD,
        stage(grouped(keys=(Key(text="upper(e.page)", type="string", columns=("e.page",)),))),
        "kept with caveat",
    ),
    "another aggregate with the same buffer": (OLD, stage(grouped(MAX)), "kept with caveat"),
    "max to count differs in nullability only": (stage(grouped(MAX)), stage(grouped(COUNT)), "incompatible"),
    "an aggregate more": (OLD, stage(grouped(SUM, COUNT)), "incompatible"),
    "aggregates in another order": (stage(grouped(SUM, MAX)), stage(grouped(MAX, SUM)), "incompatible"),
    "parameters of an aggregate": (
        OLD,
        stage(grouped(SUM.model_copy(update={"text": "sum((e.v * 2))"}))),
        "kept with caveat",
    ),
    "another function over bytes": (
        stage(grouped(BYTES)),
        stage(grouped(BYTES.model_copy(update={"function": "collect_list", "text": "collect_list(e.v)"}))),
        "incompatible",
    ),
    "other arguments over bytes": (
        stage(grouped(BYTES)),
        stage(grouped(BYTES.model_copy(update={"text": "collect_set(e.w)"}))),
        "unknown",
    ),
    "an added filter": (OLD, stage(grouped(inputs=("where (e.v > 1)",))), "kept with caveat"),
    "a watermark delay": (
        OLD,
        stage(grouped(), watermarks=(Watermark(column="e.time", delay="9 seconds"),)),
        "kept with caveat",
    ),
    "another event time": (
        OLD,
        stage(grouped(), watermarks=(Watermark(column="e.at", delay="5 seconds"),)),
        "incompatible",
    ),
    "a source more": (OLD, stage(grouped(), sources=("e", "f")), "kept with caveat"),
    "a deduplication before": (OLD, stage(DEDUP, grouped()), "incompatible"),
    "another deduplication key": (
        stage(DEDUP),
        stage(DEDUP.model_copy(update={"keys": (SITE,)})),
        "incompatible",
    ),
    "other bounds of a join": (
        stage(JOIN),
        stage(JOIN.model_copy(update={"bounds": ("t2 > t + 5",)})),
        "kept with caveat",
    ),
    "a column more in a join": (
        stage(JOIN),
        stage(JOIN.model_copy(update={"rows": (("string", "bigint"), ("string",))})),
        "incompatible",
    ),
    "another kind of join": (stage(JOIN), stage(JOIN.model_copy(update={"detail": "LeftOuter"})), "unknown"),
    "another time to live": (
        stage(processor(COUNTER)),
        stage(processor(COUNTER.model_copy(update={"ttl_ms": 9}))),
        "kept with caveat",
    ),
    "no time to live any more": (
        stage(processor(COUNTER)),
        stage(processor(COUNTER.model_copy(update={"ttl_ms": None}))),
        "incompatible",
    ),
    "a variable of another type": (
        stage(processor(COUNTER)),
        stage(processor(COUNTER.model_copy(update={"schema_": "n string"}))),
        "incompatible",
    ),
    "variables no one knows": (stage(processor(COUNTER)), stage(processor(variables=None)), "unknown"),
    "an operator no one knows": (
        stage(Operator(kind="opaque", detail="GlobalLimit")),
        stage(Operator(kind="opaque", detail="GlobalLimit")),
        "unknown",
    ),
    "another Spark": (OLD, OLD.model_copy(update={"spark": "5.0.0"}), "unknown"),
    "a newer Spark with the same state": (OLD, OLD.model_copy(update={"spark": "4.3.0"}), "kept"),
    "another state store": (OLD, OLD.model_copy(update={"provider": "Other"}), "incompatible"),
    "no fingerprint": (None, OLD, "unknown"),
    "a stateless stage": (stage(), stage(watermarks=()), "kept"),
    "state where there was none": (stage(), OLD, "incompatible"),
    "several at once: the worst counts": (
        OLD,
        stage(grouped(MAX, keys=(SITE,), inputs=("where x",))),
        "incompatible",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_has_its_verdict_with_reason_and_consequence(name: str) -> None:
    old, new, outcome = CHANGES[name]
    found = continued("s", old, new)
    assert found.outcome == outcome, found
    assert found.consequence.endswith(".")
    assert all(reason.endswith(".") for reason in found.reasons)
    assert found.lost == (outcome in ("unknown", "starts empty") or name == "early results")


def test_every_reason_of_several_changes_is_told() -> None:
    found = continued("s", OLD, stage(grouped(MAX, inputs=("where (e.v > 1)",))))
    assert len(found.reasons) == 2
    assert "max(e.v) is computed instead of sum(e.v)" in found.reasons[0]
    assert "where (e.v > 1)" in found.reasons[1]


def test_a_renamed_stage_is_dropped_and_starts_empty_and_both_are_said() -> None:
    found = {item.stage: item for item in verdicts({"a": OLD, "old": OLD}, {"a": OLD, "new": OLD}, version="j v2")}
    assert {stage: item.outcome for stage, item in found.items()} == {
        "a": "kept",
        "new": "starts empty",
        "old": "dropped",
    }
    assert "old under another name" in found["new"].reasons[0]
    assert "new cannot take it over" in found["old"].reasons[0]
    assert [item.stage for item in refused(found.values(), ())] == ["old"]
    assert refused(found.values(), ("old",)) == ()
    assert any(line.startswith("old: dropped. ") for line in lines(found.values()))


def test_an_added_stage_and_a_dropped_stage_without_state_need_no_yes() -> None:
    assert refused(verdicts({"a": OLD}, {"a": OLD, "b": OLD}), ()) == ()
    assert refused(verdicts({"a": OLD, "b": stage()}, {"a": OLD}), ()) == ()
    assert refused(verdicts({"a": OLD, "b": None}, {"a": OLD}), ()) != ()


def test_a_source_that_joins_a_union_changes_no_key_and_no_aggregate() -> None:
    both = stage(
        grouped(
            SUM.model_copy(update={"text": "sum(e.v or f.v)"}),
            window=TUMBLING.model_copy(update={"time": "e.time or f.time"}),
            keys=(Key(text="e.page or f.page", type="string", columns=("e.page", "f.page")),),
        ),
        sources=("e", "f"),
        watermarks=(Watermark(column="e.time or f.time", delay="5 seconds"),),
    )
    for old, new, told in ((OLD, both, "Source f is added."), (both, OLD, "Source f is removed.")):
        found = continued("s", old, new)
        assert (found.outcome, found.reasons) == ("kept with caveat", (told,))


def test_incompatible_is_refused_whoever_agrees() -> None:
    found = verdicts({"a": OLD}, {"a": stage(grouped(COUNT))})
    assert [item.stage for item in refused(found, ("a",))] == ["a"]


def test_a_fingerprint_survives_its_manifest_and_another_format_is_unknown() -> None:
    stored = {"a": OLD.model_dump(mode="json", exclude_defaults=True), "b": {"format": 2}, "c": '{"format": "x"}'}
    assert read(stored, ["a", "b", "c", "d"]) == {"a": OLD, "b": None, "c": None, "d": None}
