"""Every error of the core. Each says what happened, to which object, and what to do next."""

from streamops.model.discretion import without_credentials


class StreamOpsError(Exception):
    """Base of all errors that an operator may see; the message is one sentence and a next step.

    Messages go into logs, records and pages, so credentials in what they quote are left out.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(without_credentials(message))


class NameRefusedError(StreamOpsError):
    """A job, version, stage or snapshot name breaks the one naming rule."""


class DefinitionError(StreamOpsError):
    """A job definition is wrong: the message names the field and what is allowed there."""


class NotFoundError(StreamOpsError):
    """A job, version, snapshot, operation or object does not exist."""


class DamagedError(StreamOpsError):
    """A stored record is there, and is not what this program writes; nothing is done by what it might say."""


class ConflictError(StreamOpsError):
    """A conditional write lost: someone else changed or created the object first."""


class PublishedError(StreamOpsError):
    """The version is already published with other content."""


class SnapshotExistsError(StreamOpsError):
    """The snapshot name is taken; names are never reused silently."""


class SnapshotRefusedError(StreamOpsError):
    """The snapshot is incomplete, altered, another job's, or overtaken by Kafka's retention."""


class CheckpointError(StreamOpsError):
    """A checkpoint cannot be read, or has no committed batch to continue from."""


class LockedError(StreamOpsError):
    """Another operation holds the job's operation lock; the message names the owner."""


class OvertakenError(LockedError):
    """Another process continues with the same operation; this one does nothing more in it."""


class RefusedError(StreamOpsError):
    """The request is not allowed in the present state of the job; nothing was touched."""


class UnreachableError(StreamOpsError):
    """A server (object store, Kafka, InfluxDB, Spark, Airflow) did not answer."""


class DeniedError(StreamOpsError):
    """The identity that this program uses at the object store may not do this."""


class UnhealthyError(StreamOpsError):
    """A driver did not become healthy in time, or ended with a permanent error."""


class LeaseLostError(StreamOpsError):
    """This driver no longer holds the job's lease and must not write."""


class SignatureError(StreamOpsError):
    """There is no key to sign with, or the keys of the installation cannot be read."""


class DataRefusedError(StreamOpsError):
    """A server does not take what it was given, whoever asks and however often; something else it would take."""
