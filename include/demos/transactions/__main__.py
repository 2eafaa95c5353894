"""What a person has at hand in the tutorial: transactions to send, and a bucket with the job's code."""

from __future__ import annotations

import argparse
import sys

from demos.transactions import code, sender
from stack.layout import Layout
from streamops.model.errors import StreamOpsError
from streamops.settings import Settings


def main(words: list[str]) -> None:
    """``send NUMBER...``, ``upload`` or ``remove-upload``."""
    parser = argparse.ArgumentParser(prog="python -m demos.transactions", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    send = verbs.add_parser("send", help="send transactions to the topic, keyed by their names")
    send.add_argument("numbers", metavar="NUMBER", type=int, nargs="+", choices=sorted(sender.TRANSACTIONS))
    verbs.add_parser("upload", help="put the job's code into a bucket, and the secret to read it with where it belongs")
    verbs.add_parser("remove-upload", help="remove bucket and secret again")
    given = parser.parse_args(words)
    if given.verb == "send":
        lines = sender.send(Settings.load(), given.numbers)
    elif given.verb == "upload":
        lines = code.upload(Layout.find())
    else:
        lines = code.remove(Layout.find())
    print("\n".join(lines))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except StreamOpsError as error:
        sys.exit(f"error: {error}")
