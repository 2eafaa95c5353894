"""The page of the cluster's demo: whole, self-contained, and showing the values of its JSON."""

import re
import xml.etree.ElementTree as ET

from demos.elasticity import DOWN, summary
from demos.report.elasticity import page
from report.sample_report import sample_report


def sample() -> dict:
    report = sample_report()
    start = report["shown_from_ms"]
    report |= {
        "version": "v2",
        "down": DOWN,
        "quiet_pause_s": 1.2,
        "restart": {"unread": 200_000, "events": 912_345, "seconds": 31.5},
        "events": [
            {
                "name": name,
                "from_ms": start + at,
                "to_ms": start + at + 9000,
                "pause_s": pause,
                "members": ["node-1", "node-2"],
                "told": "it <went> on",
            }
            for name, at, pause in ((DOWN, 0, 61.0), ("a member is killed", 20_000, 22.5))
        ],
    }
    return report


def test_page_shows_what_was_done_and_what_it_cost():
    html = page(sample())
    assert "912,345" in html
    assert "22.5 s" in html
    assert "it &lt;went&gt; on" in html
    assert "node-1, node-2" in html
    assert not re.findall(r"(?:src|href|url\()\s*=?\s*[\"']?(?:https?:)?//", html)


def test_every_picture_is_well_formed():
    pictures = re.findall(r"<svg.*?</svg>", page(sample()), re.DOTALL)
    assert len(pictures) == 3  # prices, lateness, operations
    for picture in pictures:
        assert ET.fromstring(picture).attrib["aria-label"]


def test_summary_says_whether_the_recount_is_clean():
    report = sample()
    assert any("22.5 s without a new" in line for line in summary(report))
    report["recount"]["clean"] = False
    assert summary(report)[-1].startswith("recount    NOT CLEAN")
