"""Expressions of a plan as texts that mean the same in every version and every process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from streamops.versions.fingerprints import Window

_CONVERTED = r", Timestamp(?:NTZ)?Type, LongType\)"
_WINDOW = re.compile(
    r"named_struct\(start, knownnullable\(precisetimestampconversion\(\(\(precisetimestampconversion\((?P<time>.+?)"
    + _CONVERTED
    + r" - CASE WHEN \(\(\(precisetimestampconversion\((?P=time)"
    + _CONVERTED
    + r" - (?P<offset>-?\d+)\) % (?P<slide>\d+)\) < 0\) THEN .+ END\) - 0\) \+ (?P<size>\d+)\), LongType, "
    r"Timestamp(?:NTZ)?Type\)\)\)$"
)
_SESSION = re.compile(
    r"named_struct\(start, precisetimestampconversion\(precisetimestampconversion\((?P<time>.+?)"
    + _CONVERTED
    + r", LongType, Timestamp(?:NTZ)?Type\), end, knownnullable\(precisetimestampconversion\("
    r"precisetimestampconversion\((?P=time) \+ (?P<gap>.+)" + _CONVERTED + r", LongType, Timestamp(?:NTZ)?Type\)\)\)$"
)
_END = re.compile(  # the time of a window, as windows over windows use it
    r"precisetimestampconversion\(\(precisetimestampconversion\((.+)\.end"
    + _CONVERTED
    + r" - 1\), LongType, Timestamp(?:NTZ)?Type\)"
)
_LONGEST = 400


@dataclass(frozen=True)
class Meaning:
    """What an attribute of the plan was made of."""

    text: str
    columns: frozenset[str] = frozenset()
    window: Window | None = None


def of_window(window: Window, columns: frozenset[str]) -> Meaning:
    """A window as the meaning of a key."""
    session = window.kind == "session"
    shape = (window.gap,) if session else (window.size_us, window.slide_us, window.offset_us)
    return Meaning(f"{window.kind} window({', '.join([window.time, *map(str, shape)])})", columns, window)


def window_of(text: str, found: Mapping[str, Meaning]) -> Window | None:
    """The window that an expression makes, if Spark made it from ``window`` or ``session_window``."""
    if match := _WINDOW.match(text):
        size, slide, offset = (int(match[name]) for name in ("size", "slide", "offset"))
        kind: Literal["tumbling", "sliding"] = "tumbling" if size == slide else "sliding"
        time = replaced(match["time"], found)
        return Window(kind=kind, time=time, size_us=size, slide_us=slide, offset_us=offset)
    if match := _SESSION.match(text):
        gap = replaced(match["gap"], found)
        return Window(kind="session", time=replaced(match["time"], found), gap=gap)
    return None


def shared_window(windows: list[Window | None]) -> Window | None:
    """The window of a union whose inputs have windows of one shape, over whichever times."""
    known = [window for window in windows if window]
    if len(known) != len(windows) or len({window.model_copy(update={"time": ""}) for window in known}) != 1:
        return None
    return known[0].model_copy(update={"time": " or ".join(dict.fromkeys(window.time for window in known))})


def replaced(text: str, found: Mapping[str, Meaning]) -> str:
    """The text with each attribute replaced by what it was made of."""
    for token in sorted(found, key=len, reverse=True):
        text = re.sub(re.escape(token) + r"(?!\d)", lambda _, token=token: found[token].text, text)
    return bare(_END.sub(r"end of \1", text))


def bare(text: str) -> str:
    """Without Spark's numbers of attributes, which differ from one run to the next."""
    return re.sub(r"#\d+L?(-T\d+ms)?", "", text)


def short(text: str) -> str:
    """A text of bounded length that still differs from every other."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}…{hashlib.sha256(text.encode()).hexdigest()[:16]}"
