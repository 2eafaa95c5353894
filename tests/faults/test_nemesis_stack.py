"""Random operations through Airflow on a job under load, with random faults beside them: ``tests/nemesis.py`` plans it.

Whatever happens, a job that should run comes to work again by itself, every event counts once, the record tells the
truth, and the next operation is possible. ``build/nemesis`` keeps what each run did.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise

import psutil
import pytest

from fresh_job import FreshJob, wait_for
from nemesis import Act, Fault, History, Round, Seen, judge, rounds, way_out
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
from streamops.operations import runbooks
from streamops.operations.engine import list_operations
from streamops.operations.follow import spans
from streamops.operations.operation import OVER, Operation, operation_id
from streamops.recount.recounting import recount_job
from streamops.settings import REPOSITORY, Settings
from streamops.store import documents, keys, locks
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
PROBES = {**READY, "spark-master": ready.master, **dict.fromkeys(AIRFLOW, ready.airflow)}


@dataclass
class Nemesis:
    """The jobs, and what is done to them.

    Args:
        jobs: each with the mark where its recount begins.
    """

    jobs: list[tuple[FreshJob, Mark]]
    airflow: Airflow
    servers: Servers
    nodes: SupervisedNodes
    history: History
    calm: bool = True  # everything was looked at, and nothing has happened since
    turn: int = 0

    @property
    def job(self) -> FreshJob:
        """The one that it is about now."""
        return self.jobs[self.turn][0]

    def seen(self) -> Seen:
        record, status, cluster = self.job.record(), self.job.status(), cluster_record.read(self.job.store)
        assert record.version is not None
        return Seen(
            desired=record.desired,
            version=record.version,
            failed=record.desired == "running" and status is not None and status.state is State.FAILED,
            kept={found.name: found.version for found in snapshots.list(self.job.store, self.job.name)},
            cluster=cluster.state,
            members=len(cluster.wanted(self.nodes.inventory)),
            comes_back=self.job.name in cluster.jobs,
        )

    # --- operations

    def carry_out(self, each: Round) -> None:
        """One round: the operation, the fault beside it, and what both may have led to."""
        self.turn = int(each.turn * len(self.jobs))
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
        self.history.note("ended", round=each.number, wish=wish, outcome=outcome, why=why, job_is=after.desired,
                          version=after.version)  # fmt: skip
        wrong = judge(act, outcome, before, after, undisturbed=undisturbed)
        assert not wrong, wrong
        if each.calm:
            self.look()

    def begin(self, act: Act) -> Run:
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
        """A server that is killed, paused or stopped, until it answers again."""
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
        for turn, (job, start) in enumerate(self.jobs):
            self.turn = turn
            self.look_at(job, start)
        self.calm = True

    def look_at(self, job: FreshJob, start: Mark) -> None:
        """One job, when nothing works on it any more."""
        began = time.monotonic()
        wait_for(lambda: free(job), BACK_S, f"the end of what works on {job.name}")
        wait_for(self.settled, BACK_S, "the end of what works on the cluster")
        if self.seen().runs:
            wait_for(lambda: works_again(job) or self.seen().failed, BACK_S, f"{job.name} working")
            status = job.status()
            assert not self.seen().failed, f"the job failed for good after faults that passed: {status.reason}"
            report = invariant(job, start)
        else:
            wait_for(lambda: not drivers(job.name), BACK_S, "the end of the drivers of a stopped job")
            status, record = job.status(), job.record()
            assert status is not None
            assert status.state in FINAL, f"the job is stopped, and its status says {status.state}"
            assert record.standby is None, f"the job is stopped, and has the standby {record.standby}"
            report = recount_job(job.settings, job.store, job.name, since=start.since)
            assert not uncounted(report), uncounted(report)
        if self.seen().cluster == "running":
            cluster = cluster_record.read(job.store).wanted(self.nodes.inventory)
            lacking = lambda: missing(self.nodes.inventory, self.nodes.master(), cluster)  # noqa: E731
            wait_for(lambda: not lacking(), BACK_S, f"all of {', '.join(cluster)} joining the cluster")
        with suppress(AssertionError):
            wait_for(lambda: not self.strangers(), BACK_S, "the end of what belongs to nothing")
        assert not (wrong := [*self.strangers(), *self.unfinished(), *self.damaged()]), wrong
        self.history.note(WELL, job=job.name, job_is=job.record().desired, events=report.events, recount=report.reason,
                          snapshots=len(self.seen().kept), after=f"{time.monotonic() - began:.1f} s")  # fmt: skip

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
            application = next((value for name, value in pairwise(line_of(process)) if name == "--app-id"), "none")
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

    def leave(self) -> None:
        """The way out: from whatever state the faults have left to a job that was stopped and started again."""
        if self.history.lines[-1]["what"] != WELL:
            self.look()
        for turn in range(len(self.jobs)):
            self.turn = turn
            while act := way_out(self.seen()):
                self.surely(act)
            version = self.seen().version
            self.surely(Act("cancel_job", {}, False, version))
            self.surely(Act("start_job", {}, True, version))
        self.look()
        for job, _ in self.jobs:
            found, kept = attempts(job)
            assert found == kept, f"objects of unfinished snapshots of {job.name} are left: {found - kept}"

    def surely(self, act: Act) -> None:
        """An operation with nothing beside it."""
        before = self.seen()
        outcome, why = self.end(self.begin(act))
        self.history.note("way out", job=self.job.name, runbook=act.runbook, outcome=outcome, why=why)
        assert not (wrong := judge(act, outcome, before, self.seen(), undisturbed=True)), (wrong, why)


@contextmanager
def signalled(processes: list[psutil.Process], how: str) -> Iterator[None]:
    """Processes that are killed, or paused until the end of the block."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes if how == "pause" else ():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def line_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended since it was listed
        return []


@pytest.fixture
def jobs(request: pytest.FixtureRequest, job: FreshJob, operator: Operator) -> Iterator[list[FreshJob]]:
    """The shared job, and a second one on the same topic if asked for. The next test finds the cluster as it was."""
    others = [request.getfixturevalue("other")] if request.config.getoption("--nemesis-jobs") == 2 else []
    for other in others:
        operator.run("deploy_job", other.name, version="v1")
    yield [job, *others]
    first_members(operator)
    for other in others:
        stop(other)


def test_whatever_happens_a_job_is_exact_and_has_a_way_out(
    jobs: list[FreshJob], airflow: Airflow, stack: Settings, servers: Servers, seed: int, minutes: float
) -> None:
    directory = REPOSITORY / "build" / "nemesis" / f"{time.strftime('%Y%m%dT%H%M%S')}-seed-{seed}"
    directory.mkdir(parents=True)
    history = History(directory)
    title = f"Nemesis: {minutes:g} minutes, seed {seed}, {len(jobs)} job{'s' if len(jobs) > 1 else ''}"
    marked = [(job, mark(job)) for job in jobs]
    nemesis = Nemesis(marked, airflow, servers, SupervisedNodes(stack), history)
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
