"""Programs under supervisord, through its XML-RPC interface."""

from __future__ import annotations

import http.client
import xmlrpc.client
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from streamops.model.errors import NotFoundError, StreamOpsError, UnreachableError
from streamops.store import waiting

_ALREADY_STARTED, _NOT_RUNNING, _BAD_NAME = 60, 70, 10


@dataclass(frozen=True)
class Program:
    """One supervised program; ``state`` is supervisord's word, ``pid`` is 0 when it does not run."""

    name: str
    state: str
    pid: int
    detail: str
    exit_status: int = 0  # of its last end; -1 when a signal ended it


class Supervisor:
    """One node's supervisord.

    Raises (every method): UnreachableError when it does not answer, NotFoundError for an unknown program.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        scheme, rest = url.split("://", 1)
        self._url = url
        self._proxy: Any = xmlrpc.client.ServerProxy(f"{scheme}://{quote(user)}:{quote(password)}@{rest}/RPC2")

    def programs(self) -> list[Program]:
        """All programs in the order of the configuration."""
        return [_program(entry) for entry in self._call("getAllProcessInfo")]

    def program(self, name: str) -> Program:
        """One program."""
        return _program(self._call("getProcessInfo", name))

    def start(self, name: str, wait: bool = True) -> None:
        """Start a program; one that runs already is left alone."""
        self._call("startProcess", name, wait, ignore=_ALREADY_STARTED)

    def stop(self, name: str, wait: bool = True) -> None:
        """Stop a program; one that does not run is left alone."""
        self._call("stopProcess", name, wait, ignore=_NOT_RUNNING)

    def signal(self, name: str, signal: str) -> None:
        """Send a signal, such as ``KILL`` or ``PWR``, to a program's process."""
        self._call("signalProcess", name, signal)

    def replace(self, name: str) -> None:
        """Load a program's changed configuration; the program is stopped if it runs, and not started."""
        self.stop(name)
        self._call("reloadConfig")
        self._call("removeProcessGroup", name)
        self._call("addProcessGroup", name)

    def pid(self) -> int:
        """Process id of supervisord itself."""
        return int(self._call("getPID"))

    def shutdown(self) -> None:
        """Stop every program and then supervisord; returns at once."""
        self._call("shutdown")

    def wait(self, name: str, state: str, deadline_s: float) -> Program:
        """Wait until a program is in ``state``. Raises StreamOpsError when it is not by the deadline."""
        program = waiting.until(lambda: self.program(name), deadline_s, 0.1, lambda found: found.state == state)
        if program.state != state:
            raise StreamOpsError(f"{name} is {program.state}, not {state}, after {deadline_s:g} s; see its log.")
        return program

    def _call(self, method: str, *arguments: object, ignore: int | None = None) -> Any:
        try:
            return getattr(self._proxy.supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == ignore:
                return None
            if fault.faultCode == _BAD_NAME:
                raise NotFoundError(f"supervisord at {self._url} has no program {arguments[0]}.") from None
            raise StreamOpsError(
                f"supervisord at {self._url} refused {method} of {arguments[:1]}: {fault.faultString}; see its log."
            ) from None
        except (TimeoutError, OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
            reason = getattr(error, "errmsg", None) or type(error).__name__  # never the address: it has the password
            raise UnreachableError(
                f"supervisord at {self._url} did not answer ({reason}); start the stack with 'make up'."
            ) from None


def _program(entry: dict[str, Any]) -> Program:
    return Program(
        entry["name"], entry["statename"], entry["pid"], entry["description"], int(entry.get("exitstatus", 0))
    )
