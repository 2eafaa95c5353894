"""What limits a running job, and what an operator would do next. Decided purely; reading is done elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from streamops.model.records import FINAL, LIVE, DriverStatus, Offsets, StageStatus, State, distance

SILENT_S = 15.0  # a driver publishes about once a second; this long without a word is worth a look
BUSY = 0.85  # of the time between two batches spent inside one
LATE_S = 5.0  # a lag of this many seconds of traffic is "keeping up", however short the batches
BATCHES = 3  # and so is one of this many batches: the one under way, what came meanwhile, and one that takes longer
LIVE_LATE_S = 15.0  # the same in real time, where a commit comes every ten seconds and results do not wait for it

# Parts of a batch as Spark names them, and what they stand for.
_PARTS = {
    "addBatch": "computing and writing",
    "latestOffset": "asking Kafka for its end",
    "getBatch": "preparing the read",
    "queryPlanning": "planning",
    "walCommit": "writing offsets to the object store",
    "commitOffsets": "writing commits to the object store",
    "commitBatch": "writing commits to the object store",
}
_OF_SERVERS = {_PARTS[key] for key in ("latestOffset", "walCommit", "commitOffsets", "commitBatch")}  # no cores help


@dataclass(frozen=True)
class Look:
    """One look at a job: the driver's own words, and the ends of the topics at the same moment."""

    at: datetime
    status: DriverStatus
    ends: Offsets  # source -> partition -> next offset to be written


@dataclass(frozen=True)
class StageFlow:
    """What passes through one stage. Rates in rows a second."""

    stage: str
    rate_in: float
    rate_out: float
    lag: int
    busy: float | None  # share of the time that it works, 1.0 is the limit; None where that says nothing of the load
    catch_up_s: float | None  # 0 when it keeps up, None when it does not catch up at this rate


@dataclass(frozen=True)
class Advice:
    """What limits the job and the likely next step, with reasons."""

    limiting: str | None
    flows: tuple[StageFlow, ...]
    next_step: str
    reasons: tuple[str, ...]


def advise(look: Look, earlier: Look | None = None, *, should_run: bool = False) -> Advice:
    """Judge a job from one look, or better from two looks some seconds apart.

    Two looks give measured rates; with one, the rates are those that Spark reported for the last batch.

    Args:
        should_run: what the job record asks for; a driver that ended against it needs a cancel before a start.
    """
    status = look.status
    start = f"'streamops start {status.job}'"
    again = f"'streamops cancel {status.job}', then {start}" if should_run else start
    silent = (look.at - status.updated).total_seconds()
    if status.state in FINAL:
        because = f" ({status.reason})" if status.reason else ""
        step = (
            f"Read the reason and the driver's log and mend the cause, then run {start}, or upgrade to another version."
            if status.state is State.FAILED
            else f"{again} continues it from where it stopped."
        )
        return Advice(None, (), step, (f"The driver ended {status.state}{because}.",))
    if silent > SILENT_S:
        return Advice(
            None,
            (),
            "Wait a minute: the master or the DAG reconcile starts it again. If it stays silent, read the runs of "
            f"reconcile, then run {again}.",
            (f"The driver has said nothing for {silent:.0f} s.",),
        )
    if not status.stages:
        return Advice(None, (), "Wait for the first batch.", (f"The driver is {status.state} and has no stage yet.",))
    if new := [name for name, stage in sorted(status.stages.items()) if not (stage.commits or stage.quiet)]:
        reason = f"The driver is {status.state}; {', '.join(new)} has not committed anything yet."
        return Advice(None, (), "Wait for the first batch of every stage.", (reason,))
    usable = earlier if earlier and earlier.status.holder == status.holder else None
    flows = tuple(_flow(name, stage, look, usable) for name, stage in sorted(status.stages.items()))
    first = max(flows, key=lambda flow: (flow.catch_up_s != 0.0, flow.busy or 0.0, flow.lag))
    step, reasons = _next(first, status.stages[first.stage], status)
    limits = first.catch_up_s != 0.0 or (first.busy or 0.0) > BUSY
    return Advice(first.stage if limits else None, flows, step, reasons + _remarks(status))


def _flow(name: str, stage: StageStatus, look: Look, earlier: Look | None) -> StageFlow:
    asked = bool(stage.offsets.keys() & look.ends.keys())  # else the driver alone knows, as of a feed
    lag = distance(stage.offsets, look.ends) if asked else stage.lag
    rate_in, rate_out = stage.input_rate, min(stage.input_rate, stage.processed_rate)
    if earlier and asked and (seconds := (look.at - earlier.at).total_seconds()) > 0:
        read = {source: ends for source, ends in look.ends.items() if source in stage.offsets}
        rate_in = distance(earlier.ends, read) / seconds
        before = earlier.status.stages.get(name)
        if before and before.last_commit and stage.last_commit and stage.last_commit > before.last_commit:
            span = (stage.last_commit - before.last_commit).total_seconds()
            rate_out = distance(before.offsets, stage.offsets) / span
    live = stage.phase == LIVE  # a batch in real time lasts as long as it should, and says nothing of the work in it
    busy = None
    if stage.processed_rate > 0 and not live and not stage.unpaced:
        busy = min(1.0, stage.input_rate / stage.processed_rate)
    late = rate_in * (LIVE_LATE_S if live else max(LATE_S, BATCHES * stage.batch_ms / 1000))
    catch_up = 0.0 if lag <= late else _catch_up(rate_in, rate_out, stage.processed_rate, lag)
    return StageFlow(name, rate_in, rate_out, lag, busy, catch_up)


def _catch_up(rate_in: float, rate_out: float, capacity: float, lag: int) -> float | None:
    """Seconds until the lag is gone, at the faster of what it does and what it showed it can do."""
    surplus = max(rate_out, capacity) - rate_in
    return lag / surplus if surplus > 0 else None


def _next(flow: StageFlow, stage: StageStatus, status: DriverStatus) -> tuple[str, tuple[str, ...]]:
    part, share = _dominant(stage)
    spent = f"{share:.0%} of a batch is {part}." if part else ""
    if flow.catch_up_s is None:
        if part in _OF_SERVERS:
            step = "Look at the object store and the network: the batches wait for them, not for cores."
        else:
            step = (
                f"Give it more: 'streamops upgrade {status.job} {status.version} --cores N'; more cores than its "
                "state_partitions need a new version with more of these."
            )
        return step, _texts(f"{flow.stage} falls behind: {flow.rate_in:,.0f}/s in, {flow.rate_out:,.0f}/s out.", spent)
    if flow.catch_up_s > 0:
        return (
            f"Wait about {flow.catch_up_s:.0f} s; nothing to do.",
            _texts(f"{flow.stage} is {flow.lag:,} rows behind and catches up.", spent),
        )
    if flow.busy is None:
        return "Nothing to do.", _texts("Every stage keeps up.")
    if flow.busy > BUSY:
        return (
            f"Nothing now; before the traffic grows: 'streamops upgrade {status.job} {status.version} --cores N'.",
            _texts(f"{flow.stage} keeps up, but is busy {flow.busy:.0%} of the time.", spent),
        )
    return "Nothing to do.", _texts(f"Every stage keeps up; {flow.stage} is the busiest ({flow.busy:.0%}).")


def _dominant(stage: StageStatus) -> tuple[str, float]:
    parts: dict[str, int] = {}
    for key, ms in stage.durations_ms.items():
        if key in _PARTS:
            parts[_PARTS[key]] = parts.get(_PARTS[key], 0) + ms
    total = stage.durations_ms.get("triggerExecution", 0) or sum(parts.values())
    if not parts or not total:
        return "", 0.0
    part = max(parts, key=lambda name: parts[name])
    return part, min(1.0, parts[part] / total)


def _remarks(status: DriverStatus) -> tuple[str, ...]:
    """Rows that a stage did not count, worst stage first by name: stages of one source see the same rows."""
    found = []
    for counter, text in (
        ("late_rows", "came too late and were dropped"),
        ("malformed_rows", "could not be read and were rejected"),
        ("ahead_rows", "had a time too far in the future and were rejected"),
        (
            "refused_rows",
            f"were refused by a sink and put aside; see 'streamops quarantine list {status.job}'. They came",
        ),
    ):
        worst = max(status.stages.items(), key=lambda item: getattr(item[1], counter))
        if count := getattr(worst[1], counter):
            found.append(f"{count:,} rows of {worst[0]} {text} since the driver started.")
    if refused := sum(stage.refused_rows for stage in status.stages.values()):
        found.append(
            f"{refused:,} points were refused by a sink and put aside: 'streamops quarantine list {status.job}'."
        )
    return tuple(found)


def _texts(*texts: str) -> tuple[str, ...]:
    return tuple(text for text in texts if text)
