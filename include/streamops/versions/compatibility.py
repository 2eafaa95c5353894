"""What becomes of each stage's state when another version continues it: decided from fingerprints alone.

Spark checks only part of this, and accepts changes after which results are wrong: ``max`` to ``count``, another slide,
another column with the same type as key. So the verdict is the product's. It says *unknown* rather than guess.
docs/compatibility.md lists the changes with their verdicts, and the test on real Spark that shows each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from streamops.versions import refill
from streamops.versions.fingerprints import Aggregate, Fingerprint, Key, Operator, length

Outcome = Literal["kept", "kept with caveat", "refilled", "starts empty", "dropped", "unknown", "incompatible"]
_WEIGHT: dict[Outcome, int] = {"kept": 0, "kept with caveat": 1, "starts empty": 2, "unknown": 3, "incompatible": 4}

# Releases of Spark that continue each other's state, whichever comes first: docs/adr/0026-real-time-stages.md
SAME_STATE = {"4.2.0", "4.3.0"}
_AS_BEFORE = "It continues where it stopped; its results are those of an uninterrupted run."
_ANOTHER_NAME = (
    "Nothing is stopped. Give the changed stage another name: it then starts empty beside the old results, and the old "
    "state is dropped; or keep the old computation."
)
_NOBODY_KNOWS = (
    "Spark may refuse the state, or continue it with wrong results. Accept it only if you know that the state fits."
)
_EARLY = "Results are given as they change, and no longer once they are final."
_WAITED = (
    "Spark then gives only what an event has changed: windows that were read and not yet written at the switch, those "
    "of the last batches, are written only where another event of theirs comes."
)
_REFILLED = (
    "Its old state is left behind: it begins empty, {reach} before the switch, and reads again from the ledger what "
    "the windows of then need. No result is missing, and none is partial; they are late until it has caught up."
)
_FRESH = "It begins with empty state where the other stages stand; what began before that is partial."
_FILLED = (
    "It begins with empty state, {fill} before the other stages, and reads from the ledger what came since. Results of "
    "that time are whole; it gives way to the others until it is where they stand."
)
_CANNOT_FILL = (
    "It cannot begin {fill} earlier, as its definition says: that takes windows of 15 minutes at most, over topics "
    "that have an event_time and are the same as before. " + _FRESH
)
_EMPTY = "It continues with empty state: windows that were open are dropped, and the first ones after that are partial."
_NEW_SHAPE = (
    "Windows of two shapes must not be mixed, so the stage continues where it had read to with empty state: windows "
    "that were open are dropped, and windows that reach back before the switch hold only what came after it. "
    "An event that is later than the old watermark can write such a window over a result that was final."
)


class Verdict(BaseModel):
    """One stage. ``lost`` says that state may be lost, so that someone has to agree before anything is stopped."""

    model_config = ConfigDict(frozen=True)

    stage: str
    outcome: Outcome
    reasons: tuple[str, ...]
    consequence: str
    lost: bool = False

    def text(self) -> str:
        """As a log and a receipt say it."""
        return f"{self.outcome}. {' '.join(self.reasons)} {self.consequence}"


class Moved(NamedTuple):
    """A source that reads elsewhere than before: how much that weighs, what it is, what follows."""

    outcome: Outcome
    reason: str
    consequence: str


def elsewhere(source: str, kind: str, before: str, after: str, begin: Mapping[str, int] | None) -> Moved:
    """A source at another place, which its state continues with.

    Args:
        begin: partition -> offset in the new topic; None if it is not known yet.
    """
    if kind == "kafka":
        at = ", ".join(f"{part}: {offset}" for part, offset in sorted((begin or {}).items()))
        follows = (
            f"After the end of {before} it continues with {after}, from {at} on (partition: offset)."
            if begin
            else f"It continues once all of {before} is read, from the offset of {after} that start_at says."
        )
    elif kind == "csv_tail":
        follows = (
            "A file that begins with what was read of the one of that name continues there, another is read from its "
            f"beginning; what {before} gets after the switch is not read."
        )
    else:
        follows = f"It continues after the sequence number that was read last; what {before} has after it is not read."
    return Moved("kept with caveat", f"Source {source} reads {after} instead of {before}.", follows)


def of_another_kind(source: str, before: str, after: str) -> Moved:
    """A source whose old place means nothing to the new one."""
    reason = f"Source {source} is {after} instead of {before}."
    return Moved("incompatible", reason, "Nothing is stopped. Give the source another name: it then starts over.")


class _Finding(BaseModel):
    """One difference: how much it weighs, what it is, what follows."""

    outcome: Outcome
    reason: str
    consequence: str
    lost: bool = False  # whether someone has to agree, although the state is kept
    refill: bool = False  # whether filling the state again from the ledger cures it


def verdicts(
    old: Mapping[str, Fingerprint | None],
    new: Mapping[str, Fingerprint | None],
    *,
    version: str = "the new version",
    ledger: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
    moved: Mapping[str, Moved] | None = None,
    fill: Mapping[str, str] | None = None,
) -> tuple[Verdict, ...]:
    """The verdict for every stage of either version, those of the new version first.

    Args:
        old: the stages whose state there is; None for a stage that has no fingerprint.
        new: the stages of the version that would continue.
        version: how to name that version in a reason.
        ledger: the sources that can be read again from any event time on, with the column that holds it.
        renamed: the stages of the new version that had another name, with that name; only without state they are the
            same stage.
        moved: the sources that read elsewhere than before.
        fill: the stages that begin earlier than the others where they are new, with how much earlier.
    """
    again = {source: column for source, column in (ledger or {}).items() if source not in (moved or {})}
    same = {name: before for name, before in (renamed or {}).items() if _stateless(old[before], new[name])}
    gone = [stage for stage in old if stage not in new and stage not in same.values()]
    fresh = [stage for stage in new if stage not in old and stage not in same]
    found = [
        _appears(stage, gone, version, new[stage], again, (fill or {}).get(stage))
        if stage in fresh
        else _renamed(stage, same[stage])
        if stage in same
        else continued(stage, old[stage], new[stage], again)
        for stage in new
    ]
    found = [item if item.stage in fresh else _also(item, new[item.stage], moved or {}) for item in found]
    found += [_vanishes(stage, old[stage], fresh, version) for stage in gone]
    return tuple(_in_step({item.stage: item for item in found}, new, again).values())


def _also(verdict: Verdict, new: Fingerprint | None, moved: Mapping[str, Moved]) -> Verdict:
    """A verdict with what follows for a stage from where its sources read."""
    mine = [item for source, item in sorted(moved.items()) if new is None or source in new.sources]
    if not mine:
        return verdict
    worst = max((verdict.outcome, *(item.outcome for item in mine)), key=lambda outcome: _WEIGHT.get(outcome, 0))
    told = [] if verdict.outcome == "kept" else [verdict.consequence]
    return verdict.model_copy(
        update={
            "outcome": worst,
            "reasons": (*verdict.reasons, *(item.reason for item in mine)),
            "consequence": " ".join((*told, *(item.consequence for item in mine))),
        }
    )


def _in_step(
    found: dict[str, Verdict], new: Mapping[str, Fingerprint | None], ledger: Mapping[str, str]
) -> dict[str, Verdict]:
    """Verdicts of stages that read each other: the state of both is kept, or both are filled again.

    What a stage that starts over hands on is not what the state of its readers was made of; and a reader that is
    filled again needs results that were handed on before, which a stage gives again only when it reads again itself,
    and then to all that read it.
    """
    pairs = [(stage, read) for stage, item in new.items() if item for read in item.reads]
    before: dict[str, Verdict] | None = None
    while before != found:
        before = dict(found)
        for stage, read in pairs:
            if _is_kept(found[stage]) and not _is_kept(found[read]):
                found[stage] = _anew(stage, f"Stage {read}, which it reads, starts over.", new[stage], ledger)
            elif found[stage].outcome == "refilled" and _is_kept(found[read]):
                reason = f"Stage {stage} reads it, and is filled again."
                anew = {read: _anew(read, reason, new[read], ledger)}
                reason = f"It reads {read}, as {stage} does, which is filled again."
                others = [other for other, of in pairs if of == read and _is_kept(found[other])]
                anew |= {other: _anew(other, reason, new[other], ledger) for other in others}
                if cannot := [name for name, verdict in anew.items() if verdict.outcome != "refilled"]:
                    reason = f"Stage {' and '.join(cannot)} cannot be filled again from the ledger."
                    found[stage] = _anew(stage, " ".join((*found[stage].reasons, reason)), None, ledger)
                else:
                    found |= anew
    return found


def _is_kept(verdict: Verdict) -> bool:
    return verdict.outcome in ("kept", "kept with caveat")


def _anew(stage: str, reason: str, new: Fingerprint | None, ledger: Mapping[str, str]) -> Verdict:
    """Filled again where that is possible, else empty."""
    reach = refill.reach_ms(new, ledger) if new else None
    if reach:
        consequence = _REFILLED.format(reach=length(reach * 1000))
        return Verdict(stage=stage, outcome="refilled", reasons=(reason,), consequence=consequence)
    return Verdict(stage=stage, outcome="starts empty", reasons=(reason,), consequence=_EMPTY, lost=True)


def _stateless(*stages: Fingerprint | None) -> bool:
    return all(stage is not None and not stage.stateful for stage in stages)


def _renamed(stage: str, before: str) -> Verdict:
    reason = f"It is {before} under another name, and has no state."
    return Verdict(stage=stage, outcome="kept", reasons=(reason,), consequence=_AS_BEFORE)


def _appears(
    stage: str, gone: list[str], version: str, new: Fingerprint | None, ledger: Mapping[str, str], fill: str | None
) -> Verdict:
    renamed = f" If it is {' or '.join(gone)} under another name: a name is the identity of the state." if gone else ""
    if fill:
        can = new is not None and refill.can_fill(new, ledger)
        return Verdict(
            stage=stage,
            outcome="refilled" if can else "starts empty",
            reasons=(f"{stage} is new in {version}.{renamed}",),
            consequence=(_FILLED if can else _CANNOT_FILL).format(fill=fill),
            lost=not can,
        )
    return Verdict(
        stage=stage,
        outcome="starts empty",
        reasons=(f"{stage} is new in {version}.{renamed}",),
        consequence=_FRESH,
    )


def _vanishes(stage: str, old: Fingerprint | None, fresh: list[str], version: str) -> Verdict:
    lost = old is None or old.stateful
    renamed = f" {' and '.join(fresh)} cannot take it over: a name is the identity of the state." if fresh else ""
    return Verdict(
        stage=stage,
        outcome="dropped",
        reasons=(f"{version} has no stage {stage}.{renamed}",),
        consequence=(
            "Its state is not continued and it writes no more; the state stays in the snapshot."
            if lost
            else "It writes no more; it has no state that could be lost."
        ),
        lost=lost,
    )


def continued(
    stage: str, old: Fingerprint | None, new: Fingerprint | None, ledger: Mapping[str, str] | None = None
) -> Verdict:
    """The verdict for a stage that both versions have; ``ledger`` as for ``verdicts``."""
    findings = list(_missing(old, new)) if old is None or new is None else list(_differences(old, new))
    if not findings:
        reason = "The state is built the same way." if old and old.stateful else "The stage has no state."
        return Verdict(stage=stage, outcome="kept", reasons=(reason,), consequence=_AS_BEFORE)
    worst = max(findings, key=lambda item: _WEIGHT[item.outcome]).outcome
    told = [item for item in findings if item.outcome == worst]
    reasons = tuple(dict.fromkeys(item.reason for item in findings))
    same = old and new and (set(new.sources) <= set(old.sources) or old.reads != new.reads)
    reach = refill.reach_ms(new, ledger or {}) if new and same else None
    # State that Spark would refuse is left behind as well as any other, unless something else forbids the upgrade.
    cured = any(item.refill for item in findings) and worst in ("kept with caveat", "starts empty", "incompatible")
    if reach and cured and all(item.refill for item in findings if item.outcome == "incompatible"):
        consequence = _REFILLED.format(reach=length(reach * 1000))
        return Verdict(stage=stage, outcome="refilled", reasons=reasons, consequence=consequence)
    return Verdict(
        stage=stage,
        outcome=worst,
        reasons=reasons,
        consequence=" ".join(dict.fromkeys(item.consequence for item in told)),
        lost=worst in ("starts empty", "unknown") or any(item.lost for item in findings),
    )


def refused(found: Iterable[Verdict], accepted: Iterable[str]) -> tuple[Verdict, ...]:
    """The verdicts that forbid the upgrade: incompatible ones always, others as long as no one accepted the loss."""
    agreed = set(accepted)
    return tuple(item for item in found if item.outcome == "incompatible" or (item.lost and item.stage not in agreed))


def lines(found: Iterable[Verdict]) -> list[str]:
    """The verdicts as text for a log."""
    return [f"{item.stage}: {item.text()}" for item in found]


def _missing(old: Fingerprint | None, new: Fingerprint | None) -> Iterable[_Finding]:
    which = "either version" if old is None and new is None else "the old version" if old is None else "the new version"
    yield _unknown(f"There is no fingerprint of the stage in {which}.")


def _differences(old: Fingerprint, new: Fingerprint) -> Iterable[_Finding]:
    if old.reads != new.reads:
        reason = f"It reads {_read(new)} instead of {_read(old)}."
        yield _Finding(outcome="starts empty", reason=reason, consequence=_EMPTY, refill=True)
        return
    sources = (set(old.sources), set(new.sources))
    old, new = _without(old, sources[0] - sources[1]), _without(new, sources[1] - sources[0])
    if not old.stateful and not new.stateful:
        return
    if (old.output, new.output) == ("append", "update"):
        yield _Finding(outcome="kept with caveat", reason=_EARLY, consequence=_WAITED, lost=True, refill=True)
    if old.provider != new.provider:
        yield _no(f"The state store is {new.provider} instead of {old.provider}.")
    before, after = [item.kind for item in old.operators], [item.kind for item in new.operators]
    if before != after:
        yield _no(f"The operators with state are {_listed(after)} instead of {_listed(before)}.")
        return
    for one, other in zip(old.operators, new.operators, strict=True):
        yield from _operator(one, other)
    if old.spark != new.spark and not {old.spark, new.spark} <= SAME_STATE:
        yield _unknown(f"The fingerprints are of Spark {old.spark} and {new.spark}.")
    yield from _watermarks(old, new)
    for source in sorted(set(new.sources) - set(old.sources)):
        yield _caveat(f"Source {source} is added.", f"Of {source} counts what is read from its declared start on.")
    for source in sorted(set(old.sources) - set(new.sources)):
        yield _caveat(f"Source {source} is removed.", f"What {source} holds beyond the switch is not read.")


def _read(fingerprint: Fingerprint) -> str:
    return f"stage {' and '.join(fingerprint.reads)}" if fingerprint.reads else f"{' and '.join(fingerprint.sources)}"


def _without(fingerprint: Fingerprint, sources: Iterable[str]) -> Fingerprint:
    """The texts without what a union takes from these sources."""
    text = fingerprint.model_dump_json(exclude={"sources"})
    for name in sources:
        column = rf"{re.escape(name)}\.[A-Za-z0-9_]+"
        text = re.sub(rf" or {column}|{column} or ", "", text)
        text = re.sub(rf',"{column}"', "", text)  # among the columns of a key
    return Fingerprint.model_validate({**json.loads(text), "sources": fingerprint.sources})


def _watermarks(old: Fingerprint, new: Fingerprint) -> Iterable[_Finding]:
    before = {item.column: item.delay for item in old.watermarks}
    for column, delay in {item.column: item.delay for item in new.watermarks}.items():
        if column not in before:
            continue
        if before[column] != delay:
            yield _caveat(
                f"The watermark delay of {column} is {delay} instead of {before[column]}.",
                "From the switch on the new delay decides which events are too late and when a window is final.",
            )
    changed = {column for column in before if column not in {item.column for item in new.watermarks}}
    added = {item.column for item in new.watermarks} - set(before)
    moved = {name for name in (*changed, *added) if name.split(".")[0] in set(old.sources) & set(new.sources)}
    if moved:
        yield _no(f"The event time is another column (watermark on {_listed(sorted(moved))} only in one version).")


def _operator(old: Operator, new: Operator) -> Iterable[_Finding]:
    if old.kind == "opaque":
        same = old.detail == new.detail
        what = f"{old.detail} keeps state" if same else f"{new.detail} stands where {old.detail} stood"
        yield _unknown(f"{what}, which cannot be compared.")
        return
    yield from _keys(old, new)
    if old.kind == "aggregation":
        yield from _aggregates(old, new)
    elif old.kind == "join":
        yield from _join(old, new)
    elif old.kind == "transform with state":
        yield from _variables(old, new)
    elif old.kind == "apply in pandas with state":
        if old.schema_ != new.schema_:
            yield _no(f"The state of a key is {new.schema_} instead of {old.schema_}.")
        if old.detail != new.detail:
            yield _unknown(f"The function runs as {new.detail} instead of {old.detail}.")
    if set(old.inputs) != set(new.inputs):
        gone, come = sorted(set(old.inputs) - set(new.inputs)), sorted(set(new.inputs) - set(old.inputs))
        parts = [f"now {text}" for text in come] + [f"no longer {text}" for text in gone]
        yield _mixes(old, f"Steps before the state differ: {_listed(parts)}.")


def _keys(old: Operator, new: Operator) -> Iterable[_Finding]:
    before, after = [key.type for key in old.keys], [key.type for key in new.keys]
    one, other = old.window, new.window
    if one and other and "session" in (one.kind, other.kind) and one.kind != other.kind:
        yield _no(f"A {one.label()} became a {other.label()}.")
        return
    if before != after:
        yield _no(f"The keys are {_names(new.keys)} instead of {_names(old.keys)}.")
        return
    if sorted(key.text for key in old.keys) == sorted(key.text for key in new.keys) and [
        key.text for key in old.keys
    ] != [key.text for key in new.keys]:
        yield _no(f"The keys stand in another order: {_names(new.keys)} instead of {_names(old.keys)}.")
        return
    for mine, theirs in zip(old.keys, new.keys, strict=True):
        yield from _key(old, mine, theirs)


def _key(operator: Operator, old: Key, new: Key) -> Iterable[_Finding]:
    if old.window and new.window:
        times = (old.window.time, new.window.time)
        if times[0] != times[1] and not _widened(*times):
            yield _no(f"The window is over {times[1]} instead of {times[0]}.")
        elif old.window.kind == "session" and old.window.gap != new.window.gap:
            yield _caveat(
                f"The session gap is {new.window.gap} instead of {old.window.gap}.",
                "A session that was open at the switch keeps the end that its events gave it under the old gap; an "
                "event that comes after that end but within the new gap begins another session.",
            )
        elif old.window.model_copy(update={"time": ""}) != new.window.model_copy(update={"time": ""}):
            yield _Finding(
                outcome="starts empty",
                reason=f"A {old.window.label()} became a {new.window.label()}.",
                consequence=_NEW_SHAPE,
                refill=True,
            )
        return
    if old.window or new.window:
        yield _no(f"The key is {new.text} instead of {old.text}.")
        return
    if old.text == new.text or _widened(old.text, new.text):
        return
    if "?" in old.text + new.text or not old.columns or not new.columns:
        yield _unknown(f"It cannot be told what the key {new.text} is made of (it was {old.text}).")
    elif old.columns != new.columns:
        yield _no(f"The key is {new.text} instead of {old.text}.")
    else:
        yield _mixes(operator, f"The key is {new.text} instead of {old.text}.")


def _aggregates(old: Operator, new: Operator) -> Iterable[_Finding]:
    before = [slot for item in old.aggregates for slot in item.buffer]
    after = [slot for item in new.aggregates for slot in item.buffer]
    if before != after:
        reason = f"The aggregates' buffers differ: {_buffers(new.aggregates)} instead of {_buffers(old.aggregates)}."
        yield _no(reason, refill=True)
        return
    if [len(item.buffer) for item in old.aggregates] != [len(item.buffer) for item in new.aggregates]:
        yield _no(f"The aggregates are {_texts(new.aggregates)} instead of {_texts(old.aggregates)}.")
        return
    if {item.text for item in old.aggregates} == {item.text for item in new.aggregates} and len(before) > 1:
        if [item.text for item in old.aggregates] != [item.text for item in new.aggregates]:
            yield _no(
                f"The aggregates' order is {_texts(new.aggregates)} instead of {_texts(old.aggregates)}, "
                "and Spark would read each one's state as another's."
            )
        return
    for mine, theirs in zip(old.aggregates, new.aggregates, strict=True):
        if mine.text == theirs.text:
            continue
        reason = f"{theirs.text} is computed instead of {mine.text}."
        if not mine.opaque:
            yield _mixes(old, reason)
        elif mine.function != theirs.function:
            yield _no(reason)
        else:
            yield _unknown(f"{reason} The state of {mine.function} is bytes of its own.")


def _join(old: Operator, new: Operator) -> Iterable[_Finding]:
    if old.rows != new.rows:
        yield _no(f"The join keeps the columns {_rows(new)} instead of {_rows(old)}.")
    if old.detail != new.detail:
        yield _unknown(f"The join is {new.detail} instead of {old.detail}.")
    if old.bounds != new.bounds:
        yield _caveat(
            f"The join's conditions are {_listed(new.bounds)} instead of {_listed(old.bounds)}.",
            "Rows that were waiting at the switch are matched by the new conditions as long as they are still there; "
            "those that the old conditions had let go are not found any more.",
        )


def _variables(old: Operator, new: Operator) -> Iterable[_Finding]:
    if old.detail != new.detail:
        yield _no(f"The processor runs as {new.detail} instead of {old.detail}.")
    if old.variables is None or new.variables is None:
        yield _unknown("It cannot be told which state variables the processor has.")
        return
    before, after = ({item.name: item for item in side.variables or ()} for side in (old, new))
    for name in sorted(before.keys() - after.keys()):
        yield _unknown(f"State variable {name} is gone.")
    for name in sorted(after.keys() - before.keys()):
        yield _caveat(f"State variable {name} is new.", f"{name} is empty for every key at first.")
    for name in sorted(before.keys() & after.keys()):
        mine, theirs = before[name], after[name]
        if (mine.kind, mine.schema_) != (theirs.kind, theirs.schema_):
            yield _no(f"State variable {name} is {theirs.kind} {theirs.schema_} instead of {mine.kind} {mine.schema_}.")
        elif (mine.ttl_ms is None) != (theirs.ttl_ms is None):
            yield _no(f"State variable {name} {'lost its' if theirs.ttl_ms is None else 'got a'} time to live.")
        elif mine.ttl_ms != theirs.ttl_ms:
            yield _caveat(
                f"State variable {name} lives {theirs.ttl_ms} ms instead of {mine.ttl_ms} ms.",
                f"Entries of {name} keep their old time to live until they are written again.",
            )


def _mixes(operator: Operator, reason: str) -> _Finding:
    """A change that old and new events of the same group meet in one value."""
    if operator.kind != "aggregation":
        return _caveat(reason, "What was kept before the switch was kept under the old computation.")
    until = (
        "Windows that were open at the switch hold events of before by the old computation and of after by the new; "
        "windows that begin after it are right."
        if operator.window
        else "Groups that existed at the switch hold events of before by the old computation and of after by the new, "
        "for as long as they live."
    )
    return _caveat(reason, until)


def _no(reason: str, *, refill: bool = False) -> _Finding:
    return _Finding(outcome="incompatible", reason=reason, consequence=_ANOTHER_NAME, refill=refill)


def _caveat(reason: str, consequence: str) -> _Finding:
    return _Finding(outcome="kept with caveat", reason=reason, consequence=consequence)


def _unknown(reason: str) -> _Finding:
    return _Finding(outcome="unknown", reason=reason, consequence=_NOBODY_KNOWS)


def _widened(old: str, new: str) -> bool:
    """Whether one is the other with more or fewer inputs of a union."""
    one, other = set(old.split(" or ")), set(new.split(" or "))
    return one < other or other < one


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items) or "none"


def _names(keys: Iterable[Key]) -> str:
    return _listed(f"{key.text} ({key.type})" if not key.window else key.window.label() for key in keys)


def _texts(aggregates: Iterable[Aggregate]) -> str:
    return _listed(item.text for item in aggregates)


def _buffers(aggregates: Iterable[Aggregate]) -> str:
    return _listed(f"{item.text} [{_slots(item)}]" for item in aggregates)


def _slots(aggregate: Aggregate) -> str:
    shown = [slot.type if slot.nullable else f"{slot.type} not null" for slot in aggregate.buffer]
    return _listed(shown if len(shown) <= 4 else [*shown[:3], f"{len(shown)} in all"])


def _rows(operator: Operator) -> str:
    return " and ".join(f"({_listed(side)})" for side in operator.rows)
