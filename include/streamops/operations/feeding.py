"""What a snapshot keeps of the feeds through which stages read each other, read while the job may run on.

The checkpoints of the stages are of different moments. With the slice of a feed (``FeedSlice``) they fit together: a
reader continues after what its own state holds, and what the stage that it reads gives again is compared with what was
handed on until the slice ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamops.model import results
from streamops.model.definitions import Definition
from streamops.model.errors import NotFoundError, SnapshotRefusedError
from streamops.model.feeds import continued
from streamops.model.records import Deployment, FeedPosition, FeedSlice, Offsets, ResultsPosition
from streamops.operations.ports import LedgerPort
from streamops.store import documents, jobs, keys
from streamops.store.object_store import ObjectStore

_MOST_PENDING = 1_000_000  # results that were not written yet


@dataclass
class Feeds:
    """The feeds of a deployment; made before its checkpoints are read, asked for slices after that."""

    store: ObjectStore
    ledger: LedgerPort
    definition: Definition
    deployment: Deployment
    _known: dict[str, FeedPosition] = field(init=False)

    def __post_init__(self) -> None:
        self._known = {}
        job, number = self.deployment.job, self.deployment.number
        for stage in self.definition.feeding:
            found = documents.find(self.store, keys.feed(job, stage, number), FeedPosition)
            self._known[stage] = found or FeedPosition(job=job, stage=stage, deployment=number)

    def slices(self, read: Mapping[str, Offsets]) -> dict[str, FeedSlice]:
        """The slice of each stage that is read by others.

        Args:
            read: stage -> source -> partition -> first offset that the copied checkpoint does not hold.

        Raises:
            SnapshotRefusedError: more results wait for the sink than can be kept aside.
        """
        return {stage: self._slice(position, read) for stage, position in self._known.items()}

    def _slice(self, position: FeedPosition, read: Mapping[str, Offsets]) -> FeedSlice:
        job, stage, number = position.job, position.stage, position.deployment
        sources = {name for name, of in self.definition.sources.items() if of.stage and of.stage.name == stage}
        readers = {
            reader: offsets[source].get("0", 0) for reader, offsets in read.items() for source in sources & {*offsets}
        }
        pending = self._pending(job, stage)  # first: what is handed on meanwhile is then in the feed
        topic = keys.feed_topic(job, stage, number)
        try:
            begin, end = self.ledger.beginning_offsets(topic)["0"], self.ledger.end_offsets(topic)["0"]
        except NotFoundError:  # its driver has not begun
            begin = end = 0
        first = max(begin, min([position.since, *readers.values()]))
        records = [
            (offset, (value or b"").decode())
            for _, offset, _, value in self.ledger.read_committed(topic, {"0": first}, {"0": end})
        ]
        return FeedSlice(
            job=job,
            stage=stage,
            deployment=number,
            records=continued(records, position.since, readers),
            pending=pending,
            readers=tuple(sorted(readers)),
            closed_ms=position.closed_ms,
        )

    def _pending(self, job: str, stage: str) -> tuple[str, ...]:
        """The newest value of each point that was given and not handed on."""
        return jobs.of_waiting_results(self.store, job, stage, self._given) or ()

    def _given(self, position: ResultsPosition) -> tuple[str, ...]:
        job, stage = position.job, position.stage
        topic = keys.results_topic(job, stage)
        end = self.ledger.end_offsets(topic)["0"]
        if end - position.offset > _MOST_PENDING:
            raise SnapshotRefusedError(
                f"{end - position.offset:,} results of stage {stage} wait for its sink; see with 'streamops jobs "
                f"show {job}' why, and take the snapshot when they are written."
            )
        sink = self.definition.stages[stage].points
        assert sink is not None  # a real-time stage has one
        newest: dict[tuple[object, ...], str] = {}
        for _, offset, _, value in self.ledger.read_committed(topic, {"0": position.offset}, {"0": end}):
            if value and position.counts(offset, value) and not position.is_part(value):
                text = results.text(value)
                row = json.loads(text)
                newest[(row[sink.time], *(row[tag] for tag in sink.tags))] = text
        return tuple(newest.values())
