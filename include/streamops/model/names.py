"""The one strict rule for names, applied before any request is made."""

import re

from streamops.model.errors import NameRefusedError

JOB = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
SNAPSHOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NODE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
STAGE = re.compile(r"[a-z_][a-z0-9_]{0,62}")  # a stage is a Python function, so its name is an identifier

JOB_ID = re.compile(r"[a-z]+_[a-z]+-[A-Za-z0-9-]{1,100}")  # the operation that began a deployment; never a job's name
LIBRARY = STAGE  # a library is a Python module

SCRATCH = "scratch-"  # begins the names of jobs that restore tests make and remove; others may not have such a name
CLUSTER = "_cluster"  # the cluster as the object of an operation: no job name, so it can be no job

_RULES = {"job": JOB, "snapshot": SNAPSHOT, "version": VERSION, "stage": STAGE, "source": STAGE, "library": LIBRARY}


def checked(kind: str, name: object) -> str:
    """Return ``name`` unchanged when it is a valid name of its kind.

    Args:
        kind: ``job``, ``snapshot``, ``version``, ``stage``, ``source`` or ``library``.
        name: the candidate; anything that is not text is refused as well.

    Raises:
        NameRefusedError: the name does not match the rule of its kind.
    """
    rule = _RULES[kind]
    if not isinstance(name, str) or not rule.fullmatch(name) or ".." in name:
        shown = repr(name)[:80]
        raise NameRefusedError(
            f"{shown} is not a {kind} name; use a name that matches {rule.pattern} and has no '..' in it."
        )
    return name


def reference(text: object) -> str:
    """Return ``text`` unchanged when it names a snapshot: NAME of the same job, or JOB/NAME.

    Raises:
        NameRefusedError: a part of it is no name.
    """
    job, slash, name = str(text).rpartition("/")
    if slash:
        checked("job", job)
    checked("snapshot", name)
    return str(text)


def library(text: object) -> str:
    """Return ``text`` unchanged when it names a version of a library: LIBRARY/VERSION.

    Raises:
        NameRefusedError: a part of it is no name.
    """
    name, _, version = str(text).partition("/")
    checked("library", name)
    checked("version", version)
    return str(text)


def scope(name: str) -> str:
    """Return ``name`` unchanged when operations may have it as their object: a job's name, or the cluster.

    Raises:
        NameRefusedError: it is neither.
    """
    return name if name == CLUSTER else checked("job", name)


def label(name: str) -> str:
    """The name of an operation's object, as people call it."""
    return "the cluster" if name == CLUSTER else name


def shown(name: str) -> str:
    """The object of an operation, as people call it."""
    return "the cluster" if name == CLUSTER else f"job {name}"
