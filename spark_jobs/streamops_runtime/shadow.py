"""The queries of a version that may not write yet: they run on its own copy of the state, beside the version that does.

Their results wait in the topics through which results leave Spark; nobody counts them before the version has the lease.
What one stage hands on to another goes into the feed of the deployment, which is its own.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from streamops.model.errors import UnhealthyError
from streamops.model.records import SHADOW_RUN, Shadow
from streamops.spark import checkpoints
from streamops.store import documents, keys
from streamops_runtime import stages
from streamops_runtime.results import Results
from streamops_runtime.stages import Phase

if TYPE_CHECKING:
    from streamops_runtime.work import Work

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
            if at is None or at.batch != begun.get(stage.name):
                raise UnhealthyError(f"Deployment {number} of {job} has run in shadow before; it is not continued.")
            since = work.ledger.end_offsets(keys.results_topic(job, stage.name))["0"]
            notes[stage.name] = Shadow(job=job, stage=stage.name, deployment=number, epoch=epoch, since=since)
            documents.write(work.store, keys.shadow(job, stage.name), notes[stage.name])
        for name in work.definition.feeding:
            self._readers[name] = reader = work.reader(name, notes[name])
            reader.know(work.windows.get(name))
            reader.open()
            reader.begin(live=True)
        for stage in work.stages:
            stage.phase, stage.run, stage.ends = Phase.SHADOW, SHADOW_RUN, work.ends(stage)
        with ThreadPoolExecutor(len(work.stages)) as pool:  # each start waits for the object store several times
            list(pool.map(lambda stage: work.query(stage, epoch), work.stages))

    def look(self) -> None:
        """Look after the queries. Raises UnhealthyError: one has ended, and with it the shadow."""
        for stage in self.work.stages:
            reader = self._readers.get(stage.name)
            failure = stage.query.exception() if stage.query else None
            if stage.ended or (reader and reader.failure):
                why = str(failure or (reader and reader.failure) or "ended by itself").splitlines()[0]
                raise UnhealthyError(f"Stage {stage.name} failed in shadow: {why[:300]}")
            self.work.measure(stage)
            if reader and self.work.has_read_again(stage):
                reader.read_again()

    def end(self, *, go_on: bool) -> None:
        """The version may write from now on.

        Args:
            go_on: its queries go on; otherwise they end, because a driver that was not expected took the lease before.
        """
        for reader in self._readers.values():
            reader.close()
        if not go_on:
            log.warning("the lease has changed hands meanwhile: all queries start again")
            for stage in self.work.stages:
                stages.end(stage)
                stage.query, stage.run = None, 0
