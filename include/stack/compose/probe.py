"""Whether a server of this container answers: ``python probe.py URL`` or ``python probe.py HOST:PORT``.

For health checks, which run every few seconds: the standard library alone, so that a check costs little.
"""

import socket
import sys
import urllib.request


def answers(place: str, timeout_s: float = 4) -> bool:
    """Whether a URL answers with success, or a port takes a connection."""
    try:
        if "://" in place:
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(place, timeout=timeout_s):
                return True
        host, port = place.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=timeout_s):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(0 if answers(sys.argv[1]) else 1)
