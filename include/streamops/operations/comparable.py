"""Which stages two versions can be compared by, in a rehearsal, and which points of theirs are of the same windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from streamops.model.definitions import INSTALLATION, Definition, InfluxSink
from streamops.versions.fingerprints import Fingerprint, Window

Plans = Mapping[str, Fingerprint | None]


@dataclass(frozen=True)
class Comparable:
    """One version, with what is known of what its stages compute."""

    definition: Definition
    plans: Plans

    def sink(self, stage: str) -> InfluxSink | None:
        """Where a stage writes its points."""
        return next((sink.influxdb for sink in self.definition.stages[stage].sinks if sink.influxdb), None)

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
        if not plan.watermarks or not any(self._windows(stage)):
            return f"{name} has no windows that a watermark closes, which would say what can be compared"
        return ""

    def why_no_points(self, stage: str) -> str:
        """Why there are no points of a stage to compare; empty if there are."""
        sink, name = self.sink(stage), f"{stage} of {self.definition.version}"
        if sink is None:
            return f"{name} writes no points to InfluxDB"
        return f"{name} writes to another InfluxDB, which is not read here" if sink.secret != INSTALLATION else ""

    def _windows(self, stage: str) -> Iterator[Window]:
        plan = self.plans.get(stage)
        for operator in plan.operators if plan else ():
            if operator.window and operator.window.kind != "session":  # one of these has no size
                yield operator.window


def why_not(old: Comparable, new: Comparable) -> str:
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
            if stage in both and (why := side.why_no_points(stage) or side.why_not_told(stage)):
                return why
    return ""
