"""What a step gets: the operation as recorded, and how to act and speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from streamops.model.errors import UnhealthyError
from streamops.model.names import label
from streamops.model.records import JobRecord, Move, Offsets
from streamops.operations.facts import Checked, Reserved
from streamops.operations.health import Health
from streamops.operations.operation import F, Operation, Request
from streamops.operations.ports import Ports
from streamops.operations.requests import NewVersion
from streamops.snapshots import Origin
from streamops.store import jobs, locks, waiting
from streamops.versions import artifacts
from streamops.versions.artifacts import ArtifactManifest

R = TypeVar("R", bound=Request)
How = Literal["resume", "abort", "leave"]


@dataclass(frozen=True)
class StepContext:
    """One step at work: the operation as recorded, and how to act and speak."""

    ports: Ports
    operation: Operation
    say: Callable[[str], None]
    settle: Callable[[str, How, str], Operation]  # another operation, which nobody works on: its id, how, and why
    why: str = ""  # what the wait of the step ended with
    part: str = ""  # the job that it is about, of a step that does the same for several
    fences: dict[str, int] = field(default_factory=dict)  # of the locks that this process holds, by scope

    @property
    def fence(self) -> int:
        """What this process may change the job with."""
        return self.fences.get(self.job, 0)

    def require_turn(self) -> None:
        """Make sure, right before a side effect, that no other process continued with this. Raises OvertakenError."""
        locks.require(self.ports.store, self.job, self.fence)

    def change(self, update: Mapping[str, object]) -> None:
        """Set fields of the job record, in the name of this operation. Raises OvertakenError."""
        jobs.change(self.ports.store, self.job, {**update, "changed_by": self.operation.id}, self.fence)

    @property
    def job(self) -> str:
        return self.operation.job

    def asked(self, kind: type[R]) -> R:
        """The request, as the model that it is."""
        assert isinstance(self.operation.request, kind), self.operation.request
        return self.operation.request

    def reported(self, step: str, kind: type[F]) -> F:
        """What an earlier step reported; the defaults before it ended."""
        return self.operation.reported(step, kind)

    @property
    def checked(self) -> Checked:
        """What the check of an operation on a job reported."""
        return self.reported("check", Checked)

    @property
    def before(self) -> JobRecord:
        """The job record when the operation began: what all ids follow from."""
        return self.operation.before or JobRecord(job=self.job)

    @property
    def launch(self) -> str:
        """The launch that this operation starts."""
        return self.operation.id

    @property
    def number(self) -> int:
        """The deployment that this operation makes."""
        return self.before.last_deployment + 1

    @property
    def cold(self) -> bool:
        """An upgrade that submits only after the stop."""
        return self.reported("reserve", Reserved).cold

    def empty(self, version: ArtifactManifest) -> frozenset[str]:
        """Stages whose earlier state is not continued: as an operator accepted, or because it is filled again.

        Only in the version that was asked for: what is undone gets all of its state back.
        """
        return frozenset(self.checked.empty) | self.refilled(version) if self._asked(version) else frozenset()

    def refilled(self, version: ArtifactManifest) -> frozenset[str]:
        """Stages whose state is filled again from the ledger."""
        return frozenset(self.checked.refilled if self._asked(version) else ())

    def moved(self, number: int) -> dict[str, Move]:
        """Sources that read another topic in a deployment than before; only in the one that was asked for."""
        return self.checked.moved if number == self.number else {}

    def _asked(self, version: ArtifactManifest) -> bool:
        return isinstance(self.operation.request, NewVersion) and self.operation.request.version == version.version

    def origin(self) -> Origin:
        owner = self.operation.owner
        run = f"{owner.dag_id}/{owner.run_id}" if owner.kind == "airflow" else ""
        return Origin(self.operation.id, owner.user, run)

    def version(self, version: str | None = None) -> ArtifactManifest:
        """A published version; by default the one that the operation starts."""
        name = version or getattr(self.operation.request, "version", None) or self.checked.after
        if name is None:
            name = jobs.deployment(self.ports.store, self.job, self.before.deployment).version
        return artifacts.load_manifest(self.ports.store, self.job, name)

    def first(self, version: ArtifactManifest, topics: Mapping[str, str]) -> Callable[[str], Offsets]:
        """Where a source begins by its definition, as exact offsets that a recount can begin at."""

        def ask(source: str) -> Offsets:
            if source not in topics:  # not a topic: the source itself finds its beginning
                return {}
            ledger = self.ports.ledger
            latest = version.definition.sources[source].start == "latest"
            return {source: dict((ledger.end_offsets if latest else ledger.beginning_offsets)(topics[source]))}

        return ask

    def wait(self, look: Callable[[], Health], seconds: float, what: str) -> Health:
        """Look until it is done.

        Raises:
            UnhealthyError: it cannot come any more, or did not in time.
        """
        found = Health(False, None, "")

        def done() -> bool:
            nonlocal found
            before, found = found, look()
            if found.why != before.why:
                self.say(f"{what}: {found.why}")
            if found.failed is not None and not found.done:
                raise UnhealthyError(f"{what} of {label(self.job)} cannot succeed: {found.failed}")
            return found.done

        if not self.until(done, seconds):
            raise UnhealthyError(f"{what} of {label(self.job)} took longer than {seconds:.0f} s: {found.why}.")
        return found

    def until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Look until a condition holds; False when it did not within so many seconds."""
        return bool(waiting.until(condition, seconds, self.ports.look_s))
