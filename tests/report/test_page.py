"""The report's page: whole, self-contained, and showing the values of its JSON."""

import re
import xml.etree.ElementTree as ET

from demos.report.charts import Bar, Line, Mark, Panel, number, panels, timeline
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


def test_the_upgrade_without_a_gap_is_compared_with_what_was_before():
    report = sample_report()
    html = page(report)
    assert "<td>avg_1s</td><td>1.1 s</td><td>1.4 s</td>" in html
    assert "within 0.31 s" in html
    assert html.count("v3 took over while v2 ran") == 5  # in three prices, volume and lateness
    report["takeover"] = {"operation": None, "rate": 1000.4, "reason": "it took longer than <600> s"}
    html = page(report)
    assert "v2 ran on as if nothing had been: it took longer than &lt;600&gt; s" in html
    assert "v3 took over while v2 ran" not in html


def test_fewer_trades_that_come_on_purpose_do_not_look_lost():
    report = sample_report()
    assert "slows the trades down to 1,000 a second" in page(report)
    report["takeover"]["rate"] = 9_998.0
    assert "slows the trades down" not in page(report)


def test_page_fetches_nothing():
    html = page(sample_report())
    assert not re.findall(r"(?:src|href|url\()\s*=?\s*[\"']?(?:https?:)?//", html)
    assert "<script" not in html


def test_every_picture_is_well_formed_and_has_a_name():
    pictures = re.findall(r"<svg.*?</svg>", page(sample_report()), re.DOTALL)
    assert len(pictures) == 4  # prices, volume, lateness, steps
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
    line = Line("avg_1s", [(0, 1), (1, 2), (9, 1), (10, 2)], "a", gap=2.5)
    picture = panels([Panel("t", "s", [line])], (0, 10), x_label="x")
    path = re.search(r'<title>avg_1s</title>\s*<path d="([^"]*)"', picture)
    assert path
    assert path[1].count("M") == 2


def test_colours_are_those_of_the_page_and_what_is_shaded_says_why():
    picture = timeline([Bar("submit", 0, 2, "2.0 s")], title="t", x_label="x", marks=[Mark(0, 1, "a & b")])
    assert "#000" not in picture
    assert "var(--a)" in picture
    assert "<title>a &amp; b</title>" in picture


def test_numbers_are_short():
    assert number(1234567.0) == "1,234,567"
    assert number(-0.5) == "\u22120.5"
