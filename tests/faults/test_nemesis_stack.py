"""Random operations through Airflow on a job under load, with random faults beside them: ``tests/nemesis.py`` plans it.

Whatever happens, a job that should run comes to work again by itself, every event counts once, the record tells the
truth, and the next operation is possible. ``build/nemesis`` keeps what each run did.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from fresh_job import SMALL, FreshJob, wait_for
from nemesis import IN_BATCHES, LIVE, Act, Fault, History, Kind, Round, Seen, judge, looked_after, rounds, way_out
from runbooks import at_work, clear, ended, free, housekept, mark_failed, states, stop
from stack import lifecycle, ready
from stack.programs import AIRFLOW, WORKERS
from streamops import snapshots
from streamops.clients.airflow import Airflow, Run
from streamops.cluster import record as cluster_record
from streamops.cluster.membership import missing
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.errors import SnapshotRefusedError
from streamops.model.names import CLUSTER
from streamops.model.records import FINAL, State
from streamops.operations import needs, runbooks
from streamops.operations.engine import list_operations
from streamops.operations.follow import spans
from streamops.operations.operation import OVER, Operation, operation_id
from streamops.recount.recounting import recount_job
from streamops.settings import REPOSITORY, Settings
from streamops.store import documents, keys, locks
from streamops.versions import artifacts
from support import (
    READY,
    Mark,
    Operator,
    Servers,
    attempts,
    drivers,
    first_members,
    invariant,
    mark,
    uncounted,
    works_again,
)

pytestmark = [pytest.mark.stack, pytest.mark.long]

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
WELL = "all is well"
BACK_S = 540  # for a job to work again, or an abandoned operation to be settled: tries are up to five minutes apart
PATIENT = {"healthy_timeout_s": 400, "stop_timeout_s": 150, "members_timeout_s": 200}
PROBES = {**READY, "spark-master": ready.master, **dict.fromkeys((*AIRFLOW, "postgres"), ready.airflow)}
SLOW_S, QUICK_S = 0.6, 0.2  # how long a server that is slow stands still, and how long it works


@dataclass
class Victim:
    """A job to which things are done.

    Args:
        start: where its recount begins; None as long as it has not been seen at work since it was deployed again.
    """

    job: FreshJob
    kind: Kind
    start: Mark | None


@dataclass
class Nemesis:
    """The jobs, and what is done to them."""

    victims: list[Victim]
    airflow: Airflow
    servers: Servers
    nodes: SupervisedNodes
    history: History
    calm: bool = True  # everything was looked at, and nothing has happened since
    turn: int = 0

    @property
    def job(self) -> FreshJob:
        """The one that it is about now."""
        return self.victims[self.turn].job

    def seen(self) -> Seen:
        job, kind = self.job, self.victims[self.turn].kind
        record, status, cluster = job.record(), job.status(), cluster_record.read(job.store)
        kept = {found.name: found.version for found in snapshots.list(job.store, job.name)}
        needed = needs.users(job.store)
        published = set(kind.versions) <= set(artifacts.versions(job.store, job.name))
        return Seen(
            desired=record.desired,
            version=record.version or kind.versions[0],
            kind=kind,
            there="gone" if record.version is None else "whole" if published else "in part",
            failed=record.desired == "running" and status is not None and status.state is State.FAILED,
            paused=record.paused,
            kept=kept,
            spare=next((name for name in kept if (job.name, name) not in needed), None),
            cluster=cluster.state,
            members=len(cluster.wanted(self.nodes.inventory)),
            comes_back=self.job.name in cluster.jobs,
        )

    # --- operations

    def carry_out(self, each: Round) -> None:
        """One round: the operation, the fault beside it, and what both may have led to."""
        self.turn = int(each.turn * len(self.victims))
        before = self.seen()
        wish, act = each.act(before)
        run = self.begin(act)
        self.history.note(
            "operation", round=each.number, job=self.job.name, wish=wish, of=before.version, job_is=before.desired
        )
        undisturbed = self.calm and each.fault is None
        if each.fault:
            self.calm = False
            self.strike(each, each.fault, act, run)
        outcome, why = self.end(run)
        after = self.seen()
        if after.there != "whole":
            self.victims[self.turn].start = None
        self.history.note("ended", round=each.number, wish=wish, outcome=outcome, why=why, job_is=after.desired,
                          version=after.version)  # fmt: skip
        wrong = judge(act, outcome, before, after, undisturbed=undisturbed)
        assert not wrong, wrong
        if each.calm:
            self.look()

    def begin(self, act: Act) -> Run:
        if act.runbook == "deploy_job":
            self.job.publish_again()
        known = runbooks.find(act.runbook).request.model_fields
        patient = {name: value for name, value in PATIENT.items() if name in known}
        of = {} if act.on_cluster else {"job": self.job.name}
        return self.airflow.trigger(act.runbook, {**of, **patient, **act.values})

    def end(self, run: Run) -> tuple[str, str]:
        """How a run ended, and why, if not well."""
        over = ended(self.airflow, run, 3 * BACK_S)  # what fails waits, is undone, and waits again
        tasks = states(self.airflow, over)
        if tasks and set(tasks.values()) == {"skipped"}:
            return "skipped", ""
        found = self.operation(run)
        reason = (
            "" if over.state == "success" else f"{found.state}: {found.reason}" if found else f"never began {tasks}"
        )
        return over.state, reason

    def operation(self, run: Run) -> Operation | None:
        name, scope = operation_id(run.dag_id, run.dag_id, run.run_id), self.job.name
        if run.dag_id.endswith("_cluster"):
            scope = CLUSTER
        found = documents.read(self.job.store, keys.operation(scope, name), Operation)
        return found.value if found else None

    # --- faults

    def strike(self, each: Round, fault: Fault, act: Act, run: Run) -> None:
        step = each.step(tuple(step.name for step in runbooks.find(act.runbook).steps))

        def there() -> bool:
            found = self.operation(run)
            return bool(found and step in spans(found)) or self.airflow.run(run.dag_id, run.run_id).finished

        if fault.how == "clear":  # a task that is over; while others run, it is Airflow that keeps them apart
            step = "its end"
            self.end(run)
        else:
            wait_for(there, BACK_S, f"step {step} of {act.runbook}")
            time.sleep(each.delay_s)  # at any moment of the step
        with self.striking(fault, random.Random(each.draw), run) as struck:
            self.history.note("fault", round=each.number, fault=str(fault), at_step=step, struck=struck)
            if fault.lasts and struck:
                time.sleep(each.lasts_s)  # the fault itself
        if fault.lasts and struck:
            self.history.note("fault ended", round=each.number, fault=str(fault), lasted=round(each.lasts_s, 1))

    @contextmanager
    def striking(self, fault: Fault, chance: random.Random, run: Run) -> Iterator[str]:
        """The fault, from here to the end of the block; gives what was struck, which may be nothing."""
        if fault.how == "mark":
            mark_failed(self.airflow, run)
            yield run.run_id
        elif fault.how == "clear":
            task = chance.choice(self.airflow.tasks(run.dag_id, run.run_id)).task_id
            clear(self.airflow, run, task, downstream=False)
            yield task
        elif fault.how == "rival":
            rival = self.airflow.trigger("snapshot_job", {"job": self.job.name})
            yield rival.run_id
            self.history.note("rival ended", outcome=self.end(rival)[0])
        elif fault.what in ("driver", "executor"):
            found = drivers(self.job.name) if fault.what == "driver" else self.executors()
            if fault.how == "kill":
                found = chance.sample(found, chance.randint(1, len(found))) if found else []
            with signalled(found, fault.how):
                yield " ".join(str(process.pid) for process in found)
        else:
            name = chance.choice(WORKERS) if fault.what == "spark-worker" else fault.what
            with self.program(name, fault.how):
                yield name

    @contextmanager
    def program(self, name: str, how: str) -> Iterator[None]:
        """A server that is killed, paused, stopped or slow, until it answers again."""
        supervisor = self.servers.supervisor
        before = supervisor.program(name).pid
        if how == "stop":
            supervisor.stop(name)
            try:
                yield
            finally:
                supervisor.start(name)
        else:
            with signalled([psutil.Process(before)], how):
                yield
            if how == "kill":
                wait_for(lambda: supervisor.program(name).pid not in (0, before), BACK_S, f"a new {name}")
        if name in PROBES:
            ready.wait(name, PROBES[name], self.servers.layout, BACK_S)

    def executors(self) -> list[psutil.Process]:
        return [process for process in lifecycle.processes(self.servers.layout) if EXECUTOR in line_of(process)]

    # --- what must be true

    def look(self) -> None:
        """A quiet point: nothing happens until everything is well again, and then everything is looked at."""
        for turn in range(len(self.victims)):
            self.turn = turn
            self.look_at(self.victims[turn])
        self.calm = True

    def look_at(self, victim: Victim) -> None:
        """One job, when nothing works on it any more."""
        job, began = victim.job, time.monotonic()
        wait_for(lambda: free(job), BACK_S, f"the end of what works on {job.name}")
        wait_for(self.settled, BACK_S, "the end of what works on the cluster")
        if self.seen().paused:  # or nothing would bring it back
            self.surely(looked_after(self.seen(), paused=False))
        events, said = 0, "it is not there"
        if self.seen().runs:
            wait_for(lambda: works_again(job) or self.seen().failed, BACK_S, f"{job.name} working")
            assert not self.seen().failed, f"the job failed for good after faults that passed: {job.status().reason}"
            victim.start = victim.start or mark(job)
            report = invariant(job, victim.start)
            events, said = report.events, report.reason
        else:
            wait_for(lambda: not drivers(job.name), BACK_S, "the end of the drivers of a stopped job")
            if self.seen().there == "whole":
                events, said = self.look_at_stopped(victim)
        if self.seen().cluster == "running":
            cluster = cluster_record.read(job.store).wanted(self.nodes.inventory)
            lacking = lambda: missing(self.nodes.inventory, self.nodes.master(), cluster)  # noqa: E731
            wait_for(lambda: not lacking(), BACK_S, f"all of {', '.join(cluster)} joining the cluster")
        with suppress(AssertionError):
            wait_for(lambda: not self.strangers(), BACK_S, "the end of what belongs to nothing")
        assert not (wrong := [*self.strangers(), *self.unfinished(), *self.damaged(), *self.left()]), wrong
        self.history.note(WELL, job=job.name, job_is=job.record().desired, events=events, recount=said,
                          snapshots=len(self.seen().kept), after=f"{time.monotonic() - began:.1f} s")  # fmt: skip

    def look_at_stopped(self, victim: Victim) -> tuple[int, str]:
        """Its status and record, and the events of its recount with what that says."""
        status, record = victim.job.status(), victim.job.record()
        assert status is not None
        assert status.state in FINAL, f"the job is stopped, and its status says {status.state}"
        assert record.standby is None, f"the job is stopped, and has the standby {record.standby}"
        if victim.start is None:
            return 0, "not looked at since it was deployed"
        report = recount_job(victim.job.settings, victim.job.store, victim.job.name, since=victim.start.since)
        assert not uncounted(report), uncounted(report)
        return report.events, report.reason

    def settled(self) -> bool:
        """Whether the next operation on the cluster may begin."""
        lock = locks.read(self.job.store, CLUSTER)
        return lock is None or lock.value.operation is None

    def strangers(self) -> list[str]:
        """Processes and applications that belong to nothing that runs."""
        record, master = self.job.record(), self.nodes.master()
        launch = record.launch if record.desired == "running" else None
        known = {application.id for application in master.applications}
        mine = [application.id for application in master.applications if application.name == self.job.name]
        found = [f"driver {each.pid}" for each in drivers(self.job.name) if launch not in each.info["cmdline"]]
        found += [f"application {name}" for name in mine[1 if launch else 0 :]]
        for process in self.executors():
            application = next(
                (value for name, value in itertools.pairwise(line_of(process)) if name == "--app-id"), "none"
            )
            found += [] if application in known else [f"executor {process.pid} of {application}"]
        return found

    def unfinished(self) -> list[str]:
        """Operations that nobody works on any more and that are not over."""
        return [
            f"operation {found.id} is {found.state}: {found.reason}"
            for scope in (self.job.name, CLUSTER)
            for found in list_operations(self.job.store, scope)
            if found.state not in OVER and (found.state == "running" or runbooks.of(found).undo_plan(found).steps)
        ]

    def damaged(self) -> list[str]:
        """Snapshots that are not what their manifests say."""
        wrong = []
        for manifest in snapshots.list(self.job.store, self.job.name):
            try:
                snapshots.verify(self.job.store, manifest)
            except SnapshotRefusedError as error:
                wrong.append(str(error))
        return wrong

    def left(self) -> list[str]:
        """Objects of a job that was deleted."""
        if self.seen().there != "gone":
            return []
        prefixes = itertools.chain.from_iterable(keys.removable(self.job.name).values())
        return [info.key for prefix in prefixes for info in self.job.store.list(prefix)]

    def leave(self) -> None:
        """The way out: from whatever state the faults have left to a job that was stopped and started again."""
        if self.history.lines[-1]["what"] != WELL:
            self.look()
        for turn in range(len(self.victims)):
            self.turn = turn
            while act := way_out(self.seen()):
                self.surely(act)
            version = self.seen().version
            self.surely(Act("cancel_job", {}, False, version))
            self.surely(Act("start_job", {}, True, version))
        self.look()
        for victim in self.victims:
            found, kept = attempts(victim.job)
            assert found == kept, f"objects of unfinished snapshots of {victim.job.name} are left: {found - kept}"

    def surely(self, act: Act) -> None:
        """An operation with nothing beside it."""
        before = self.seen()
        outcome, why = self.end(self.begin(act))
        self.history.note("way out", job=self.job.name, runbook=act.runbook, outcome=outcome, why=why)
        assert not (wrong := judge(act, outcome, before, self.seen(), undisturbed=True)), (wrong, why)


@contextmanager
def signalled(processes: list[psutil.Process], how: str) -> Iterator[None]:
    """Processes that are killed, or that are paused or stand still most of the time until the end of the block."""
    if how == "slow":
        with slowed(processes):
            yield
        return
    to_each(processes, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    try:
        yield
    finally:
        if how == "pause":
            to_each(processes, signal.SIGCONT)


@contextmanager
def slowed(processes: list[psutil.Process]) -> Iterator[None]:
    over = threading.Event()

    def stand_still() -> None:
        while not over.wait(QUICK_S):
            to_each(processes, signal.SIGSTOP)
            over.wait(SLOW_S)
            to_each(processes, signal.SIGCONT)

    thread = threading.Thread(target=stand_still)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def to_each(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def line_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended since it was listed
        return []


@pytest.fixture
def victims(
    request: pytest.FixtureRequest, job: FreshJob, operator: Operator, stack: Settings, tmp_path: Path
) -> Iterator[list[Victim]]:
    """The shared job; if asked for, one in real time on the same topic. The next test finds the cluster as it was."""
    found = [Victim(job, IN_BATCHES, mark(job))]
    if request.config.getoption("--nemesis-jobs") == 2:
        live = FreshJob.publish(stack, tmp_path, versions=("v3",), topic=job.topic)
        for version in LIVE.versions:
            live.vary(version, "v3", SMALL)
        operator.run("deploy_job", live.name, version=LIVE.versions[0])
        found.append(Victim(live, LIVE, mark(live)))
    yield found
    first_members(operator)
    for victim in found[1:]:
        stop(victim.job)


def test_whatever_happens_a_job_is_exact_and_has_a_way_out(
    victims: list[Victim], airflow: Airflow, stack: Settings, servers: Servers, seed: int, minutes: float
) -> None:
    directory = REPOSITORY / "build" / "nemesis" / f"{time.strftime('%Y%m%dT%H%M%S')}-seed-{seed}"
    directory.mkdir(parents=True)
    history = History(directory)
    title = f"Nemesis: {minutes:g} minutes, seed {seed}, {len(victims)} job{'s' if len(victims) > 1 else ''}"
    nemesis = Nemesis(victims, airflow, servers, SupervisedNodes(stack), history)
    until = time.monotonic() + 60 * minutes
    housekept(airflow)
    with at_work(stack, "reconcile"):
        try:
            for each in rounds(seed):
                if time.monotonic() > until:
                    break
                nemesis.carry_out(each)
            nemesis.leave()
        except KeyboardInterrupt:
            print(history.report(title, "Interrupted."), flush=True)
            raise
        except Exception as error:
            history.note("violation", why=f"{type(error).__name__}: {error}")
            pytest.fail(history.report(title, f"BROKEN: {error}"), pytrace=not isinstance(error, AssertionError))
    print(history.report(title, "Every look found all well."), flush=True)
