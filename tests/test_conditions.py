"""Conditions of a recount: what they keep, and what is refused."""

from __future__ import annotations

import pytest

from streamops.model.conditions import MOST, parse

ROWS = [("A", 100, 1.5, True), ("B", 5, -2.0, False), ("it's", -7, 0.0, True)]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("price > 5", "A"),
        ("price >= 5 and symbol <> 'A'", "B"),
        ("price = 5 or price = 100", "AB"),
        ("price < 0 or price > 5 and symbol = 'B'", "i"),  # and binds tighter
        ("(price < 0 or price > 5) and symbol = 'B'", ""),
        ("not price > 5", "Bi"),
        ("NOT (price > 5) AND ok", "i"),
        ("symbol in ('A', 'B') and price not in (100)", "B"),
        ("price between 5 and 100 and share > 0", "A"),
        ("price not between 5 and 100", "i"),
        ("symbol like 'it_s'", "i"),
        ("symbol not like '%t%'", "AB"),
        ("symbol = 'it''s'", "i"),
        ("price % 3 = -1", "i"),  # the sign of the first, as Spark has it
        ("price / 2 = 2.5", "B"),
        ("price * 2 - 10 = 0", "B"),
        ("-price = 7", "i"),
        ("ok = true", "Ai"),
        ("`price` >= 1e2", "A"),
        ("share = 0.0", "i"),
    ],
)
def test_rows_are_kept_as_spark_would(text: str, kept: str) -> None:
    columns = dict(zip(("symbol", "price", "share", "ok"), map(list, zip(*ROWS, strict=True)), strict=True))
    found = [row[0][0] for row, keep in zip(ROWS, parse(text).kept(columns), strict=True) if keep]
    assert "".join(found) == kept


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a column, a number"),
        ("price >", "found the end"),
        ("price > 5 price", "expected and, or, or the end at character 11"),
        ("upper(symbol) = 'A'", "functions such as upper are not known here"),
        ("price ; 5", "expected a column, a value or an operator"),
        ("symbol = 'A", "expected a column, a value or an operator"),
        ("symbol not 'A'", "expected between, in or like"),
        ("symbol like price", "a pattern in single quotes"),
        ("(price > 5", "expected )"),
        ("1 = 1", "names no column"),
        ("__import__('os').system('x')", "functions such as __import__"),
        ("(" * (MOST - 1), "nested too deeply"),
        ("price > 5 " * MOST, "at most"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("(", r"\(").replace(")", r"\)")):
        parse(text)


@pytest.mark.parametrize("text", ["price = 'A'", "symbol in (1, 2)", "symbol > 5"])
def test_a_text_is_not_compared_with_a_number(text: str) -> None:
    with pytest.raises(TypeError):
        parse(text).kept({"symbol": ["A"], "price": [1]})
