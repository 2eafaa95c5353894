"""Grafana's dashboards as code: ``python -m stack.compose.dashboards`` writes the JSON that Grafana is started with.

The SDK makes the JSON; it knows neither Flux nor that a mark may come from a query, so ``Flux`` adds that. It is a
development dependency: what runs needs the JSON only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.common import (
    DataSourceRef,
    LegendDisplayMode,
    LegendPlacement,
    TimeZoneBrowser,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import AnnotationTarget

from streamops.model.names import CLUSTER
from streamops.operations.timeline import MEASUREMENT

TARGET = Path(__file__).parent / "grafana" / "dashboards"
SOURCE = DataSourceRef(type_val="influxdb", uid="streamops-influxdb")  # as provisioned
JOB = "trade-analyser"
SYMBOLS = ("AAPL", "MSFT", "AMZN")


class Flux(AnnotationTarget, Dataquery, Builder["Flux"]):
    """A query in Flux, of a panel or of marks."""

    def __init__(self, ref_id: str, *lines: str) -> None:
        super().__init__()
        self.ref_id, self.query = ref_id, "\n  |> ".join(lines)

    def build(self) -> Flux:
        """Itself: there is nothing else to set."""
        return self

    def to_json(self) -> dict[str, object]:
        """As Grafana stores it."""
        return {"refId": self.ref_id, "datasource": SOURCE, "query": self.query}


def all_dashboards() -> dict[str, str]:
    """The JSON of every dashboard, by the name of its file."""
    return {"trades.json": _json(trades())}


def trades() -> dashboard.Dashboard:
    """Prices and volume as the example job ``trade-analyser`` writes them, with marks at operations."""
    return (
        dashboard.Dashboard("Trades")
        .uid("streamops-trades")
        .description("What trade-analyser writes; the marks are operations on it and on the cluster.")
        .tags(["streamops"])
        .timezone(TimeZoneBrowser)
        .time("now-5m", "now")
        .refresh("1s")
        .timepicker(dashboard.TimePicker().refresh_intervals(["1s", "5s", "30s"]))
        .readonly()
        .annotation(_marks("Operations", JOB, CLUSTER))
        .with_panel(
            _prices(1, "Average price of each second", "avg_1s", height=10).description(
                "avg_1s of three symbols; a point's time is the end of its window."
            )
        )
        .with_panel(
            _prices(2, "Average price of the last minute", "avg_1m", height=9).description(
                "avg_1m of three symbols: a window of a minute, every second (from v2 on)."
            )
        )
        .with_panel(
            _lines(3, "Volume of each second", height=8)
            .description("vol_1s: quantity of all symbols together (from v2 on); over long times the average of it.")
            .unit(units.Short)
            .min(0)
            .display_name("volume")
            .with_target(_series("vol_1s"))
        )
    )


def _prices(number: int, title: str, measurement: str, height: int) -> timeseries.Panel:
    """Prices of the chosen symbols; they are stored in cents."""
    dollars = "map(fn: (r) => ({r with _value: r._value / 100.0}))"
    return (
        _lines(number, title, height)
        .unit(units.Dollars)
        .display_name("${__field.labels.symbol}")
        .with_target(_series(measurement, _one_of("symbol", SYMBOLS), dollars))
    )


def _lines(number: int, title: str, height: int) -> timeseries.Panel:
    return (
        timeseries.Panel()
        .id(number)
        .title(title)
        .datasource(SOURCE)
        .span(24)
        .height(height)
        .interval("1s")  # a point a second: narrower windows would only be empty
        .line_width(1)
        .fill_opacity(0)
        .show_points(VisibilityMode.NEVER)
        .span_nulls(False)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )


def _series(measurement: str, condition: str = "", *then: str) -> Flux:
    """The points of a measurement, thinned out to what the panel can show: more than that Grafana refuses."""
    return Flux(
        "A",
        "from(bucket: v.defaultBucket)",
        "range(start: v.timeRangeStart, stop: v.timeRangeStop)",
        f'filter(fn: (r) => r._measurement == {json.dumps(measurement)} and r._field == "value")',
        *([f"filter(fn: (r) => {condition})"] if condition else []),
        'aggregateWindow(every: v.windowPeriod, fn: mean, timeSrc: "_start", createEmpty: false)',
        *then,
    )


def _one_of(tag: str, values: Sequence[str]) -> str:
    """A condition that InfluxDB's storage evaluates itself, unlike ``contains``: of most series nothing is read."""
    return " or ".join(f"r.{tag} == {json.dumps(value)}" for value in values)


def _marks(name: str, *jobs: str) -> dashboard.AnnotationQuery:
    """Marks from the begin to the end of each operation on one of these.

    Grafana takes a mark from columns of these names, and only where there is none called ``_value``.
    """
    query = Flux(
        "Marks",
        "from(bucket: v.defaultBucket)",
        "range(start: v.timeRangeStart, stop: v.timeRangeStop)",
        f"filter(fn: (r) => r._measurement == {json.dumps(MEASUREMENT)})",
        f"filter(fn: (r) => {_one_of('job', jobs)})",
        'pivot(rowKey: ["_time", "job", "kind"], columnKey: ["_field"], valueColumn: "_value")',
        "group()",
        "map(fn: (r) => ({time: r._time, timeEnd: time(v: int(v: r._time) + int(v: r.seconds * 1000000000.0)), "
        'text: r.text, tags: r.kind + "," + r.state}))',
        'sort(columns: ["time"])',
    )
    return dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color("orange").target(query)


def _json(built: dashboard.Dashboard) -> str:
    return JSONEncoder(indent=2, sort_keys=True).encode(built.build()) + "\n"


def write(target: Path = TARGET) -> list[Path]:
    """Write every dashboard; says where."""
    made = {target / name: text for name, text in all_dashboards().items()}
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return list(made)


if __name__ == "__main__":
    for path in write():
        print(path)
