"""How far back the points of a stage reach, and which stages a batch query of their own functions can recount."""

from __future__ import annotations

from dataclasses import dataclass

from streamops.model.definitions import Definition, milliseconds
from streamops.versions.artifacts import ArtifactManifest
from streamops.versions.fingerprints import Fingerprint, read


@dataclass(frozen=True)
class Reach:
    """How the points of a stage depend on time, in milliseconds.

    ``windows`` is how far a point's events may lie from it, None where each event is a point as it comes. ``delay``
    is the least delay of its watermarks; None if nothing is ever dropped. Of a join, a point's events may lie anywhere.
    """

    windows: int | None
    delay: int | None
    joined: bool = False


def reach(definition: Definition, stage: str, plan: Fingerprint | None) -> Reach | str:
    """How far a stage's points reach, or why a batch query does not give what its stream gives.

    Args:
        plan: taken at publish; None if it is not known.
    """
    if plan is None:
        return "there is no fingerprint of its plan"
    if definition.stages[stage].deterministic is False:
        return "its definition says that the same events do not always give the same rows (deterministic)"
    read = {name: definition.sources[name] for name in plan.sources}
    if stages := [name for name, source in read.items() if source.stage]:
        return f"source {', '.join(stages)} is another stage, whose results are not kept"
    pulled = [name for name, source in read.items() if not source.kafka]
    if pulled and (plan.operators or plan.watermarks):
        return f"the order in which it has read {', '.join(pulled)} is not known any more, and its state depends on it"
    if untimed := [name for name in pulled if not read[name].event_time]:
        return f"source {', '.join(untimed)} names no event_time, so what was read of it lately is not known"
    if [(item.kind, item.detail) for item in plan.operators] == [("join", "Inner")]:
        return Reach(
            None,
            min((delay for item in plan.watermarks if (delay := _length(item.delay)) is not None), default=None),
            joined=True,
        )
    for operator in plan.operators:
        if operator.kind == "aggregation" and operator.window and operator.window.kind != "session":
            continue
        return f"its state is more than windows ({operator.kind}), of which a batch query gives something else"
    windows = [operator.window.size_us // 1000 for operator in plan.operators if operator.window]
    delays = [_length(item.delay) for item in plan.watermarks]
    known = [delay for delay in delays if delay is not None]
    if not windows:
        return Reach(None, None)
    if not known or len(known) < len(delays):
        return "when its windows are closed is not known from its watermark"
    return Reach(sum(windows), min(known))


def _length(delay: str) -> int | None:
    """A watermark's delay as Spark writes it."""
    try:
        return milliseconds(delay)
    except (KeyError, ValueError):
        return None


def needed_ms(version: ArtifactManifest) -> int:
    """How long before a moment the events must begin, so that each stage has whole windows that end by then."""
    definition, plans = version.definition, read(version.fingerprints, version.definition.stages)
    found = [0]
    for name, stage in definition.stages.items():
        if stage.recount:
            found.append(stage.recount.reach_ms + stage.recount.step_ms)
        elif isinstance(reached := reach(definition, name, plans[name]), Reach):
            found.append(2 * (reached.windows or 0) + (reached.delay or 0))
    return max(found)
