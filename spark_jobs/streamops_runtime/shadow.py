"""The queries of a version that may not write yet: they run on its own copy of the state, beside the version that does.

Their results wait in the topics through which results leave Spark; nobody counts them before the version has the lease.
What one stage hands on to another goes into the feed of the deployment, which is its own.

Each stage first reads up to the present in batches, round by round, and then goes live. Beside a version at full load a
machine has little left, and live, on code that is still cold, less is read at first than comes. A batch gives one
result for each point, and not one for each row, but in no order of time: one that reads another waits until that is
level, so that it takes no part of a point for the whole.

A stage in batches reads on in batches. What it gives is only compared with what the version that writes gives, in a
rehearsal: its queries have committed what nobody has written, so that they never continue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from streamops.model.definitions import Definition
from streamops.model.errors import StreamOpsError, UnhealthyError
from streamops.model.records import SHADOW_RUN, Shadow
from streamops.spark import checkpoints
from streamops.store import documents, keys
from streamops_runtime import code, stages
from streamops_runtime.results import Results, end_of_results
from streamops_runtime.stages import LIVE_BATCH_S, Phase, RunningStage, far

if TYPE_CHECKING:
    from streamops_runtime.work import Work

SHORT_S = 8.0  # a round of batches that leaves little to read
_SHORTER = 0.9  # of the shortest round
FEW_A_SECOND = 3_000.0  # results; live, code that is still cold gives several times as many
LEVEL_S = 2.0  # behind the end of its sources, right after a commit
BATCHES_S = 5.0  # the same beside a version in batches, whose results are no sooner there
FEW = 100  # rows, which are no lag

LOOK_S = 2.0  # between two looks at how far the version that writes has come

log = logging.getLogger("shadow")


class ShadowRun:
    """All stages of a deployment, from the state that an operation has put in place for its first epoch."""

    def __init__(self, work: Work) -> None:
        """Start the queries.

        Raises:
            UnhealthyError: a driver of this deployment has done so before; what it gave and what it did not is unclear.
            UnreachableError: the object store or Kafka did not answer.
            DefinitionError: Spark refuses a query.
        """
        job, number = work.launch.job, work.launch.deployment
        epoch = checkpoints.current_epoch(work.store, job, number)
        if epoch is None:
            raise UnhealthyError(f"Deployment {number} of {job} has no state to begin a shadow with.")
        self.work, self.epoch = work, epoch
        self._readers: dict[str, Results] = {}
        begun = checkpoints.prepare_epoch(work.store, job, number, epoch, ())
        notes = {}
        for stage in work.stages:
            at = checkpoints.position(work.store, keys.stage(job, number, epoch, stage.name))
            if at and at.batch != begun.get(stage.name):
                raise UnhealthyError(f"Deployment {number} of {job} has run in shadow before; it is not continued.")
            since = end_of_results(work.ledger, job, stage.name)
            place = {"deployment": number, "epoch": epoch, "run": SHADOW_RUN + number, "since": since}
            notes[stage.name] = Shadow(job=job, stage=stage.name, **place)
            documents.write(work.store, keys.shadow(job, stage.name), notes[stage.name])
        for stage in work.stages:
            if isinstance(stage.gate, Results):
                self._readers[stage.name] = reader = work.reader(stage.name, notes[stage.name])
                reader.know(work.windows.get(stage.name))
                reader.open()
        for stage in work.stages:
            stage.run, stage.ends = notes[stage.name].run, work.ends(stage)
        self._rounds: dict[str, list[float]] = {stage.name: [] for stage in work.stages}  # of batches, in seconds
        self._before: Definition | None = None  # the version that writes
        self._looked = 0.0
        for stage in work.stages:
            stage.held = bool(self._reads(stage))
        first = [stage for stage in work.stages if not stage.held]
        stages.at_once(self._begin, first)

    def _reads(self, stage: RunningStage) -> list[RunningStage]:
        """The stages that a stage reads."""
        names = code.reads(self.work.definition, self.work.functions[stage.name])
        return [other for other in self.work.stages if other.name in names]

    def _begin(self, stage: RunningStage) -> None:
        self._start(stage, Phase.CATCHING_UP if stage.name in self._readers else Phase.SHADOW)

    def _start(self, stage: RunningStage, phase: Phase) -> None:
        stage.phase, stage.held = phase, False
        if stage.name in self._readers:
            self._readers[stage.name].begin(live=stage.live)
        self.work.query(stage, self.epoch)

    def look(self) -> None:
        """Look after the queries. Raises UnhealthyError: one has ended, and with it the shadow."""
        for stage in self.work.stages:
            reader, rounds = self._readers.get(stage.name), stage.phase is Phase.CATCHING_UP
            failure = (stage.query.exception() if stage.query else None) or (reader.failure if reader else None)
            if (stage.ended and not (rounds and stage.finished)) or failure:
                why = str(failure or "ended by itself").splitlines()[0]
                raise UnhealthyError(f"Stage {stage.name} failed in shadow: {why[:300]}")
            if reader and self.work.has_read_again(stage):
                reader.read_again()
            if stage.held and all(other.phase is Phase.LEVEL for other in self._reads(stage)):
                self._begin(stage)
            elif stage.finished:
                self._go_on(stage)
            elif not (stage.held or rounds) and self.work.measure(stage):
                self._judge(stage)
            elif reader is None and not stage.held and self.work.progress[stage.name].status.quiet:
                stage.phase = Phase.LEVEL  # it commits nothing where nothing comes
        if time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            with suppress(StreamOpsError):  # it is looked again soon
                self._before = self._before or self.work.before()
                for name, until_ms in self.work.written_by(self._before).items() if self._before else ():
                    self._readers[name].others_wrote(until_ms)

    def _go_on(self, stage: RunningStage) -> None:
        """Begin a stage's next round, or go live."""
        rounds = self._rounds[stage.name]
        rounds.append(time.monotonic() - stage.began)
        left = stage.lag if self.work.measure(stage) else None
        told = stage.query.recentProgress if stage.query else ()
        log.info(
            "stage %s: a round of batches took %.1f s (%s), and left %s rows", stage.name, rounds[-1],
            ", ".join(f"{one['numInputRows']:,} rows in {one['batchDuration'] / 1000:.1f} s" for one in told), left,
        )  # fmt: skip
        window = self.work.windows.get(stage.name)
        few = left is not None and is_few(left, rounds[-1], window.overlap if window else 1)
        self._start(stage, Phase.CATCHING_UP if another_round(rounds) and not few else Phase.SHADOW)

    def _judge(self, stage: RunningStage) -> None:
        """Say whether a stage reads the present, as its last commit shows; a live one that will not get there in time
        goes back to batches, unless another one takes its results as they come already.
        """
        status = self.work.progress[stage.name].status
        log.info("stage %s is %s rows behind, of %.0f that come a second", stage.name, stage.lag, status.input_rate)
        old = self._before.stages.get(stage.name) if self._before else None
        most_s = BATCHES_S if old and not old.realtime else LEVEL_S
        ending_s = max(0.0, status.batch_ms / 1000 - LIVE_BATCH_S * stage.live)
        stage.phase = Phase.LEVEL if is_level(stage.lag, status.input_rate, most_s + ending_s) else Phase.SHADOW
        read = any(stage in self._reads(other) and not other.held for other in self.work.stages)
        first = status.commits == stage.committed + 1  # it takes in what had gathered before
        if stage.live and not (read or first) and far(stage.lag, status.processed_rate):
            stages.end(stage)
            self._rounds[stage.name].clear()
            self._start(stage, Phase.CATCHING_UP)

    def end(self, *, go_on: bool) -> None:
        """The version may write from now on.

        Args:
            go_on: live queries continue; otherwise all end, because an unexpected driver took the lease before.

        Raises:
            UnhealthyError: a stage in batches has committed what nobody has written.
        """
        if batches := [stage.name for stage in self.work.stages if stage.name not in self._readers]:
            raise UnhealthyError(f"{', '.join(batches)} ran in shadow, in batches: this deployment is not continued.")
        # Nothing is written until all of them have ended.
        stages.at_once(lambda reader: reader.close(feed=False), self._readers.values())
        for stage in self.work.stages:
            if isinstance(stage.gate, Results):
                stage.gate.go_on(self._readers[stage.name])
        if not go_on or not all(stage.live for stage in self.work.stages):
            log.warning("the lease came unexpectedly: all queries start again")
            for stage in self.work.stages:
                stages.end(stage)
                stage.query, stage.run, stage.held = None, 0, False
                if isinstance(stage.gate, Results) and stage.gate.feed:
                    stage.gate.feed.close()  # another driver of this launch may have become its writer


def another_round(rounds: Sequence[float]) -> bool:
    """Whether one more round of batches is worth it: the last one was long, and they do become shorter.

    Args:
        rounds: how long each took, in seconds. One that was no shorter may have been disturbed; a second is the end.
    """
    best, in_vain = float("inf"), 0
    for took in rounds:
        in_vain = 0 if took < _SHORTER * best else in_vain + 1
        best = min(best, took)
    return rounds[-1] > SHORT_S and in_vain < 2


def is_few(left: int, took_s: float, each: int) -> bool:
    """Whether what comes is so little that it is read live sooner than in one more round of batches.

    Args:
        left: rows that came while the last round was made, which took so many seconds.
        each: results of a row, which live are given one by one: the windows that it lies in.
    """
    return left * each <= FEW_A_SECOND * took_s


def is_level(lag: int, rate: float, most_s: float) -> bool:
    """Whether a live stage reads the present: rows left to read at a commit, and rows that come a second.

    Args:
        most_s: the most seconds of rows that may be left, among them those that came while the batch was committed.
    """
    return lag <= max(most_s * rate, FEW)
