"""Conditions on an event's columns, as Spark SQL writes them: ``price > 100 and symbol in ('A', 'B')``.

Names are columns; there are numbers, texts in single quotes, ``true`` and ``false``; ``= <> != < <= > >=``, ``in``,
``between``, ``like``, ``and``, ``or``, ``not``, ``+ - * / %`` and parentheses. No column is null here: events with a
null are rejected before. Nothing of Spark and nothing of a job's code takes part in it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Value = Any  # a number, a text, a truth value, or a timestamp
Row = Sequence[Value]
Test = Callable[[Row], Value]
MOST = 2000  # characters: what is longer is no filter that a person wrote, and nesting stays shallow

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|'(?P<text>(?:[^']|'')*)'|`(?P<quoted>[^`]+)`"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign><>|!=|<=|>=|==|[=<>+\-*/%(),]))"
)
_WORDS = {"and", "or", "not", "in", "between", "like", "true", "false"}
_COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "=": lambda one, other: _equal(one, other), "==": lambda one, other: _equal(one, other),
    "<>": lambda one, other: not _equal(one, other), "!=": lambda one, other: not _equal(one, other),
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Value, Value], Value]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": lambda one, other: one / other,
    "%": lambda one, other: math.fmod(one, other) if isinstance(one + other, float) else _rest(one, other),
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """A condition that was understood. ``columns`` in the order in which ``test`` takes their values."""

    text: str
    columns: tuple[str, ...]
    test: Test

    def kept(self, columns: Mapping[str, Sequence[Value]]) -> list[bool]:
        """Which rows it keeps, of columns by name. Raises KeyError, TypeError, ZeroDivisionError."""
        return [bool(self.test(row)) for row in zip(*(columns[name] for name in self.columns), strict=True)]


def parse(text: str) -> Condition:
    """Understand a condition.

    Raises:
        ValueError: says what was expected, and where.
    """
    try:
        parser = _Parser(text)
        test = parser.either()
    except RecursionError:
        raise ValueError(f"{text[:40]!r} is nested too deeply") from None
    if parser.more:
        raise parser.wrong("and, or, or the end")
    if not parser.columns:
        raise ValueError(f"{text!r} names no column; write a condition like price > 100 and symbol in ('A', 'B')")
    return Condition(text, tuple(parser.columns), test)


class _Parser:
    """By recursive descent: each method reads what binds at least as tightly as its name says."""

    def __init__(self, text: str) -> None:
        if len(text) > MOST:
            raise ValueError(f"a condition has at most {MOST:,} characters")
        self.columns: dict[str, int] = {}
        self.token, self._kind, self._begin = "", "", 0
        self._text, self._at = text, 0
        self._next()

    @property
    def more(self) -> bool:
        """Whether anything is left to read."""
        return self._kind != "end"

    def wrong(self, expected: str) -> ValueError:
        """What to say where something else stands."""
        found = f"{self._text[self._begin :][:20]!r}" if self._begin < len(self._text) else "the end"
        return ValueError(f"{self._text!r}: expected {expected} at character {self._begin + 1}, found {found}")

    def either(self) -> Test:
        sides = [self._both()]
        while self._take("or"):
            sides.append(self._both())
        return sides[0] if len(sides) == 1 else lambda row: any(side(row) for side in sides)

    def _both(self) -> Test:
        sides = [self._negated()]
        while self._take("and"):
            sides.append(self._negated())
        return sides[0] if len(sides) == 1 else lambda row: all(side(row) for side in sides)

    def _negated(self) -> Test:
        if self._take("not"):
            inner = self._negated()
            return lambda row: not inner(row)
        return self._compared()

    def _compared(self) -> Test:
        one = self._sum()
        if self._kind == "sign" and self.token in _COMPARE:
            compare = _COMPARE[self._next()]
            other = self._sum()
            return lambda row: compare(one(row), other(row))
        turned = self._take("not")
        if self._take("between"):
            low = self._sum()
            self._need("and")
            high = self._sum()
            found: Test = lambda row: low(row) <= one(row) <= high(row)  # noqa: E731
        elif self._take("in"):
            self._need("(")
            items = [self._sum()]
            while self._take(","):
                items.append(self._sum())
            self._need(")")
            found = lambda row: any(_equal(one(row), item(row)) for item in items)  # noqa: E731
        elif self._take("like"):
            if self._kind != "text":
                raise self.wrong("a pattern in single quotes")
            pattern = re.compile(_like(self._next()), re.DOTALL)
            found = lambda row: pattern.fullmatch(one(row)) is not None  # noqa: E731
        elif turned:
            raise self.wrong("between, in or like")
        else:
            return one
        return (lambda row: not found(row)) if turned else found

    def _sum(self) -> Test:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Test:
        return self._chain(self._single, "*", "/", "%")

    def _chain(self, part: Callable[[], Test], *signs: str) -> Test:
        found = part()
        while self._kind == "sign" and self.token in signs:
            found = _applied(_ARITHMETIC[self._next()], found, part())
        return found

    def _single(self) -> Test:
        kind, token = self._kind, self.token
        if kind == "number":
            number = float(token) if re.search(r"[.eE]", token) else int(token)
            self._next()
            return lambda row: number
        if kind == "text":
            self._next()
            return lambda row: token
        if self._take("-"):
            inner = self._single()
            return lambda row: -inner(row)
        if self._take("("):
            inner = self.either()
            self._need(")")
            return inner
        if kind == "word" and token in ("true", "false"):
            self._next()
            return lambda row: token == "true"
        if kind != "name":
            raise self.wrong("a column, a number or a text in single quotes")
        self._next()
        if self.token == "(" and self._kind == "sign":
            raise self.wrong(f"an operator (functions such as {token} are not known here)")
        place = self.columns.setdefault(token, len(self.columns))
        return lambda row: row[place]

    def _take(self, token: str) -> bool:
        if self.token == token and self._kind in ("word", "sign"):
            self._next()
            return True
        return False

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise self.wrong(token)

    def _next(self) -> str:
        """The present token; the one after it becomes the present."""
        before = self.token
        rest = self._text[self._at :]
        self._begin = self._at + len(rest) - len(rest.lstrip())
        self.token, self._kind = "", "end"
        if not rest.strip():
            return before
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self.wrong("a column, a value or an operator")
        self._at, kind = match.end(), str(match.lastgroup)
        self.token = match[kind]
        if kind == "text":
            self.token = self.token.replace("''", "'")
        elif kind == "name" and self.token.lower() in _WORDS:
            self.token, kind = self.token.lower(), "word"
        self._kind = "name" if kind == "quoted" else kind
        return before


def _equal(one: Value, other: Value) -> bool:
    """Raises TypeError for a text and something else: Spark would make a number of the text, or fail."""
    if isinstance(one, str) is not isinstance(other, str):
        raise TypeError(f"{one!r} and {other!r} cannot be compared")
    return bool(one == other)


def _applied(function: Callable[[Value, Value], Value], one: Test, other: Test) -> Test:
    return lambda row: function(one(row), other(row))


def _like(pattern: str) -> str:
    """A pattern of SQL as a regular expression."""
    signs = {"%": ".*", "_": "."}
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    return "".join(re.escape(part[1]) if len(part) == 2 else signs.get(part, re.escape(part)) for part in parts)


def _rest(one: int, other: int) -> int:
    """The remainder with the sign of the first, as Spark has it."""
    found = abs(one) % abs(other)
    return -found if one < 0 else found
