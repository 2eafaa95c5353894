"""A runbook: what may be asked for, its steps in order, and how an operation that was begun is undone.

The plan that a dry run prints, that Airflow's tasks carry out, that the documentation shows and that tests take their
kill points from is this one object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamops.model.errors import NotFoundError
from streamops.operations.context import StepContext
from streamops.operations.facts import Facts, Waited
from streamops.operations.health import Health
from streamops.operations.operation import Operation, Request

Act = Callable[[StepContext], Facts]
Look = Callable[[StepContext], Health]
NOTHING = "nothing was changed; there is nothing to undo"


def waited(context: StepContext) -> Waited:
    """What a step does that only waits: it records what the wait ended with."""
    return Waited(why=context.why)


@dataclass(frozen=True)
class Step:
    """One recorded step. Consecutive steps of the same ``task`` run in one Airflow task.

    Args:
        act: its side effect, which can be run again after a kill at any point and then has one effect.
        look: for a step that waits for something outside: one look. The engine, or a trigger, waits until it is
            done before ``act``, which finds what it ended with as ``context.why``.
        awaited: what is waited for, in a word or two.
        within: how long the wait may take, in seconds. What ends by itself gets time to say so.
        when: whether a request has this step. One that it does not have is neither shown nor recorded.
        submits: whether it puts a driver on the cluster.
        parts: of a step that does the same for several jobs, which; ``act`` is then called once for each, with the job
            as ``context.part``, and each is recorded as a step ``NAME/JOB`` too. In Airflow each is a task of its own.
        announces: whether a snapshot exists after it.
    """

    name: str
    task: str
    title: str
    act: Act = waited
    look: Look | None = None
    awaited: str = ""
    within: Callable[[Any], int] = lambda asked: int(asked.healthy_timeout_s)
    when: Callable[[Any], bool] = lambda asked: True
    submits: bool = False
    parts: Callable[[StepContext], Sequence[str]] | None = None
    announces: bool = False

    @property
    def waits(self) -> bool:
        """Whether it waits for something outside."""
        return self.look is not None


@dataclass(frozen=True)
class UndoPlan:
    """What taking an operation back means: ``steps`` by name, and what is true afterwards, for people."""

    outcome: str = NOTHING
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Runbook:
    """One runbook.

    Args:
        request: the model of what may be asked for; its ``runbook`` is the name.
        undo_plan: decides from what is recorded how an operation is undone.
        undo: what the steps of undoing it do, by name.
        restoring: the task that takes an unfinished operation back at the end of a run; empty if there is none.
        submits_again: the step of undoing that submits the drivers of what ran before; in Airflow, it and what follows
            are a task of their own.
        forward: whether an operation that no one works on any more is finished rather than undone, once its
            check is done.
        stays: whether what an operation that no one works on any more has brought about is left as it is by the next
            one, which cannot finish it.
        starts: whether a driver that ends for good means that the job, which this operation started, is stopped.
    """

    request: type[Request]
    steps: tuple[Step, ...]
    undo_plan: Callable[[Operation], UndoPlan] = lambda operation: UndoPlan()
    undo: Mapping[str, Act] = field(default_factory=dict)
    restoring: str = ""
    submits_again: str = ""
    forward: Callable[[Operation], bool] = lambda operation: True
    stays: Callable[[StepContext], bool] = lambda context: False
    starts: bool = False

    @property
    def name(self) -> str:
        """Its name, which is also that of its DAG."""
        return str(self.request.model_fields["runbook"].default)

    @property
    def purpose(self) -> str:
        """What it is for, in one line: the first of its file."""
        return (sys.modules[self.request.__module__].__doc__ or "").strip().splitlines()[0]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The ids of its tasks, in order, each once."""
        return tuple(dict.fromkeys(step.task for step in self.steps))

    def plan(self, asked: Request) -> tuple[Step, ...]:
        """The steps that a request has, in order."""
        return tuple(step for step in self.steps if step.when(asked))

    def step(self, name: str) -> Step:
        """A step by its name. Raises NotFoundError."""
        for step in self.steps:
            if step.name == name:
                return step
        raise NotFoundError(f"There is no step {name!r} in {self.name}.")

    def at(self, operation: Operation) -> str:
        """The step that is under way or comes next; empty at the end."""
        return next((step.name for step in self.plan(operation.request) if not operation.done(step.name)), "")
