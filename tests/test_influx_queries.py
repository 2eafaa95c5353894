"""Queries at a real InfluxDB: whatever measurements, tags and fields are called, none is read as Flux."""

from __future__ import annotations

import ast
import itertools
import math
import random
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as tried
from hypothesis import strategies as draw

from demos.fleet.recount import stored
from fakes import influx_server
from streamops.clients.dashboard import Dashboard
from streamops.clients.influx import Points, line, obstacle, read
from streamops.clients.positions import Positions
from streamops.model.definitions import InfluxSink
from streamops.model.errors import DataRefusedError
from streamops.model.values import equal
from streamops.settings import REPOSITORY, Settings

AT_MS = 1_800_000_000_123
MOMENT = itertools.count()
NEVER = 'x" or r._measurement != "'
HOSTILE = (
    'a"b',
    "a\\b",
    "${1 + 1}",
    "${r._field}",
    '") |> drop() //',
    NEVER,
    "it's",
    "ünï ✓ 𝄞",
    "bucket",
    "a b,c=d",
    "_x",
)
PARTS = (*"\"\\${}()|>,= '/#.r", "${", "|>", "\\n", "\\u0041", "ß", "𝄞", "or", "true", "measurement", "//")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with influx_server.stack(tmp_path_factory.mktemp("stack")) as layout:
        yield Settings.load(layout.env_file)


@pytest.fixture
def points(settings: Settings) -> Iterator[Points]:
    with closing(Points(settings)) as points:
        yield points


def names(seed: int) -> list[str]:
    """Names that mean something to Flux, to JSON or to line protocol, and some that are made of such parts."""
    chance = random.Random(seed)
    drawn = ("".join(chance.choices(PARTS, k=chance.randint(1, 12))) for _ in range(12))
    return [*HOSTILE, *(f"m{name}e" for name in drawn)]  # what line protocol cannot end or begin with is not the matter


def test_each_name_is_found_again_alone_and_deleted_alone(points: Points, seed: int) -> None:
    every = sorted(set(names(seed)))
    points.write_lines(line(f"m{name}", {f"t{name}": name}, {f"f{name}": 1}, AT_MS) for name in every)
    points.write_lines(line("tagged", {"t": name}, {"value": number}, AT_MS) for number, name in enumerate(every))
    for number, name in enumerate(every):
        asked = (f"m{name}", AT_MS, AT_MS + 1, (f"t{name}",), f"f{name}")
        assert list(points.read(*asked)) == [(AT_MS, (name,), 1)]
        assert not list(points.read("tagged", AT_MS, AT_MS + 1, field=name))
        points.delete("tagged", AT_MS, AT_MS + 1, {"t": name})
        left = {tags[0] for _, tags, _ in points.read("tagged", AT_MS, AT_MS + 1, ("t",))}
        assert left == set(every[number + 1 :])
        points.delete(f"m{name}", AT_MS, AT_MS + 1)
        assert not list(points.read(*asked))


TEXTS = draw.text() | draw.text(draw.sampled_from("\\\\\"', =\t\r\n#\x00ß𝄞"), min_size=1)
VALUES = {"text": TEXTS, "whole": draw.integers(), "number": draw.floats()}


@tried(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(draw.data())
def test_a_point_is_read_as_it_was_written_or_refused(points: Points, data: draw.DataObject) -> None:
    """Never as another one, and never in the place of another one; a recount knows what answers leave out of texts."""
    at, field = AT_MS + next(MOMENT), data.draw(draw.sampled_from(sorted(VALUES)))
    tags, fields = {"t": data.draw(TEXTS), "u": data.draw(TEXTS)}, {field: data.draw(VALUES[field])}
    text = line(f"drawn_{field}", tags, fields, at)
    assert bool(text) == (not isinstance(fields[field], float) or math.isfinite(fields[field]))
    kept = False
    if text and not obstacle(tags, fields):
        with suppress(DataRefusedError):
            points.write_lines([text])
            kept = True
    found = [item for name in VALUES for item in points.read(f"drawn_{name}", at, at + 1, ("t", "u"), name)]
    assert [place for *place, _ in found] == [[at, tuple(tags.values())]] * kept
    assert all(equal(fields[field], value) for *_, value in found)


def test_all_fields_of_a_sinks_points_are_read_with_their_types(settings: Settings, points: Points) -> None:
    sink = InfluxSink(measurement="wide", tags=("vin", "side"), fields=("*",), time="at")
    fields = {"speed": 1.5, "codes": "P0300,P0171", "gear": 3}
    lines = [
        line("wide", {"vin": "a", "side": ""}, fields, AT_MS),
        line("wide", {"vin": "b", "side": "l"}, {"gear": 4}, AT_MS + 1),
        line("wide", {"vin": "b", "side": "l"}, {"gear": 5}, AT_MS + 2),
    ]
    points.write_lines(lines)
    found = sorted(read(settings, sink, AT_MS, AT_MS + 2), key=lambda row: row["at"])
    assert found == [
        {"at": AT_MS, "vin": "a", "side": "", **fields},
        {"at": AT_MS + 1, "vin": "b", "side": "l", "gear": 4},
    ]


def test_pages_and_demos_ask_for_what_they_name(settings: Settings, points: Points) -> None:
    now_ms = int(time.time() * 1000) - 5000
    with closing(Dashboard(settings)) as dashboard, closing(Positions(settings)) as positions:
        for name in HOSTILE:
            rows = [
                line(name, {"symbol": symbol, "vin": symbol}, {"latitude": 1.5, "longitude": 2.5}, now_ms + more)
                for more, symbol in enumerate((name, "another"))
            ]
            points.write_lines(rows)
            for since in (None, now_ms - 1000):
                assert dashboard.newest([name, "none"], name, since) == {name: now_ms}
                assert dashboard.newest([name], since_ms=since) == {name: now_ms + 1}
            assert dashboard.newest([name], f"{name}{NEVER}") == {}
            assert dashboard.series(name, now_ms, now_ms + 2, name) == [(now_ms, 1.5), (now_ms, 2.5)]
            assert len(dashboard.series(name, now_ms, now_ms + 2)) == 4
            assert [found.vin for found in positions.latest(name)] == sorted((name, "another"))
            assert [found.more for found in positions.track(name, name)] == [{"symbol": name}]
            assert positions.track(name, f"{name}{NEVER}") == []
            assert set(stored(points, name, now_ms, now_ms + 2)) == {(name, now_ms), ("another", now_ms + 1)}
            points.delete(name, now_ms, now_ms + 2)


def test_a_condition_on_a_name_is_left_to_the_storage(points: Points) -> None:
    """Otherwise InfluxDB would read every point of the bucket to find those of one measurement."""
    points.write_lines([line("one", {}, {"value": 1}, AT_MS)])
    told = points.records(
        'import "profiler" option profiler.enabledProfilers = ["operator"]'
        " from(bucket: bucket) |> range(start: start, stop: stop) |> filter(fn: (r) => r._measurement == measurement)",
        {"measurement": "one"},
        AT_MS,
        AT_MS + 1,
    )
    operators = {row["Type"] for row in told if row["_measurement"] == "profiler/operator"}
    assert operators == {"*influxdb.readFilterSource"}


def test_no_query_is_put_together_from_values() -> None:
    """A value in the text of a query would be read as Flux: what varies goes to ``Points`` by name."""
    asks, built = set(), []
    for room in ("include", "plugins", "spark_jobs", "benchmarks", "dags", "tests"):
        for path in (REPOSITORY / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            asks |= {path.name} if "query_api(" in text or "api/v2/query" in text else set()
            built += [f"{path}:{at}" for at in _built(path, text)]
    assert asks == {"influx.py", Path(__file__).name}
    assert not built


def _built(path: Path, text: str) -> list[int]:
    """Lines with a text that is Flux and takes in a call's result: names and choices of a query's own text may be."""
    if path.name == "dashboards.py":  # writes files for Grafana, which has no parameters, from names of its own
        return []
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.JoinedStr)
        and any(isinstance(part, ast.Constant) and "|>" in str(part.value) for part in node.values)
        and any(isinstance(part, ast.Call) for part in ast.walk(node))
    ]
