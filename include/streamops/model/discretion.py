"""What messages must not say: errors and log lines may be read by people who have no business with a password."""

from __future__ import annotations

import re

HIDDEN = "***"
STORED = {"stored": True}  # the context in which pydantic reads what was accepted once, whatever is refused since

# Every repetition has an end, so that no line can make this slow.
_NAME = (
    r"(?:passw(?:or)?d|passwort|passphrase|pwd|secret|token|credential|signature|authorization|"
    r"(?:api|access|private|account|shared)[_.-]?key)[\w.-]{0,64}"
)
_VALUE = (
    r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\{[^}]{0,4096}\}|\*{3}(?![^\s"'&;,)\]}])"""
    r"""|(?:(?:Basic|Bearer|Token) )?(?:[^\s"'<>&;,]|,(?!\s|[\w.-]{1,64}=))+)"""
)
_PATTERNS = (
    rf"(?P<before>{_NAME} ?= ?){_VALUE}(?P<after>)",  # password=X in a query, an address of JDBC, Kafka's settings
    rf"(?P<before>{_NAME}[\"']\s?[:,]\s?){_VALUE}(?P<after>)",  # "password": "X", or a pair of both
    r"(?P<before>\bspark\.authenticate\.secret[\s,]+)[^\s)]+(?P<after>)",  # as Spark prints its settings
    rf"(?P<before>\bauthorization: ?){_VALUE}(?P<after>)",
    r"(?P<before>\b(?:basic|bearer|token) )[\w+/.=~-]{16,}(?P<after>)",  # as it stands in that header
    # USER:PASSWORD@ of a URL. Where nobody encoded it a password may hold / ? # as well, and a port holds digits alone.
    r"(?P<before>\b[a-z][a-z0-9+.-]{0,31}://)"
    r"(?:[^\s/?#:\"'<>]{0,256}:(?!\d+[/?#])[^\s\"'<>]{0,256}|[^\s/?#\"'<>]{0,256})(?P<after>@)",
    # jdbc:oracle:thin:USER/PASSWORD@HOST
    r"(?P<before>\bjdbc:\w{1,32}:(?:\w{1,32}:)?)[^\s\"'<>:/]{1,256}/[^\s\"'<>]{0,256}(?P<after>@)",
)
_FOUND = [re.compile(pattern, re.IGNORECASE) for pattern in _PATTERNS]


def without_credentials(text: str) -> str:
    """The text, with ``***`` in place of what stands where credentials do: in an address, or after a name of one."""
    for pattern in _FOUND:
        text = pattern.sub(rf"\g<before>{HIDDEN}\g<after>", text)
    return text
