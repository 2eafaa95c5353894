"""What a rehearsal found: a version beside the one that runs, on the same events; as a record, and for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from html import escape
from typing import Self

from streamops.model.definitions import OF_DEPLOYMENT, Definition, Param
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.records import Deployment, LibraryUse
from streamops.model.stored import Part, Stored
from streamops.operations.operation import Operation
from streamops.recount.beside import Compared, Lateness
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore


class AsRun(Part):
    """What decides what a version does: its bytes, and what was set at deploy over its definition."""

    version: str
    artifact_sha256: str
    runtime_sha256: str
    library: LibraryUse | None = None
    params: dict[str, Param] = {}
    topics: dict[str, str] = {}
    resources: dict[str, Param] = {}

    @classmethod
    def of(cls, found: Deployment) -> Self:
        """As a deployment runs it."""
        return cls.model_validate(found.model_dump(include=set(AsRun.model_fields)))

    def same_as(self, other: AsRun) -> bool:
        """Whether both do the same."""
        every = set(AsRun.model_fields)
        return self.model_dump(include=every) == other.model_dump(include=every)


class Tried(AsRun):
    """A version that was rehearsed, or that one was rehearsed beside, and what it took meanwhile.

    ``cores`` and the two sizes are what it asks of the cluster; ``driver_cores`` (on average) and
    ``driver_bytes`` are what its driver took, where the node says that.
    """

    deployment: int
    cores: int
    executor_memory: str
    driver_memory: str
    driver_cores: float | None = None
    driver_bytes: int | None = None


class Side(Part):
    """One stage of one version, while it was rehearsed. Rows that were late are of all its driver's life."""

    rows_per_s: float | None = None
    lateness: Lateness | None = None  # of the windows that were compared
    lag: int = 0
    late_rows: int = 0
    state_rows: int = 0
    state_bytes: int = 0


class StageTried(Part):
    """One stage of both versions. ``until``: windows that end later were not closed yet, and are not compared."""

    compared: Compared
    old: Side
    new: Side
    until: datetime
    before: Lateness | None = None  # of the version that runs, right before the other one started


class Rehearsal(Stored):
    """What an operation found that ran ``new`` beside ``old`` for so many seconds, once it had caught up."""

    id: str
    job: str
    at: datetime
    seconds: float
    old: Tried
    new: Tried
    stages: dict[str, StageTried]
    only_old: tuple[str, ...] = ()  # stages
    only_new: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """How many were compared."""
        return sum(stage.compared.points for stage in self.stages.values())

    @property
    def differing(self) -> dict[str, int]:
        """Stage -> points that are not the same in both, where there are any."""
        return {name: stage.compared.differing for name, stage in self.stages.items() if stage.compared.differing}


def tried(found: Deployment, definition: Definition, **more: float | None) -> Tried:
    """A deployment of a version, with what it took."""
    own = AsRun.of(found).model_dump()
    asks = definition.with_resources(found.resources).resources.model_dump(include={*OF_DEPLOYMENT})
    return Tried.model_validate({**own, **asks, "deployment": found.number, **more})


def write(store: ObjectStore, found: Rehearsal) -> None:
    """Store what a rehearsal found; the last word of an operation counts."""
    documents.write(store, keys.rehearsal(found.job, found.id), found)


def read_all(store: ObjectStore, job: str) -> list[Rehearsal]:
    """All rehearsals of a job that compared something, the oldest first."""
    return sorted(documents.every(store, keys.rehearsals(job), Rehearsal), key=lambda item: item.at)


def require(store: ObjectStore, job: str, old: AsRun, new: AsRun, within: timedelta, moment: datetime) -> Rehearsal:
    """The last rehearsal of a version beside the one that runs, both as they are now.

    Raises:
        RefusedError: there is none that succeeded, or it is too old.
    """
    what = f"{new.version} beside {old.version}, with these settings,"
    again = f"rehearse it (rehearse_job, or 'streamops rehearse {job} {new.version}'), then upgrade."
    every = [found for found in read_all(store, job) if found.new.same_as(new) and found.old.same_as(old)]
    good = [found for found in every if _succeeded(store, found)]
    if not good:
        why = f"did not succeed ({every[-1].id})" if every else "was never done"
        raise RefusedError(f"A rehearsal of {job} {what} is demanded and {why}; {again}")
    if moment - good[-1].at > within:
        raise RefusedError(
            f"The last rehearsal of {job} {what} was on {good[-1].at:%Y-%m-%d at %H:%M} UTC, longer ago than "
            f"the {within / timedelta(hours=1):g} h that are allowed; {again}"
        )
    return good[-1]


def _succeeded(store: ObjectStore, found: Rehearsal) -> bool:
    operation = documents.find(store, keys.operation(found.job, found.id), Operation)
    return operation is not None and operation.state == "succeeded"


def find(store: ObjectStore, jobs: list[str], operation_id: str) -> Rehearsal:
    """A rehearsal by its operation. Raises NotFoundError."""
    for job in jobs:
        if found := documents.find(store, keys.rehearsal(job, operation_id), Rehearsal):
            return found
    raise NotFoundError(f"There is no rehearsal {operation_id!r}; 'streamops rehearsals' lists them.")


# --- for people


def verdict(found: Rehearsal) -> str:
    """The result in one sentence."""
    if off := found.differing:
        told = ", ".join(f"{number:,} of {name}" for name, number in off.items())
        return f"{sum(off.values()):,} of {found.points:,} points differ: {told}"
    return f"all {found.points:,} points are the same"


RESULTS = ("stage", "equal", "different", "only old", "only new", "first window", "last window")
PACE = ("stage", "version", "rows/s", "late p50", "late p99", "rows behind", "dropped as late", "state rows", "state")


def results(found: Rehearsal) -> Iterator[tuple[str, ...]]:
    """What was compared: a row for each stage, as ``RESULTS`` says."""
    for name, stage in found.stages.items():
        same = stage.compared
        counts = (same.equal, same.different, same.only_old, same.only_new)
        yield name, *(f"{number:,}" for number in counts), _clock(same.first), _clock(same.last)


def pace(found: Rehearsal) -> Iterator[tuple[str, ...]]:
    """How both worked: two rows for each stage, three where it is known how late results were before."""
    for name, stage in found.stages.items():
        if stage.before:
            yield name, f"{found.old.version}, before", "-", *_late(stage.before), *("-",) * 4
        for version, side in ((found.old.version, stage.old), (found.new.version, stage.new)):
            rate = "-" if side.rows_per_s is None else f"{side.rows_per_s:,.0f}"
            numbers = (f"{number:,}" for number in (side.lag, side.late_rows, side.state_rows))
            yield name, version, rate, *_late(side.lateness), *numbers, _size(side.state_bytes)


def lines(found: Rehearsal) -> Iterator[str]:
    """A rehearsal as text."""
    yield _title(found)
    for heading, rows in ((RESULTS, results(found)), (PACE, pace(found))):
        yield from _table(heading, list(rows))
    yield from (f"  {text}" for text in _notes(found))
    for name, stage in found.stages.items():
        yield from (f"  {name}: {text}" for text in stage.compared.examples)
    yield f"  {verdict(found)}"


def page(found: Rehearsal) -> str:
    """A rehearsal as an HTML page that needs nothing else."""
    examples = "".join(
        f"<li>{escape(name)}: {escape(text)}</li>"
        for name, stage in found.stages.items()
        for text in stage.compared.examples
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(_title(found))}</title><style>{_CSS}</style></head><body>"
        f"<h1>{escape(_title(found))}</h1><p><b>{escape(verdict(found))}.</b></p>"
        f"<h2>Results of the same windows</h2>{_html(RESULTS, results(found))}"
        + (f"<ul>{examples}</ul>" if examples else "")
        + f"<h2>Pace and state</h2>{_html(PACE, pace(found))}<ul>"
        + "".join(f"<li>{escape(text)}</li>" for text in _notes(found))
        + "</ul></body></html>"
    )


_CSS = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;"
    "padding:0 1rem}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid #8886}"
    "th:first-child,td:first-child{text-align:left}th{font-weight:500;opacity:.7}"
)


def _title(found: Rehearsal) -> str:
    return (
        f"Rehearsal {found.id}: {found.job} {found.new.version} (deployment {found.new.deployment}) beside "
        f"{found.old.version} (deployment {found.old.deployment}) for {found.seconds:.0f} s, until "
        f"{found.at:%Y-%m-%d %H:%M:%S} UTC"
    )


def _notes(found: Rehearsal) -> Iterator[str]:
    for version in (found.old, found.new):
        used = [] if version.driver_cores is None else [f"{version.driver_cores:.2f} of a core"]
        used += [] if version.driver_bytes is None else [_size(version.driver_bytes)]
        yield (
            f"{version.version}: asks for {version.cores} cores, executors of {version.executor_memory}, a driver of "
            f"{version.driver_memory}{'; its driver took ' if used else ''}{' and '.join(used)}"
        )
    for name, stage in found.stages.items():
        if not stage.compared.points:
            yield f"{name}: no window of it ended in this time, so nothing was compared"
    for version, names in ((found.old, found.only_old), (found.new, found.only_new)):
        if names:
            yield f"only {version.version} has {', '.join(names)}"


def late(found: Lateness) -> str:
    """Lateness in a few words."""
    half, most = _late(found)
    return f"half of them within {half} after their window's end, 99% within {most}"


def _late(found: Lateness | None) -> tuple[str, str]:
    return ("-", "-") if found is None else (f"{found.p50_ms / 1000:.2f} s", f"{found.p99_ms / 1000:.2f} s")


def _clock(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%H:%M:%S}"


def _size(bytes_: float) -> str:
    return f"{bytes_ / (1 << 20):,.1f} MiB"


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in (heading, *rows)) for at in range(len(heading))]
    for row in (heading, *rows):
        yield "  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))


def _html(heading: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heading)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
