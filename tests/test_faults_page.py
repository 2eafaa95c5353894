"""docs/faults.md and the tests that it names belong together."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (?P<fault>\d[^|]*) \|.*\| (?P<shown>[^|]*) \|$")


def test_every_fault_names_tests_that_are_there() -> None:
    rows = [found for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if (found := ROW.match(line))]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`([^`]+)`", row["shown"])
        assert named, f"fault {row['fault']} names no test"
        texts = [(ROOT / name).read_text() for name in named if name.endswith(".py")]
        assert texts, f"fault {row['fault']} names no module"
        for test in (name for name in named if not name.endswith(".py")):
            assert any(re.search(rf"^def {test}\(", text, re.MULTILINE) for text in texts), test


def test_every_module_of_faults_is_named() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    for path in (ROOT / "tests" / "faults").glob("test_z*_stack.py"):
        if "fork" not in path.name:  # no fault: a live snapshot that continues elsewhere
            assert path.name in page, path.name
