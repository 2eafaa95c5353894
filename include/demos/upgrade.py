"""The demo: deploy a job under load, upgrade it through a named snapshot, and prove that nothing was lost."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from demos import gap
from demos.freshness import Watcher, latenesses, longest_pause, spread
from demos.report.upgrade import page
from streamops import snapshots
from streamops.clients.airflow import Airflow
from streamops.clients.dashboard import Dashboard
from streamops.clients.kafka import Ledger
from streamops.model import records
from streamops.model.errors import NotFoundError, StreamOpsError, UnhealthyError
from streamops.model.records import FINAL, DriverStatus, JobRecord
from streamops.operations import runbooks
from streamops.operations.facts import Checked
from streamops.operations.follow import Runbooks, Show, request, spans
from streamops.operations.operation import Operation, Request
from streamops.recount.recounting import recount_job
from streamops.recount.report import Report
from streamops.settings import REPOSITORY, Settings
from streamops.store import jobs, waiting
from streamops.store.object_store import ObjectStore
from streamops.upkeep import scheduled
from streamops.versions import artifacts

JOB = "trade-analyser"
TOPIC = "trades"
SYMBOLS = ("AAPL", "MSFT", "AMZN")
MEASUREMENTS = ("avg_1s", "avg_1m", "vol_1s")
RATE = 10_000
CORES = 6  # that two versions at that rate, the servers and the generator take, with some to spare
SLOWER = 1_000  # trades a second on a smaller machine, while two versions run
RUNBOOKS = ("deploy_job", "start_job", "cancel_job", "upgrade_job", "schedule_job")
RETENTION, BY_ITSELF = "apply_retention", "scheduled_snapshots"
KEEP = {"last": 1}
HEALTHY_S = 300  # a machine with two cores may be busy with other things
AROUND_S = 20  # the upgrade's own peak is left out of the lateness of the steady state


@dataclass(frozen=True)
class Options:
    """Seconds of traffic before and after the upgrade and of its probation, and where the report goes."""

    traffic_before_s: float = 60.0
    traffic_after_s: float = 90.0
    probation_s: int | None = None  # None: as long as the runbook's form says
    directory: Path = REPOSITORY / "spark_jobs" / "trade_analyser"
    report: Path = REPOSITORY / "build"


@dataclass
class Story:
    """What happened so far; ``parts`` are names and seconds."""

    say: Callable[[str], None]
    parts: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """One part of the story, said before and timed."""
        self.say(f"\n== {name}")
        begun = time.monotonic()
        yield
        self.parts.append({"name": name, "seconds": round(time.monotonic() - begun, 2)})

    def run(self, runbooks: Runbooks, progress: Callable[[], Show], asked: Request) -> Operation:
        """Run a runbook to its end; says where its page is, and shows its steps."""
        return runbooks.run(asked, progress(), lambda run: self.say(f"  {runbooks.airflow.page(run)}"))


class Demo:
    """The story on a running stack.

    Args:
        settings: the installation.
        say: receives lines for a person.
        progress: called for each runbook; what it returns is shown the steps as they proceed.
        pace: has so many trades a second written from now on.
    """

    def __init__(
        self,
        settings: Settings,
        options: Options,
        say: Callable[[str], None],
        progress: Callable[[], Show],
        pace: Callable[[int], None],
    ) -> None:
        self.settings = settings
        self.options = options
        self.say = say
        self.progress, self.pace = progress, pace
        self.store = ObjectStore(settings)
        self.story = Story(say)

    def tell(self) -> dict[str, Any]:
        """Run the whole story and return the report.

        Raises:
            StreamOpsError: a part of it failed; what runs is left as it is.
        """
        with (
            closing(Dashboard(self.settings)) as dashboard,
            Airflow(self.settings) as airflow,
            Watcher(partial(dashboard.newest, MEASUREMENTS, SYMBOLS[0])) as watcher,
        ):
            runbooks = Runbooks(airflow, self.store)
            self.wait_for_trades()
            self.publish()
            with self.story.part("Wait until Airflow has read the runbooks"):
                runbooks.wait_ready((*RUNBOOKS, RETENTION, BY_ITSELF))
            self.bring_v1(runbooks)
            rate = self.traffic("v1", self.options.traffic_before_s, watcher)
            before = gap.place(self.store, JOB, self.record().deployment)
            operation = self._upgrade(runbooks)
            after = gap.place(self.store, JOB, self.record().deployment)
            if before is None or after is None:
                raise UnhealthyError(f"{JOB} has no checkpoint to compare; read 'streamops jobs show {JOB}'.")
            stages = tuple(artifacts.load_manifest(self.store, JOB, "v2").definition.stages)
            gaps = self.gaps(before, after, stages)
            beside = self.traffic("v2", self.options.traffic_after_s, watcher)
            kept = self._scheduled(runbooks)
            if machine()["cores"] < CORES:
                self.say(f"\nTwo versions at this rate need {CORES} cores: {SLOWER:,} trades/s from now on.")
                self.pace(SLOWER)
                beside = self.traffic("v2", AROUND_S, watcher)
            taken = self._take_over(runbooks, watcher, beside)
            if taken["operation"]:
                self.traffic("v3", self.options.traffic_after_s, watcher)
            self.pace(RATE)
            with self.story.part("Recount: compute everything again from the topic, and compare"):
                recount = recount_job(self.settings, self.store, JOB)
            return self._report(dashboard, watcher, operation, gaps, rate, recount, taken) | {"scheduled": kept}

    def wait_for_trades(self) -> None:
        """Wait until trades arrive."""
        with self.story.part("Wait for trades on the topic"), closing(Ledger(self.settings)) as ledger:
            first = _end(ledger)
            until(lambda: _end(ledger) > max(first, 0), 60, "No trade arrives on the topic; is the generator up?")

    def publish(self) -> None:
        """Publish all three versions; what is published already stays as it is."""
        with self.story.part(f"Publish {JOB} v1, v2 and v3"):
            for version in ("v1", "v2", "v3"):
                done = artifacts.publish(self.store, self.options.directory, version)
                self.say(f"  {version}: sha256 {done.artifact_sha256[:12]}, {done.size:,} bytes")

    def record(self) -> JobRecord:
        """The job record as it is now."""
        return jobs.record(self.store, JOB) or JobRecord(job=JOB)

    def bring_running(self, runbooks: Runbooks, version: str = "v1") -> None:
        """Have the job running, in the version given if it was never deployed; state is continued."""
        record = self.record()
        if record.deployment == 0:
            with self.story.part(f"Deploy {version} (runbook deploy_job)"):
                self.run(runbooks, "deploy_job", version=version)
            return
        if record.desired == "running" and self._ended(record):
            with self.story.part(f"The driver of {JOB} has ended: put the job in order (runbook cancel_job)"):
                self.run(runbooks, "cancel_job")
                record = self.record()
        if record.desired != "running":
            with self.story.part(f"Start {JOB} {record.version} again, from its own checkpoint (runbook start_job)"):
                self.run(runbooks, "start_job")
        self._wait_running()

    def bring_v1(self, runbooks: Runbooks) -> None:
        """Have v1 running, whatever an earlier demo left behind; state is continued, never thrown away."""
        fresh = self.record().deployment == 0
        self.bring_running(runbooks)
        if fresh:
            return
        if self.record().version != "v1":
            name = self.free_name("BackToV1-")
            with self.story.part(f"An earlier demo left {self.record().version} running: go back to v1 through {name}"):
                added = ("avg_1m", "vol_1s")  # v1 has no such stages
                self.run(runbooks, "upgrade_job", version="v1", snapshot=name, accept_loss=added, probation_s=0)
        else:
            self.say(f"\n{JOB} v1 is running already; it is used as it is.")

    def _ended(self, record: JobRecord) -> bool:
        status = self._status(record)
        return status is not None and status.state in FINAL

    def _status(self, record: JobRecord) -> DriverStatus | None:
        return jobs.status(self.store, JOB, record.launch) if record.launch else None

    def _wait_running(self) -> None:
        def running() -> bool:
            status = self._status(self.record())
            if status and status.state in FINAL:
                raise UnhealthyError(f"{JOB} ended {status.state}: {status.reason or 'no reason given'}.")
            return bool(status and status.state == "running")

        until(running, 180, f"{JOB} does not run; read 'streamops jobs show {JOB}'.")

    def traffic(self, version: str, seconds: float, watcher: Watcher) -> float:
        """Let traffic flow and return its rate, as the topic has it."""
        title = f"{version}: {seconds:.0f} s of traffic"
        with self.story.part(title), closing(Ledger(self.settings)) as ledger:
            first, begun = _end(ledger), time.monotonic()
            while (left := begun + seconds - time.monotonic()) > 0:
                time.sleep(min(left, 10.0))  # the traffic is the point: there is nothing else to wait for
                points = {name: len(watcher.seen(name)) for name in MEASUREMENTS}
                rate = (_end(ledger) - first) / (time.monotonic() - begun)
                self.say(f"  {rate:,.0f} trades/s; new points seen: " + _listed(points))
            return (_end(ledger) - first) / (time.monotonic() - begun)

    def _upgrade(self, runbooks: Runbooks) -> Operation:
        name = "SavePoint1"
        taken = {manifest.name for manifest in snapshots.list(self.store, JOB)}
        if name in taken:
            name = self.free_name("SavePoint1-")
            self.say(f"\nSavePoint1 is kept from an earlier demo (names are never reused); this one is {name}.")
        with self.story.part(f"Upgrade to v2 while trades keep coming, snapshot {name} (runbook upgrade_job)"):
            return self.run(runbooks, "upgrade_job", version="v2", snapshot=name, probation_s=self.options.probation_s)

    def _scheduled(self, runbooks: Runbooks) -> dict[str, Any]:
        """Two snapshots that nobody takes by hand, and what a rule for keeping decides about all there are."""
        taken: dict[str, int] = {}

        def two() -> bool:
            last = scheduled.last_of(self.store, JOB)
            if last and last.state == "taken" and last.slot > begun and last.snapshot not in taken:
                taken[last.snapshot] = last.size
                self.say(f"  {last.snapshot} taken {last.late_s:.1f} s after it was due ({last.size:,} bytes)")
            return len(taken) >= 2

        def schedule(**values: Any) -> Operation:
            return self.story.run(runbooks, self.progress, request("schedule_job", job=JOB, **values))

        with self.story.part("A snapshot every minute, without a restart (runbook schedule_job)"):
            begun = schedule(every="1 minute").updated
        try:
            with self.story.part(
                "Two snapshots are taken by themselves while trades keep coming (DAG scheduled_snapshots)"
            ):
                until(two, HEALTHY_S, "No snapshot is taken by itself; is the DAG scheduled_snapshots paused?")
        finally:
            with self.story.part("The schedule of the definition again (runbook schedule_job)"):
                schedule(as_defined=True)
        rule = ", ".join(f"{name} {count}" for name, count in KEEP.items())
        with self.story.part(f"What would go if only {rule} were kept (DAG apply_retention, Apply not ticked)"):
            decided = runbooks.handed_on(RETENTION, RETENTION, {"job": JOB, "keep": KEEP})["verdicts"]
            for item in decided:
                self.say(f"  {item['name']}: {'kept' if item['keep'] else 'would be removed'}, {item['why']}")
        return {"taken": taken, "verdicts": decided}

    def _take_over(self, runbooks: Runbooks, watcher: Watcher, rate: float) -> dict[str, Any]:
        """Upgrade to v3 without a gap, and what that was like. ``operation`` is None if v3 did not take over.

        Raises:
            StreamOpsError: it failed after it had begun to write.
        """
        before = {name: longest_pause(watcher.seen(name), _now() - 30_000, _now()) for name in MEASUREMENTS}
        told: dict[str, Any] = {"operation": None, "from": "v2", "to": "v3", "undisturbed": before, "began_ms": _now()}
        told["rate"] = round(rate, 1)
        title = "Upgrade to v3, all in real time, which runs beside v2 and takes over (runbook upgrade_job, gapless)"
        with self.story.part(title):
            asked = {"snapshot": self.free_name("Gapless-"), "probation_s": self.options.probation_s}
            try:
                done = self.run(runbooks, "upgrade_job", version="v3", strategy="gapless", **asked)
            except StreamOpsError as error:
                record = self.record()
                if (record.version, record.desired) != ("v2", "running"):
                    raise
                self.say(f"  v3 did not take over, and v2 runs on as if nothing had been: {error}")
                return told | {"reason": str(error), "ended_ms": _now()}
        switch, ended = _ms(done.steps["hand_over"].started), _ms(done.updated)
        pauses = {name: longest_pause(watcher.seen(name), switch - 5_000, ended) for name in MEASUREMENTS}
        told |= {"operation": done.id, "snapshot": done.snapshot, "switch_ms": switch, "ended_ms": ended}
        return told | {"pauses": pauses, "steps": _steps(done)}

    def free_name(self, stem: str) -> str:
        """A snapshot name that is not taken."""
        taken = {manifest.name for manifest in snapshots.list(self.store, JOB)}
        return next(name for number in range(2, 1_000_000) if (name := f"{stem}{number}") not in taken)

    def run(self, runbooks: Runbooks, runbook: str, **values: Any) -> Operation:
        """Run a runbook on the demo's job and show its steps."""
        timeout = None if runbook == "cancel_job" else HEALTHY_S
        asked = request(runbook, job=JOB, healthy_timeout_s=timeout, **values)
        return self.story.run(runbooks, self.progress, asked)

    def gaps(self, before: gap.Place, after: gap.Place, stages: tuple[str, ...]) -> dict[str, gap.Gap]:
        """The gaps of a switch, once every stage has committed after it."""

        def found() -> bool:
            return all(item.first for item in gap.gaps(self.store, JOB, before, after, stages).values())

        until(found, 120, f"A stage of {JOB} v2 has not committed anything; read 'streamops jobs show {JOB}'.")
        return gap.gaps(self.store, JOB, before, after, stages)

    def _report(
        self,
        dashboard: Dashboard,
        watcher: Watcher,
        operation: Operation,
        gaps: dict[str, gap.Gap],
        rate: float,
        recount: Report,
        taken: dict[str, Any],
    ) -> dict[str, Any]:
        switch = _ms(operation.steps["request_stop"].started)
        back = max(_ms(item.first) for item in gaps.values() if item.first)
        seen = watcher.seen("avg_1s")
        first = max(
            seen[0].window_end_ms if seen else switch, switch - int(self.options.traffic_before_s * 1000) - 30_000
        )
        last = max((point.window_end_ms for point in seen), default=switch)
        begun = switch - 15_000  # new stages start at the snapshot, whose windows end before the switch
        late = latenesses(seen)
        shown = [(at, value) for at, value in late if at >= first]  # before: what had waited for the deployment
        around = range(switch - AROUND_S * 1000, back + AROUND_S * 1000)
        steady = [value for at, value in shown if at not in around and at < taken["began_ms"]]
        live = [value for at, value in shown if taken["operation"] and at > taken["ended_ms"]]
        name = operation.snapshot
        manifest = next(item for item in snapshots.list(self.store, JOB) if item.name == name)
        return {
            **report_head(first, last, rate, self.story.parts),
            "upgrade": {
                "operation": operation.id,
                "run": operation.owner.run_id,
                "from": operation.before.version if operation.before else "v1",
                "to": operation.reported("check", Checked).after,
                "snapshot": name,
                "snapshot_bytes": manifest.size,
                "switch_ms": switch,
                "back_ms": back,
                "longest_pause_s": longest_pause(seen, switch, back),
                "gaps": {
                    stage: {
                        "last": item.last.isoformat() if item.last else None,
                        "first": item.first.isoformat() if item.first else None,
                        "seconds": item.seconds,
                    }
                    for stage, item in gaps.items()
                },
                "steps": _steps(operation),
            },
            "recount": recount.model_dump(mode="json"),
            "takeover": {**taken, "lateness": (after := spread(live)) and vars(after)},
            "lateness": (found := spread(steady)) and vars(found),
            "series": {
                "avg_1s": {name: dashboard.series("avg_1s", first, last + 1, name) for name in SYMBOLS},
                "avg_1m": {name: dashboard.series("avg_1m", begun, last + 1, name) for name in SYMBOLS},
                "vol_1s": dashboard.series("vol_1s", begun, last + 1),
                "lateness": late,
            },
        }


def report_head(first_ms: int, last_ms: int, rate: float, parts: Any) -> dict[str, Any]:
    """What every report of a story begins with: when and where it was told, how fast, and its parts.

    Args:
        first_ms, last_ms: what is shown, by the ends of windows.
        rate: trades a second that the generator reached.
    """
    return {
        "job": JOB,
        "finished": records.now().isoformat(timespec="seconds"),
        "machine": machine(),
        "shown_from_ms": first_ms,
        "shown_to_ms": last_ms,
        "rate": {"asked": RATE, "reached": round(rate, 1)},
        "story": parts,
    }


def machine() -> dict[str, Any]:
    """What the story was told on."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
    }


def write(
    report: dict[str, Any], directory: Path, name: str = "demo", page: Callable[[dict[str, Any]], str] = page
) -> tuple[Path, Path]:
    """Write a report as JSON and as a page, and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    data, shown = directory / f"{name}-report.json", directory / f"{name}-report.html"
    data.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    shown.write_text(page(report), encoding="utf-8")
    return data, shown


def summary(report: dict[str, Any]) -> list[str]:
    """The lines that end the demo."""
    upgrade, recount = report["upgrade"], report["recount"]
    lines = [
        f"rate       {report['rate']['reached']:,.0f} trades/s (asked for {report['rate']['asked']:,})",
        f"upgrade    {upgrade['from']} to {upgrade['to']} through {upgrade['snapshot']} "
        f"({upgrade['snapshot_bytes']:,} bytes)",
    ]
    for stage, item in upgrade["gaps"].items():
        told = f"{item['seconds']:.1f} s without a commit" if item["seconds"] is not None else "new in this version"
        lines.append(f"  stage    {stage}: {told}")
    pause = upgrade["longest_pause_s"]
    lines.append(f"  felt     {_seconds(pause)}: longest time without a new avg_1s point")
    for step in upgrade["steps"]:
        if step["ended_ms"] is not None:
            lines.append(f"  step     {(step['ended_ms'] - step['started_ms']) / 1000:6.1f} s  {step['title']}")
    kept = report["scheduled"]
    goes = [item["name"] for item in kept["verdicts"] if not item["keep"]]
    lines.append(f"snapshots  {', '.join(kept['taken'])} were taken by themselves")
    lines.append(f"  rule     'keep the last one' would remove {', '.join(goes) or 'none'}; nothing was removed")
    lines += list(_takeover(report["takeover"]))
    if late := report["lateness"]:
        lines.append(
            f"lateness   p50 {late['p50']:.1f} s, p99 {late['p99']:.1f} s in v1 and v2, apart from the upgrade"
        )
    for item in recount["measurements"]:
        lines.append(
            f"recount    {item['measurement']}: {item['expected']:,} points expected, {item['missing']} missing, "
            f"{item['wrong']} wrong, {item['unexpected']} unexpected"
        )
    lines.append(f"           {'CLEAN' if recount['clean'] else 'NOT CLEAN'}: {recount['reason']}")
    return lines


def _takeover(taken: dict[str, Any]) -> Iterator[str]:
    """What the upgrade without a gap was like."""
    way = f"{taken['from']} to {taken['to']}"
    if taken["operation"] is None:
        yield f"gapless    {way} did not take over; {taken['from']} ran on: {taken['reason']}"
        return
    took = (taken["ended_ms"] - taken["began_ms"]) / 1000
    yield f"gapless    {way} through {taken['snapshot']} at {taken['rate']:,.0f} trades/s, {took:.0f} s in all"
    for name, pause in taken["pauses"].items():
        alone = taken["undisturbed"][name]
        yield f"  felt     {_seconds(pause)} without a new point of {name}; {_seconds(alone)} before, undisturbed"
    if late := taken["lateness"]:
        yield f"  late     p50 {late['p50']:.2f} s, p99 {late['p99']:.2f} s in {taken['to']}"


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} s"


def _steps(operation: Operation) -> list[dict[str, Any]]:
    when = spans(operation)
    return [
        {
            "name": step.name,
            "task": step.task,
            "title": step.title,
            "started_ms": _ms(when[step.name][0]),
            "ended_ms": _ms(ended) if (ended := when[step.name][1]) else None,
        }
        for step in runbooks.of(operation).plan(operation.request)
        if step.name in when
    ]


def _end(ledger: Ledger) -> int:
    try:
        return sum(ledger.end_offsets(TOPIC).values())
    except NotFoundError:
        return 0


def until(done: Callable[[], bool], deadline_s: float, otherwise: str) -> None:
    """Wait for a condition. Raises StreamOpsError with the text given when it does not come in time."""
    if not waiting.until(done, deadline_s, 0.5):
        raise StreamOpsError(otherwise)


def _now() -> int:
    return int(time.time() * 1000)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none yet"
