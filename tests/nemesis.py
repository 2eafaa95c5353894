"""What a nemesis run does, drawn from its seed: which operation when, which fault beside it. Nothing here strikes.

An operation may fail beside a fault, so the plan cannot know in which state it will find the job: each round has a
list of wishes, and the first that is possible there is carried out. Equal seeds and equal states give equal runs.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

ALONE = 0.25  # the share of operations beside which nothing happens: those must succeed
CALM = 0.5  # the share of rounds after which everything is looked at; the next fault may meet what recovers
LONGEST_S = 20.0  # of a pause or an outage: longer than a lease's renewal, shorter than a person's patience
MEMBERS = 2  # as every stack begins; there is one spare node


@dataclass(frozen=True)
class Kind:
    """A job's two versions, and what lies between them.

    Args:
        lost: the version that follows -> stages whose state is dropped on the way to it.
        live: all stages of both run in real time, so that one can run beside the other.
    """

    versions: tuple[str, str]
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    live: bool = False

    def other(self, version: str) -> str:
        first, second = self.versions
        return second if version == first else first


IN_BATCHES = Kind(("v1", "v2"), lost={"v1": ("avg_1m", "vol_1s")})
LIVE = Kind(("one", "two"), live=True)


@dataclass(frozen=True, order=True)
class Fault:
    """``how`` it strikes: *kill*, *pause*, *stop*, *slow*; the others are what people do to a run.

    *mark*: as failed, while it is under way; *rival*: begin another one meanwhile; *clear*: any task, once it is over.
    """

    how: str
    what: str

    def __str__(self) -> str:
        return f"{self.how} {self.what}"

    @property
    def lasts(self) -> bool:
        """Whether it has to be ended."""
        return self.how in ("pause", "stop", "slow")


FAULTS = (
    *(Fault(how, what) for what in ("driver", "executor", "spark-worker", "spark-master") for how in ("kill", "pause")),
    *(Fault(how, what) for what in ("kafka", "minio", "influxd") for how in ("kill", "pause", "stop", "slow")),
    *(Fault("kill", f"airflow-{what}") for what in ("scheduler", "triggerer", "api-server", "dag-processor")),
    Fault("kill", "postgres"),
    Fault("mark", "the run"),
    Fault("rival", "operation"),
    Fault("clear", "a task"),
)


@dataclass(frozen=True)
class Seen:
    """A job and the cluster as their records show them between two operations.

    Args:
        there: *whole*, *in part* (a deletion has not come to its end), or *gone*.
        failed: its driver ended for good, against the record.
        paused: reconciliation leaves it alone.
        kept: its snapshots, the oldest first: name -> version.
        spare: one of them that nobody needs.
        cluster: *running*, *stopped*, or what a shutdown or restart that failed has left: *stopping*, *starting*.
        members: how many nodes are to be members.
        comes_back: whether the restart of a cluster that was shut down starts the job.
    """

    desired: str
    version: str
    kind: Kind = IN_BATCHES
    there: Literal["whole", "in part", "gone"] = "whole"
    failed: bool = False
    paused: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)
    spare: str | None = None
    cluster: str = "running"
    members: int = MEMBERS
    comes_back: bool = False

    @property
    def runs(self) -> bool:
        return self.desired == "running"

    def newest_of(self, version: str) -> str | None:
        """The last snapshot of a version."""
        return next((name for name in reversed(self.kept) if self.kept[name] == version), None)


@dataclass(frozen=True)
class Act:
    """An operation with its values, and what it promises: whether the job runs afterwards, and which version."""

    runbook: str
    values: Mapping[str, Any]
    runs: bool
    version: str

    @property
    def on_cluster(self) -> bool:
        return self.runbook.endswith("_cluster")


OF_JOB = (
    *("snapshot", "snapshot and cancel", "cancel", "start", "upgrade", "upgrade without a gap", "rehearse"),
    *("rollback", "restore", "remove a snapshot", "pause", "look after", "delete", "deploy"),
)
OF_CLUSTER = ("scale", "shut down", "restart")
WISHES = (*OF_JOB, *OF_CLUSTER)


def possible(seen: Seen, number: int) -> dict[str, Act]:
    """The operations that must be possible in a state, each with the values of round ``number``."""
    if seen.cluster != "running":
        return {"restart": Act("restart_cluster", {}, seen.comes_back, seen.version)}
    runs, version = seen.runs, seen.version
    size = MEMBERS + 1 if seen.members == MEMBERS else MEMBERS
    return {
        **_of_job(seen, f"round-{number}"),
        "scale": Act("scale_cluster", {"size": size}, runs, version),
        "shut down": Act("shutdown_cluster", {}, False, version),
    }


def _of_job(seen: Seen, name: str) -> dict[str, Act]:
    runs, version, first = seen.runs, seen.version, seen.kind.versions[0]
    if seen.there == "gone":
        return {"deploy": Act("deploy_job", {"version": first}, True, first)}
    acts = {"delete": Act("delete_job", {}, False, first)}
    if seen.there == "in part":
        return acts
    acts[_LOOKING_AFTER[seen.paused]] = looked_after(seen, not seen.paused)
    if seen.spare:
        acts["remove a snapshot"] = Act("manage_snapshot", {"action": "remove", "snapshot": seen.spare}, runs, version)
    if not seen.failed:
        acts["snapshot"] = Act("snapshot_job", {"snapshot": name}, runs, version)
    if runs and not seen.failed:
        acts["snapshot and cancel"] = Act("snapshot_job", {"snapshot": name, "cancel": True}, False, version)
        acts |= _to_another(seen, name)
    if runs:
        acts["cancel"] = Act("cancel_job", {}, False, version)
    if not runs or seen.failed:
        acts["start"] = Act("start_job", {}, True, version)
    other = seen.kind.other(version)
    if earlier := seen.newest_of(other):
        acts["rollback"] = Act("rollback_job", {"snapshot": earlier}, True, other)
    if own := seen.newest_of(version):
        acts["restore"] = Act("restore_job", {"snapshot": own}, True, version)
    return acts


_LOOKING_AFTER = {False: "pause", True: "look after"}


def looked_after(seen: Seen, paused: bool) -> Act:
    """Have reconciliation leave a job alone, or look after it again."""
    return Act("pause_job", {"action": "pause" if paused else "resume"}, seen.runs, seen.version)


def _to_another(seen: Seen, name: str) -> dict[str, Act]:
    other = seen.kind.other(seen.version)
    values = {"version": other, "snapshot": name, "probation_s": 5, "accept_loss": seen.kind.lost.get(other, ())}
    acts = {"upgrade": Act("upgrade_job", values, True, other)}
    if seen.kind.live:
        acts["upgrade without a gap"] = Act("upgrade_job", {**values, "strategy": "gapless"}, True, other)
    if not values["accept_loss"]:  # whose stages would have nothing to be compared with
        acts["rehearse"] = Act("rehearse_job", {"version": other, "observe_s": 5}, True, seen.version)
    return acts


@dataclass(frozen=True)
class Round:
    """One operation, with a fault or without.

    Args:
        wishes: operations, the dearest first.
        moment: from 0 to 1, the share of the operation's steps that have begun when the fault strikes.
        delay_s: from the beginning of that step until the fault.
        lasts_s: how long a fault lasts that has to be ended.
        draw: a number for what has to be chosen once it is known, such as the process that is struck.
        calm: whether everything is looked at afterwards.
        turn: from 0 to 1, which of the jobs it is about.
    """

    number: int
    wishes: tuple[str, ...]
    fault: Fault | None
    moment: float
    delay_s: float
    lasts_s: float
    draw: int
    calm: bool
    turn: float

    def act(self, seen: Seen) -> tuple[str, Act]:
        """The operation of this round. Every state has one, or it would have no way out."""
        acts = possible(seen, self.number)
        wish = next(name for name in self.wishes if name in acts)
        return wish, acts[wish]

    def step(self, steps: tuple[str, ...]) -> str:
        """The step at whose beginning the fault strikes."""
        return steps[min(int(self.moment * len(steps)), len(steps) - 1)]


def rounds(seed: int) -> Iterator[Round]:
    """Rounds without end. No fault comes twice before each has come once."""
    chance = random.Random(seed)
    deck: list[Fault] = []
    number = 0
    while True:
        number += 1
        wishes = chance.sample(WISHES, len(WISHES))
        fault = None
        if chance.random() >= ALONE:
            deck = deck or chance.sample(FAULTS, len(FAULTS))
            fault = deck.pop()
        yield Round(
            number=number,
            wishes=tuple(wishes),
            fault=fault,
            moment=chance.random(),
            delay_s=2 * chance.random(),
            lasts_s=2 + (LONGEST_S - 2) * chance.random(),
            draw=chance.getrandbits(32),
            calm=chance.random() < CALM,
            turn=chance.random(),
        )


def way_out(seen: Seen) -> Act | None:
    """The next operation on the way to a job that runs on the cluster as it was at first; None when it does."""
    acts = possible(seen, 0)
    if seen.cluster != "running":
        return acts["restart"]
    if seen.members != MEMBERS:
        return acts["scale"]
    if seen.there != "whole":
        return acts["deploy" if seen.there == "gone" else "delete"]
    if seen.paused:
        return acts["look after"]
    return None if seen.runs and not seen.failed else acts["start"]


def judge(act: Act, outcome: str, before: Seen, after: Seen, *, undisturbed: bool) -> list[str]:
    """What of an operation's end is not as promised.

    Args:
        outcome: *success*, *failed*, or *skipped* because another operation holds the job.
        undisturbed: the job was seen to be well before, and nothing happened beside the operation.
    """
    wrong = []
    if undisturbed and outcome != "success":
        wrong.append(f"{act.runbook} was possible, nothing happened beside it, and it ended {outcome}")
    if outcome == "success" and (after.runs, after.version) != (act.runs, act.version):
        wrong.append(
            f"{act.runbook} succeeded, and the job is {after.desired} in {after.version} "
            f"(promised: {'running' if act.runs else 'stopped'} in {act.version})"
        )
    if outcome == "skipped" and (after.runs, after.version) != (before.runs, before.version):
        wrong.append(f"{act.runbook} was skipped, and the job went from {before.version} to {after.version}")
    if outcome == "failed":
        if after.version not in (before.version, act.version):
            wrong.append(f"{act.runbook} failed, and the job is in {after.version}, which nobody asked for")
        if after.runs not in (before.runs, act.runs) and not before.failed:
            wrong.append(f"{act.runbook} failed, and the job went from {before.desired} to {after.desired}")
    return wrong


@dataclass
class History:
    """What happened in one run, as lines of JSON in its directory."""

    directory: Path
    began: float = field(default_factory=time.monotonic)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def note(self, what: str, **details: Any) -> None:
        line = {"s": round(time.monotonic() - self.began, 1), "at": time.strftime("%H:%M:%S"), "what": what, **details}
        self.lines.append(line)
        print(self.text(line), flush=True)
        with (self.directory / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")

    def text(self, line: dict[str, Any]) -> str:
        rest = ", ".join(f"{key} {value}" for key, value in line.items() if key not in ("s", "at", "what"))
        return f"{line['at']} {line['s']:7.1f} s  {line['what']}: {rest}"

    def report(self, title: str, verdict: str) -> str:
        """What a person reads first; also the message of a run that failed."""
        operations = [line for line in self.lines if line["what"] == "ended"]
        faults = [line for line in self.lines if line["what"] == "fault"]
        failed = sum(line["outcome"] != "success" for line in operations)
        counts = f"{len(operations)} operations, of which {failed} did not succeed; {len(faults)} faults"
        told = ["```", *map(self.text, self.lines), "```"]
        text = "\n".join([f"# {title}", "", verdict, "", counts, "", *told, ""])
        (self.directory / "report.md").write_text(text, encoding="utf-8")
        return text
