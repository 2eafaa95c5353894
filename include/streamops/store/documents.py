"""Stored models: read with the tag that the next conditional write names, and written.

Those that several writers may touch are written conditionally; ``Versioned`` carries the etag from a read to the next
write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from streamops.model.errors import ConflictError, DamagedError, NotFoundError
from streamops.store.object_store import ObjectStore

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Versioned(Generic[M]):
    """A stored model with the tag that its next conditional write names."""

    value: M
    etag: str


def read(store: ObjectStore, key: str, model: type[M]) -> Versioned[M] | None:
    """The stored model, or None if there is none.

    Raises:
        DamagedError: what is stored is no such model.
    """
    try:
        stored = store.get(key)
    except NotFoundError:
        return None
    try:
        return Versioned(model.model_validate_json(stored.body), stored.etag)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: {first['msg']}" if where else first["msg"]
        raise DamagedError(
            f"{key} in bucket {store.bucket} cannot be read ({what}); put a good one back, such as an "
            "earlier version of the object, and try again."
        ) from error


def write(store: ObjectStore, key: str, value: BaseModel, *, over: str | None = None, new: bool = False) -> str:
    """Write a model; ``over`` is the etag it replaces, ``new`` demands that nothing is there yet.

    A conditional write whose answer was lost is retried by the client and then meets its own bytes:
    equal stored bytes are therefore a success, not a conflict.

    Returns:
        The etag of what is now stored.

    Raises:
        ConflictError: somebody else wrote first.
    """
    body = value.model_dump_json(indent=1).encode()
    try:
        return store.put(key, body, if_match=over, if_absent=new)
    except ConflictError:
        stored = store.get(key)
        if stored.body == body:
            return stored.etag
        raise
