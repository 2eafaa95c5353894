"""Operations in this process, for when Airflow itself is down: the same steps under the same lock."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from streamops.cli import console
from streamops.clients.airflow import Airflow
from streamops.model.errors import LockedError, NotFoundError, StreamOpsError, UnreachableError
from streamops.model.owner import Owner, current_user, this_host
from streamops.model.records import now
from streamops.operations.operation import Operation, Request
from streamops.operations.ports import OwnersPort
from streamops.settings import Settings
from streamops.store import keys
from streamops.store.object_store import ObjectStore

if TYPE_CHECKING:
    from streamops.operations.engine import Engine

_ANSWER_S = 5.0


class Owners:
    """Asks Airflow whether the DAG run that owns an operation is over."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def finished(self, owner: Owner) -> bool | None:
        """None when Airflow does not know the run, or the owner is not a DAG run."""
        if owner.kind != "airflow":
            return None
        with Airflow(self._settings) as airflow:
            try:
                return airflow.run(owner.dag_id, owner.run_id).finished
            except NotFoundError:
                return None

    def forgotten(self, owner: Owner) -> bool:
        """Whether Airflow answers, and knows no such run. Raises UnreachableError."""
        return owner.kind == "airflow" and self.finished(owner) is None


class MaybeOwners:
    """Asks Airflow about a lock's owner, and knows nothing while Airflow does not answer: then nothing is taken."""

    def __init__(self, asked: OwnersPort) -> None:
        self._asked = asked
        self.silent = False

    def finished(self, owner: Owner) -> bool | None:
        """Whether a DAG run is certainly over; None when Airflow does not answer or does not know it."""
        try:
            return self._asked.finished(owner)
        except StreamOpsError:
            self.silent = True
            return None

    def forgotten(self, owner: Owner) -> bool:
        """Whether Airflow answers, and knows no such run."""
        try:
            return self._asked.forgotten(owner)
        except StreamOpsError:
            self.silent = True
            return False


def answers(settings: Settings, runbook: str) -> bool:
    """Whether Airflow is there and offers the runbook."""
    try:
        with Airflow(settings, timeout_s=_ANSWER_S) as airflow:
            return airflow.ready(runbook)
    except StreamOpsError:
        return False


def run(settings: Settings, asked: Request, say: Callable[[str], None]) -> Operation:
    """Carry out a request in this process, under the job's operation lock, to its end.

    What was said is filed with the operation, however it ends: there is no task whose log it would be.

    Raises:
        LockedError: another operation holds the job. One of a DAG run whose Airflow does not answer is not taken.
        StreamOpsError: what failed, after it was undone.
    """
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(f"{console.when(now())} {line}")
        say(line)

    if answers(settings, asked.runbook):
        tell(f"Airflow at {settings.airflow_url} answers, so this could run there; it runs here, as you asked.")
    else:
        tell(f"Airflow does not answer ({settings.airflow_url or 'no address'}): {asked.runbook} runs in this process.")
    owners = MaybeOwners(Owners(settings))
    name = uuid.uuid4().hex[:12]
    owner = Owner(kind="cli", run_id=f"{this_host()}-{name}", user=current_user())
    store, operation_id = ObjectStore(settings), f"{asked.runbook}-cli-{name}"
    lines.append(f"Asked for by {owner.label()}: {asked.model_dump_json(exclude_defaults=True)}")
    try:
        return engine(settings, store, owners, tell).run(asked, owner, operation_id)
    except StreamOpsError as error:
        lines.append(f"Refused, or failed: {error}")
        if not isinstance(error, LockedError):
            raise
        if owners.silent:
            raise LockedError(
                f"{error} Airflow does not answer, so it is unknown whether that run is over; nothing was done. Start "
                "Airflow, or wait until it answers."
            ) from None
        raise
    finally:
        with suppress(StreamOpsError):  # that it could not be filed changes nothing of what was done
            store.put(keys.told(asked.job, operation_id), "".join(f"{line}\n" for line in lines).encode())


def engine(
    settings: Settings,
    store: ObjectStore,
    owners: OwnersPort | None = None,
    say: Callable[[str], None] = console.say,
) -> Engine:
    """The engine in this process, for operations that no DAG run finishes.

    Raises:
        UnreachableError: a server that is needed to judge the owner does not answer.
    """
    from streamops.operations.engine import Engine
    from streamops.wiring import ports

    if not settings.spark_home:
        raise UnreachableError("This host cannot submit drivers (SPARK_HOME is empty); run this where the stack is.")
    return Engine(ports(settings, owners or Owners(settings), store), say)
