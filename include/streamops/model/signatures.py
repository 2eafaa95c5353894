"""Signatures over JSON objects: HMAC-SHA256 with a key that never lies in the bucket.

A signature reads ``hmac-sha256:KEY-ID:HEX`` and covers every other field of the object, in one canonical form, so
that white space and the order of fields do not matter and no field can be added, changed or taken away.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamops.model.errors import SignatureError

FIELD = "signature"
_METHOD = "hmac-sha256"
_KEY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,31}):([0-9a-f]{64,128})")


def canonical(fields: Mapping[str, Any]) -> bytes:
    """The bytes that are signed: all fields but the signature, sorted, without white space."""
    signed = {name: value for name, value in fields.items() if name != FIELD}
    return json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


@dataclass(frozen=True, repr=False)
class Keyring:
    """The keys of one installation by id: the first one signs, each is accepted, so that keys can be rotated."""

    keys: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Keyring:
        """Read ``ID:HEX,ID:HEX`` (at least 32 bytes each, the signing key first).

        Raises:
            SignatureError: the text is not that; it is never repeated in the message.
        """
        found: list[tuple[str, bytes]] = []
        for place, part in enumerate(filter(None, (item.strip() for item in text.split(","))), start=1):
            match = _KEY.fullmatch(part)
            if match is None or match[1] in (name for name, _ in found):
                raise SignatureError(
                    f"Key {place} of SNAPSHOT_KEYS is not of the form ID:HEX with an id of its own and 32 to 64 bytes "
                    "in hex; correct the installation's private file."
                )
            found.append((match[1], bytes.fromhex(match[2])))
        return cls(tuple(found))

    def __repr__(self) -> str:
        return f"Keyring({', '.join(name for name, _ in self.keys)})"

    def sign(self, fields: Mapping[str, Any]) -> str:
        """The signature of these fields, with the first key.

        Raises:
            SignatureError: there is no key here.
        """
        if not self.keys:
            raise SignatureError(
                "This installation has no key to sign with; 'make up' makes one, and other hosts need the same "
                "SNAPSHOT_KEYS in their private file."
            )
        name, key = self.keys[0]
        return f"{_METHOD}:{name}:{_digest(key, fields)}"

    def problem(self, fields: Mapping[str, Any]) -> str:
        """Why the fields are not to be trusted; empty when they carry a valid signature of an accepted key."""
        given = fields.get(FIELD)
        if not given:
            return "is not signed"
        method, _, rest = str(given).partition(":")
        name, _, digest = rest.partition(":")
        key = dict(self.keys).get(name)
        if method != _METHOD or not digest.isascii():
            return "has a signature of an unknown kind"
        if key is None:
            accepted = ", ".join(name for name, _ in self.keys) or "none"
            return f"is signed with a key that is not accepted here (accepted: {accepted})"
        return "has a wrong signature: it was altered" if self.refutes(fields) else ""

    def refutes(self, fields: Mapping[str, Any]) -> bool:
        """Whether one of the keys here says that the fields are not what was signed with it."""
        method, _, rest = str(fields.get(FIELD)).partition(":")
        name, _, digest = rest.partition(":")
        key = dict(self.keys).get(name)
        if method != _METHOD or not digest.isascii() or key is None:
            return False
        # In constant time: how long the comparison takes tells nothing about the right digest.
        return not hmac.compare_digest(_digest(key, fields), digest)

    def key_of(self, signature: str | None) -> str:
        """The id of the key that a signature names; empty for none."""
        return (signature or "").split(":")[1] if (signature or "").count(":") == 2 else ""


def _digest(key: bytes, fields: Mapping[str, Any]) -> str:
    return hmac.new(key, canonical(fields), hashlib.sha256).hexdigest()
