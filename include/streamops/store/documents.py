"""Stored models: read with the tag that the next conditional write names, and written.

Those that several writers may touch are written conditionally; ``Versioned`` carries the etag from a read to the next
write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from streamops.model.discretion import STORED
from streamops.model.errors import ConflictError, DamagedError, NotFoundError
from streamops.store.object_store import ObjectStore

M = TypeVar("M", bound=BaseModel)

TRIES = 20  # against others who write the same object


@dataclass(frozen=True)
class Versioned(Generic[M]):
    """A stored model with the tag that its next conditional write names, and how long ago it was written.

    As with the object that it was read from, ``age`` is when we looked: two looks at one model are equal.
    """

    value: M
    etag: str
    age: timedelta = field(default=timedelta(0), compare=False)


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
        return Versioned(model.model_validate_json(stored.body, context=STORED), stored.etag, stored.age)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        if other := next((item["input"] for item in wrong if item["loc"] == ("format",)), None):
            raise DamagedError(
                f"{key} in bucket {store.bucket} has format {other}, which this release does not know; use the release "
                "that wrote it, or a later one."
            ) from error
        first = wrong[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: {first['msg']}" if where else first["msg"]
        raise DamagedError(
            f"{key} in bucket {store.bucket} cannot be read ({what}); put a good one back, such as an "
            "earlier version of the object, and try again."
        ) from error


def find(store: ObjectStore, key: str, model: type[M]) -> M | None:
    """The stored model for those who will not write it, or None if there is none. Raises DamagedError."""
    found = read(store, key, model)
    return found.value if found else None


def every(store: ObjectStore, prefix: str, model: type[M]) -> list[M]:
    """All models that are stored below a prefix, in the order of their keys. Raises DamagedError."""
    found = (find(store, info.key, model) for info in store.list(prefix))
    return [item for item in found if item is not None]


def write(store: ObjectStore, key: str, value: BaseModel, *, over: str | None = None, new: bool = False) -> str:
    """Write a model; ``over`` is the etag it replaces, ``new`` demands that nothing is there yet.

    A conditional write whose answer was lost is retried by the client and then meets its own bytes:
    equal stored bytes are therefore a success, not a conflict.

    Returns:
        The etag of what is now stored.

    Raises:
        ConflictError: someone else wrote first.
    """
    body = value.model_dump_json(indent=1).encode()
    try:
        return store.put(key, body, if_match=over, if_absent=new)
    except ConflictError:
        stored = store.get(key)
        if stored.body == body:
            return stored.etag
        raise


def update(
    store: ObjectStore,
    key: str,
    model: type[M],
    change: Callable[[M | None], M],
    *,
    known: Versioned[M] | None = None,
) -> Versioned[M]:
    """Change a stored model; when someone else writes meanwhile, what they wrote is changed instead.

    Args:
        change: makes the new model of the stored one, which is None when there is none. An equal one is not written.
            What it raises ends the update.
        known: what is stored, as far as the caller knows; saves a read.

    Returns:
        What is stored now.

    Raises:
        ConflictError: others kept changing it.
    """
    found = known or read(store, key, model)
    for _ in range(TRIES):
        new = change(found.value if found else None)
        if found and new == found.value:
            return found
        try:
            return Versioned(new, write(store, key, new, over=found.etag if found else None, new=found is None))
        except ConflictError:
            found = read(store, key, model)
    raise ConflictError(f"{key} keeps changing; 'streamops operations' lists what works on it. Try again after that.")
