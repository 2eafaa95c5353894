"""The report's page: whole, self-contained, and showing the values of its JSON."""

import re
import xml.etree.ElementTree as ET

import pytest

from demos.report.svg import Line, number, panel, ticks
from demos.report.upgrade import page
from report.sample_report import sample_report


def test_page_shows_the_values_of_the_report():
    html = page(sample_report())
    assert "10,000/s" in html
    assert "SavePoint1" in html
    assert "4.1 s" in html  # the gap of the stage that was kept
    assert "5.2 s" in html or "5.3 s" in html  # the longest pause
    assert "3.2 MiB" in html
    assert "15,000" in html  # points of avg_1s


def test_page_fetches_nothing():
    html = page(sample_report())
    assert not re.findall(r"(?:src|href|url\()\s*=?\s*[\"']?(?:https?:)?//", html)
    assert "<script" not in html


def test_every_picture_is_well_formed_and_has_a_name():
    pictures = re.findall(r"<svg.*?</svg>", page(sample_report()), re.DOTALL)
    assert len(pictures) == 6  # three symbols, volume, lateness, steps
    for picture in pictures:
        assert ET.fromstring(picture).attrib["aria-label"]


def test_a_recount_that_is_off_is_said_in_the_first_sentence():
    report = sample_report()
    report["recount"]["clean"] = False
    report["recount"]["measurements"][0]["missing"] = 3
    report["recount"]["measurements"][0]["examples"] = ["avg_1s['AAPL'] at <noon> is missing"]
    html = page(report)
    assert "The recount found differences" in html
    assert "3 off" in html
    assert "at &lt;noon&gt; is missing" in html


def test_a_hole_in_the_data_is_drawn_as_a_hole():
    line = Line("avg_1s", [(0, 1), (1, 1), (9, 1), (10, 1)], "a", gap=2.5)
    path = re.search(r'class="line a" d="([^"]*)"', panel([line], (0, 10), title="t", unit="s"))
    assert path
    assert path[1].count("M") == 2


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (-60, 90, [-50, 0, 50]), (0, 0.9, [0, 0.2, 0.4, 0.6, 0.8]), (5, 5, [5])],
)
def test_ticks_are_round_numbers_inside_the_range(low, high, expected):
    assert ticks(low, high) == expected


def test_numbers_are_short():
    assert number(1234567.0) == "1,234,567"
    assert number(-0.5) == "\u22120.5"
