"""Line protocol: what a row becomes on its way to InfluxDB."""

from __future__ import annotations

import math

import pytest

from streamops.clients.influx import line


@pytest.mark.parametrize(
    ("tags", "fields", "expected"),
    [
        ({"symbol": "A B"}, {"value": 1}, r"m,symbol=A\ B value=1i 7"),
        ({"symbol": "a,b=c"}, {"value": 0.1 + 0.2}, r"m,symbol=a\,b\=c value=0.30000000000000004 7"),
        ({"symbol": ""}, {"value": -2.5}, "m value=-2.5 7"),
        ({}, {"text": 'q"\\', "value": 2}, r'm text="q\"\\",value=2i 7'),
        ({}, {"value": math.nan, "other": 1.5}, "m other=1.5 7"),
        ({}, {"value": math.inf}, ""),
    ],
)
def test_a_row_is_escaped_and_what_influxdb_has_no_number_for_is_left_out(tags, fields, expected) -> None:
    assert line("m", tags, fields, 7) == expected
