"""Which ports are taken, and by whom."""

from __future__ import annotations

import socket

import psutil

from stack.layout import PORTS, Layout
from streamops.model.errors import RefusedError
from streamops.store import waiting

UNKNOWN = "a process of another user"
_ENDING_S = 10.0


def holder(port: int) -> str | None:
    """What listens on a port of loopback, as text; None when the port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            return None
        except OSError:
            pass
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:  # as on macOS, where only root may look
        connections = []
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                process = psutil.Process(connection.pid)
                return f"process {process.pid} ({process.name()}, user {process.username()})"
            except psutil.NoSuchProcess:
                return f"process {connection.pid}"
    return UNKNOWN


def check(layout: Layout) -> None:
    """Refuse to start when a port is taken.

    A port without a holder that we can see may be that of a process which is just ending, as all are after a kill of
    the whole stack: it gets some seconds.

    Raises:
        RefusedError: names every taken port, what it is for, and the process that holds it.
    """

    def look() -> dict[str, str]:
        return {name: who for name in PORTS if (who := holder(layout.port(name)))}

    taken = waiting.until(look, _ENDING_S, 0.2, lambda taken: UNKNOWN not in taken.values())
    if not taken:
        return
    listed = "; ".join(f"port {layout.port(name)} ({name}) is held by {who}" for name, who in taken.items())
    raise RefusedError(
        f"The stack cannot start: {listed}. End that process, or set STREAMOPS_PORT_OFFSET to a number that is added "
        "to every port."
    )
