"""Which stages two versions can be compared by, in a rehearsal, and which points of theirs are of the same windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from streamops.model.definitions import Definition, Param, milliseconds
from streamops.versions import verdicts
from streamops.versions.artifacts import ArtifactManifest
from streamops.versions.fingerprints import Fingerprint, Window

# What gives its results at the watermark that Spark reports. After a join it is an earlier one.
AT_THE_WATERMARK = {"aggregation", "deduplication", "deduplication within watermark"}
LONGEST_TRIGGER_MS = 60_000


@dataclass(frozen=True)
class Comparable:
    """One version, with what is known of what its stages compute."""

    definition: Definition
    plans: Mapping[str, Fingerprint | None]

    @classmethod
    def of(cls, version: ArtifactManifest, params: Mapping[str, Param]) -> Self:
        """A published version as it is deployed with these params."""
        return cls(version.definition, verdicts.known(version, params))

    def open_ms(self, stage: str) -> int:
        """How long after its time a point may change: that is the end of its window, or the definition does not say."""
        defined = self.definition.stages[stage]
        if defined.realtime or defined.recount is not None:
            return 0
        return max((window.size_us // 1000 for window in self._windows(stage)), default=0)

    def why_not_told(self, stage: str) -> str:
        """Why it cannot be said which results of a stage in batches are final; empty if it can."""
        plan, name = self.plans.get(stage), f"{stage} of {self.definition.version}"
        if plan is None:
            return f"what {name} computes is not known"
        columns = {watermark.column for watermark in plan.watermarks}
        closed = any(window.time in columns for window in self._windows(stage))
        kept = {operator.kind for operator in plan.operators} <= AT_THE_WATERMARK
        if not (closed and kept) or any(window.kind == "session" for window in self._windows(stage)):
            return f"{name} has no windows that its watermark alone closes, which would say what can be compared"
        return ""

    def why_no_points(self, stage: str) -> str:
        """Why there are no points of a stage to compare; empty if there are."""
        sink, name = self.definition.stages[stage].points, f"{stage} of {self.definition.version}"
        if sink is None:
            return f"{name} writes no points to InfluxDB"
        if sink.elsewhere:
            return f"{name} writes to another InfluxDB, which is not read here"
        both = len(self.definition.stages[stage].influx_sinks) > 1
        return f"{name} writes points by more than one sink, and only one is compared" if both else ""

    def why_too_long(self, stage: str, observe_s: float) -> str:
        """Why no window of a stage in batches would be compared; empty if some would."""
        name, every = f"{stage} of {self.definition.version}", self.definition.trigger
        if every and milliseconds(every) > LONGEST_TRIGGER_MS:
            return f"{name} begins a batch only every {every}"
        if (least_s := self.open_ms(stage) / 1000) >= observe_s:
            return f"a point of {name} may change for {least_s:g} s; observe it for longer (observe_s)"
        return ""

    def _windows(self, stage: str) -> Iterator[Window]:
        plan = self.plans.get(stage)
        return (operator.window for operator in (plan.operators if plan else ()) if operator.window)


def why_not(old: Comparable, new: Comparable, observe_s: float) -> str:
    """Why two versions cannot be compared while they run beside each other; empty if they can.

    Nothing hinders stages in real time: all they give is in their topics, and publish demands windows of them.
    """
    for stage in new.definition.in_batches:
        plan = new.plans.get(stage)
        if why := new.why_no_points(stage):
            return why
        for source in plan.sources if plan else ():
            if new.definition.sources[source].kind not in ("kafka", "stage"):
                return f"{stage} of {new.definition.version} reads {source}, and it is not known where that ends"
    both = old.definition.stages.keys() & new.definition.stages.keys()
    for side in (old, new):
        for stage in side.definition.in_batches:
            if stage not in both:
                continue
            if why := side.why_no_points(stage) or side.why_not_told(stage) or side.why_too_long(stage, observe_s):
                return why
    return ""
