"""Windowed and grouped aggregations: what each change does to results, on a restored checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from compatibility.lab import Event, Lab, final
from streamops_runtime.windows import sliding

# The window from 10 to 20 is open at the switch.
BEFORE = [
    [Event("a", 1, 1), Event("b", 10, 2), Event("a", 2, 4)],
    [Event("a", 3, 12), Event("b", 20, 13, site="y")],
]
AFTER = [
    [Event("a", 4, 15), Event("b", 5, 16, site="y"), Event("a", 50, 17)],
    [Event("a", 6, 24), Event("b", 7, 33)],
    [Event("z", 0, 5000)],  # closes every window before it
]
ALL = BEFORE + AFTER


def windowed(
    clicks: DataFrame,
    value: Column | None = None,
    *,
    size: str = "10 seconds",
    slide: str | None = None,
    delay: str = "0 seconds",
    by: Any = "page",
) -> DataFrame:
    """(group, end of the window in seconds, value)"""
    total = F.sum("n") if value is None else value
    frame = clicks.withWatermark("time", delay).groupBy(F.window("time", size, slide), by).agg(total.alias("value"))
    return frame.select(frame.columns[1], end(F.col("window.end")), "value")


def end(column: Column) -> Column:
    """Seconds since the beginning."""
    return (F.unix_seconds(column) - F.unix_seconds(F.lit("2026-01-01").cast("timestamp"))).cast("int").alias("end")


def plain(clicks: DataFrame) -> DataFrame:
    return windowed(clicks)


def sessions(clicks: DataFrame, gap: str = "10 seconds") -> DataFrame:
    """(page, end, n)"""
    frame = clicks.withWatermark("time", "0 seconds").groupBy(F.session_window("time", gap), "page")
    return frame.agg(F.sum("n").alias("value")).select("page", end(F.col("session_window.end")), "value")


def stage(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A stage of one source with these arguments; expressions are made when it is called, as in a job's code."""

    def call(clicks: DataFrame) -> DataFrame:
        return function(clicks, *(arg() if callable(arg) else arg for arg in args), **kwargs)

    return call


def test_the_same_again_is_kept(lab: Lab) -> None:
    done = lab.switch(plain, plain, BEFORE, AFTER)
    assert done.verdict.outcome == "kept"
    assert done.all == final(lab.at_once(plain, ALL))
    assert done.all["a", 20] == 3 + 4 + 50  # from both sides of the switch


@pytest.mark.full
def test_early_results_off_are_kept(lab: Lab) -> None:
    done = lab.switch(plain, plain, BEFORE, AFTER, outputs=("update", "append"))
    assert done.verdict.outcome == "kept"
    assert final(done.all) == final(lab.at_once(plain, ALL))


@pytest.mark.full
def test_early_results_on_leave_out_what_was_not_written_yet(lab: Lab) -> None:
    before, after = [[Event("a", 1, 1), Event("b", 7, 2)]], [[Event("a", 2, 5)], [Event("z", 0, 5000)]]
    done = lab.switch(plain, plain, before, after, outputs=("append", "update"))
    assert done.verdict.outcome == "kept with caveat"
    assert done.verdict.lost
    expected = final(lab.at_once(plain, before + after))
    assert {key: expected[key] for key in expected.keys() - final(done.all).keys()} == {("b", 10): 7}
    assert final(done.all).items() <= expected.items()


@pytest.mark.full
def test_a_renamed_stateless_step_and_a_changed_one_after_the_state_are_kept(lab: Lab) -> None:
    def renamed(clicks: DataFrame) -> DataFrame:
        seen = clicks.withColumnRenamed("page", "seite").withColumnRenamed("n", "menge").alias("umbenannt")
        frame = seen.withWatermark("time", "0 seconds").groupBy(F.window("time", "10 seconds"), "seite")
        found = frame.agg(F.sum("menge").alias("summe"))
        return found.select("seite", end(F.col("window.end")), F.col("summe").alias("value"))

    def after(clicks: DataFrame) -> DataFrame:
        return windowed(clicks).where("value > 5").withColumn("value", F.col("value") * 100)

    done = lab.switch(plain, renamed, BEFORE, AFTER)
    assert done.verdict.outcome == "kept"
    assert done.all == final(lab.at_once(plain, ALL))
    done = lab.switch(plain, after, BEFORE, AFTER)
    assert done.verdict.outcome == "kept"
    expected = final(lab.at_once(after, ALL))
    assert {key: value for key, value in done.all.items() if key[1] > 10} == {
        key: value for key, value in expected.items() if key[1] > 10
    }


@pytest.mark.full
def test_a_filter_before_the_state_counts_from_the_switch_on(lab: Lab) -> None:
    def filtered(clicks: DataFrame) -> DataFrame:
        return windowed(clicks.where("n < 50"))

    done = lab.switch(plain, filtered, BEFORE, AFTER)
    assert done.verdict.outcome == "kept with caveat"
    assert "Windows that were open at the switch" in done.verdict.consequence
    late = {key: value for key, value in final(lab.at_once(filtered, ALL)).items() if key[1] > 20}
    assert {key: value for key, value in done.all.items() if key[1] > 20} == late
    assert done.all["a", 20] == 3 + 4  # the old part as it was, the new part filtered
    done = lab.switch(filtered, plain, BEFORE, AFTER)  # and removed again
    assert done.verdict.outcome == "kept with caveat"
    assert done.all["a", 20] == 3 + 4 + 50


@pytest.mark.full
def test_parameters_of_an_aggregate_count_from_the_switch_on(lab: Lab) -> None:
    doubled = stage(windowed, lambda: F.sum(F.col("n") * 2))
    done = lab.switch(plain, doubled, BEFORE, AFTER)
    assert done.verdict.outcome == "kept with caveat"
    assert "Windows that were open at the switch" in done.verdict.consequence
    assert done.all["a", 20] == 3 + 2 * (4 + 50)
    assert done.all["a", 30] == 2 * 6
    assert done.all["a", 10] == 1 + 2


@pytest.mark.full
def test_another_aggregate_with_the_same_buffer_is_right_for_windows_begun_after_the_switch(lab: Lab) -> None:
    largest = stage(windowed, lambda: F.max("n"))
    done = lab.switch(plain, largest, BEFORE, AFTER)
    assert done.verdict.outcome == "kept with caveat"
    assert "max(clicks.n) is computed instead of sum(clicks.n)" in done.verdict.reasons[0]
    assert done.all["b", 20] == 20  # the larger of the sum until the switch and the 5 after it
    late = {key: value for key, value in final(lab.at_once(largest, ALL)).items() if key[1] > 20}
    assert {key: value for key, value in done.all.items() if key[1] > 20} == late


@pytest.mark.full
def test_another_comparator_of_min_by_counts_from_the_switch_on(lab: Lab) -> None:
    least = stage(windowed, lambda: F.min_by("n", "n"))
    greatest = stage(windowed, lambda: F.min_by("n", -F.col("n")))
    done = lab.switch(least, greatest, BEFORE, AFTER)
    assert done.verdict.outcome == "kept with caveat"
    assert "min_by(clicks.n, -clicks.n) is computed instead of min_by(clicks.n, clicks.n)" in done.verdict.reasons[0]
    assert "Windows that were open at the switch" in done.verdict.consequence
    assert done.all["b", 20] == 5  # an open window mixes both orders: 20 was kept by the old one
    late = {key: value for key, value in final(lab.at_once(greatest, ALL)).items() if key[1] > 20}
    assert {key: value for key, value in done.all.items() if key[1] > 20} == late


@pytest.mark.full
def test_min_by_and_max_by_continue_each_other_unless_they_compare_another_type(lab: Lab) -> None:
    least, greatest = (stage(windowed, lambda by=by: by("n", "n")) for by in (F.min_by, F.max_by))
    for old, new in ((least, greatest), (greatest, least)):
        done = lab.switch(old, new, BEFORE, AFTER)
        assert done.verdict.outcome == "kept with caveat"
        late = {key: value for key, value in final(lab.at_once(new, ALL)).items() if key[1] > 10}
        assert {key: value for key, value in final(done.all).items() if key[1] > 10} == late  # one event each before
    done = lab.switch(least, stage(windowed, lambda: F.min_by("n", "site")), BEFORE, AFTER)
    assert done.verdict.outcome == "incompatible"
    assert done.refused


@pytest.mark.full
def test_an_aggregate_with_another_buffer_is_refused_and_spark_would_be_wrong(lab: Lab) -> None:
    largest, count = stage(windowed, lambda: F.max("n")), stage(windowed, lambda: F.count("*"))
    done = lab.switch(largest, count, BEFORE, AFTER)
    assert done.verdict.outcome == "incompatible"
    assert "bigint" in done.verdict.reasons[0] or "long" in done.verdict.reasons[0]
    assert not done.refused  # Spark takes it
    assert done.all["b", 20] == 20 + 1  # and counts on from the largest price
    more = stage(windowed, lambda: F.struct(F.sum("n"), F.count("*")))
    done = lab.switch(plain, more, BEFORE, AFTER)
    assert done.verdict.outcome == "incompatible"
    assert done.refused


@pytest.mark.full
def test_aggregates_in_another_order_are_refused_and_spark_would_mix_them(lab: Lab) -> None:
    one = stage(windowed, lambda: F.struct(F.sum("n"), F.max("n")))
    other = stage(windowed, lambda: F.struct(F.max("n"), F.sum("n")))
    done = lab.switch(one, other, [[Event("b", 20, 12), Event("b", 7, 13)]], AFTER)
    assert done.verdict.outcome == "incompatible"
    assert not done.refused
    assert tuple(done.all["b", 20]) == (27, 25)  # not 20, 32: each continued with the other's


@pytest.mark.full
def test_another_key_of_the_same_type_is_refused_and_spark_would_mix_them(lab: Lab) -> None:
    done = lab.switch(plain, stage(windowed, by="site"), BEFORE, AFTER)
    assert done.verdict.outcome == "incompatible"
    assert "clicks.site instead of clicks.page" in done.verdict.reasons[0]
    assert not done.refused
    assert ("a", 20) in {key[:2] for key in done.all}  # a page among the sites
    written = {row[0] for row in done.after}
    assert {"a", "x"} <= written


SLIDING = stage(windowed, size="20 seconds", slide="10 seconds")
FINER = stage(windowed, size="20 seconds", slide="5 seconds")


@pytest.mark.full
@pytest.mark.parametrize(("old", "new"), [(plain, SLIDING), (SLIDING, FINER)], ids=["to sliding", "finer slide"])
def test_another_window_starts_empty_because_spark_would_mix_the_two(lab: Lab, old, new) -> None:
    done = lab.switch(old, new, BEFORE, AFTER)
    assert done.verdict.outcome == "starts empty"
    assert done.verdict.lost
    whole = final(lab.at_once(new, ALL))
    assert not done.refused  # Spark's own continuation: windows that are neither the old ones nor the new
    assert [key for key, value in done.all.items() if key in whole and whole[key] != value]
    fresh = lab.switch(old, new, BEFORE, AFTER, state=False)
    assert fresh.after  # what the product does instead
    written = {row[:-1]: row[-1] for row in fresh.after}
    assert {key: value for key, value in written.items() if key[1] >= 40} == {
        key: value for key, value in whole.items() if key[1] >= 40
    }
    assert written == final(lab.at_once(new, AFTER))  # windows that reach back hold only what came after
    assert all(fresh.all[row[:-1]] == row[-1] for row in fresh.before if row[:-1] not in written)  # final stays


def test_window_size_and_slide_have_the_same_verdict_in_every_direction(lab: Lab) -> None:
    shapes = [{"size": "10 seconds"}, {"size": "20 seconds"}, {"size": "20 seconds", "slide": "5 seconds"}]
    for shape in shapes:
        for another in shapes:
            found = lab.verdict(stage(windowed, **shape), stage(windowed, **another))
            assert found.outcome == ("kept" if shape == another else "starts empty")


@pytest.mark.full
def test_windows_to_sessions_are_refused_by_spark_too(lab: Lab) -> None:
    sliding = stage(windowed, size="20 seconds", slide="10 seconds")
    done = lab.switch(sliding, sessions, BEFORE, AFTER)
    assert done.verdict.outcome == "incompatible"
    assert done.refused


@pytest.mark.full
def test_another_session_gap_keeps_what_was_open_with_its_old_end(lab: Lab) -> None:
    def longer(clicks: DataFrame) -> DataFrame:
        return sessions(clicks, "30 seconds")

    before = [[Event("a", 1, 1), Event("b", 1, 1)], [Event("a", 2, 5), Event("b", 2, 5)]]
    after = [[Event("a", 4, 12), Event("b", 4, 16)], [Event("a", 8, 100)], [Event("z", 0, 5000)]]
    done = lab.switch(sessions, longer, before, after)
    assert done.verdict.outcome == "kept with caveat"
    assert "keeps the end" in done.verdict.consequence
    assert done.all["a", 42] == 1 + 2 + 4  # 12 is before the old end at 15
    assert done.all["a", 130] == 8
    assert done.all["b", 15] == 1 + 2  # 16 is not: by the new gap it would be one session
    assert done.all["b", 46] == 4


@pytest.mark.full
def test_another_watermark_delay_decides_from_the_switch_on(lab: Lab) -> None:
    patient = stage(windowed, delay="20 seconds")
    after = [
        [Event("a", 4, 29)],
        [Event("q", 1, 30)],
        [Event("a", 50, 14)],
        [Event("z", 0, 5000)],
    ]  # 14 is late
    done = lab.switch(plain, patient, BEFORE, after)
    assert done.verdict.outcome == "kept with caveat"
    assert done.all["a", 20] == 3 + 50
    done = lab.switch(patient, plain, BEFORE, after)
    assert done.verdict.outcome == "kept with caveat"
    assert done.all["a", 20] == 3


def test_several_changes_at_once_have_one_verdict_and_all_reasons(lab: Lab) -> None:
    def changed(clicks: DataFrame) -> DataFrame:
        return windowed(clicks.where("n < 50"), F.max("n"), delay="5 seconds")

    done = lab.switch(plain, changed, BEFORE, AFTER)
    assert done.verdict.outcome == "kept with caveat"
    assert len(done.verdict.reasons) == 3
    late = {key: value for key, value in final(lab.at_once(changed, ALL)).items() if key[1] > 20}
    assert {key: value for key, value in done.all.items() if key[1] > 20} == late


def over_panes(clicks: DataFrame, size: str = "20 seconds", *, by_spark: bool = False) -> DataFrame:
    """(page, end of the window in seconds, n)"""
    frame = clicks.withWatermark("time", "0 seconds").groupBy(F.window("time", "5 seconds").alias("pane"), "page")
    panes = frame.agg(F.sum("n").alias("n"))
    if by_spark:
        grouped = panes.groupBy(F.window("pane", size, "10 seconds"), "page")
    else:
        grouped = sliding(panes, "pane", size, "10 seconds").groupBy("window", "page")
    return grouped.agg(F.sum("n").alias("value")).select("page", end(F.col("window.end")), "value")


@pytest.mark.full
def test_windows_over_windows_are_kept(lab: Lab) -> None:
    by_spark = stage(over_panes, by_spark=True)
    done = lab.switch(by_spark, by_spark, BEFORE, AFTER)
    assert done.verdict.outcome == "kept"
    assert done.all == final(lab.at_once(by_spark, ALL))


@pytest.mark.full
def test_spark_s_windows_over_panes_and_ours_continue_each_other(lab: Lab) -> None:
    by_spark = stage(over_panes, by_spark=True)
    for old, new in ((by_spark, stage(over_panes)), (stage(over_panes), by_spark)):
        done = lab.switch(old, new, BEFORE, AFTER)
        assert done.verdict.outcome == "kept"
        assert not done.refused
        assert done.all == final(lab.at_once(by_spark, ALL))


def test_another_size_of_windows_over_panes_starts_empty(lab: Lab) -> None:
    wider = stage(over_panes, size="30 seconds")
    for old in (stage(over_panes), stage(over_panes, by_spark=True)):
        assert lab.verdict(old, wider).outcome == "starts empty"
