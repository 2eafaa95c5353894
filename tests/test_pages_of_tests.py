"""Pages that name tests: each test is there, in the module, the place and the target that the page says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"`([^`]+)`( \(long\))?")
PLACES = {"servers", "Spark", "rig", "store", "containers", "code"}
PROMISES = {"A": 10, "B": 9, "C": 6, "D": 24, "E": 15, "F": 8, "G": 8}


@cache
def rows(page: str) -> list[dict[str, str]]:
    """The rows of all tables of a page, by heading."""
    found: list[dict[str, str]] = []
    for table, lines in groupby((ROOT / "docs" / page).read_text().splitlines(), lambda line: line.startswith("|")):
        if table:
            head, _, *body = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
            found += [dict(zip(head, cells, strict=True)) for cells in body]
    return found


def promises() -> list[dict[str, str]]:
    return [row for row in rows("promises.md") if "id" in row]


@cache
def marked(module: str) -> dict[str, set[str]]:
    """The tests of a module with their marks; a mark of some of a test's parameters is none of the test."""
    body = ast.parse((ROOT / module).read_text()).body
    assigned = (item for item in body if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "pytestmark")
    of_all = {mark for item in assigned for mark in re.findall(r"pytest\.mark\.(\w+)", ast.unparse(item.value))}
    return {
        item.name: of_all | {ast.unparse(mark).removeprefix("pytest.mark.") for mark in item.decorator_list}
        for item in body
        if isinstance(item, ast.FunctionDef) and item.name.startswith("test_")
    }


def named(cell: str) -> Iterator[tuple[str, str, bool]]:
    """Module, test and whether the page says that it is a long one; without a test for the module itself."""
    module = ""
    for name, long in NAMED.findall(cell):
        if name.endswith(".py"):
            module, name = name, ""
        yield module, name, bool(long)


@pytest.mark.parametrize("page", ["faults.md", "promises.md"])
def test_every_test_of_a_row_is_in_the_module_that_is_named_before_it(page: str) -> None:
    cells = [row["shown by"] for row in rows(page) if "shown by" in row]
    assert len(cells) > 20
    for module, test, _ in (found for cell in cells for found in named(cell)):
        assert not test or test in marked(module), (module, test)
        assert (ROOT / module).is_file(), module


def test_every_fault_names_a_test() -> None:
    for row in rows("faults.md"):
        assert any(test for _, test, _ in named(row["shown by"])), row["fault"]


def test_every_module_of_faults_is_named() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    for path in (ROOT / "tests" / "faults").glob("test_z*_stack.py"):
        if "fork" not in path.name:  # no fault: a live snapshot that continues elsewhere
            assert path.name in page, path.name


def test_every_promise_is_there_once_and_in_order() -> None:
    assert [row["id"] for row in promises()] == [
        f"{letter}{number}" for letter, count in PROMISES.items() for number in range(1, count + 1)
    ]


def test_a_promise_names_its_document_and_a_test_or_says_that_there_is_none() -> None:
    documents = {row["document"].strip("*") for row in rows("promises.md") if "document" in row}
    for row in promises():
        assert set(row["from"].split(", ")) <= documents, row["id"]
        assert any(test for _, test, _ in named(row["shown by"])) or "**Not yet:**" in row["promise"], row["id"]


def test_a_promise_says_where_its_tests_run_and_which_are_long() -> None:
    entries = [entry for row in promises() for entry in row["shown by"].split("<br>") if entry]
    for entry in entries:
        place = entry.partition(":")[0]
        assert place in PLACES, entry
        for module, test, long in named(entry):
            marks = marked(module)[test] if test else set[str]()
            assert not test or ("stack" in marks, "long" in marks) == (place == "servers", long), (entry, test)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_any_page_names_is_there(page: Path) -> None:
    """Of a name that is cut short with …, one test that begins so."""
    there = {test for path in (ROOT / "tests").rglob("test_*.py") for test in marked(str(path.relative_to(ROOT)))}
    for name in re.findall(r"`(test_\w+…?)`", page.read_text()):
        assert name in there or (name[-1] == "…" and any(test.startswith(name[:-1]) for test in there)), name
    for path in re.findall(r"`(tests/[\w/]+\.py)`", page.read_text()):
        assert (ROOT / path).is_file(), path
