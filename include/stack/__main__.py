"""``python -m stack up|down|status|env|doctor``: what the Makefile calls and ``streamops stack`` wraps."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from stack import doctor, lifecycle
from stack.programs import GENERATOR, SPARE_WORKERS
from streamops.model.errors import StreamOpsError


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="stack", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    start = verbs.add_parser("up", help="start what does not run and wait until it is ready")
    start.add_argument("--no-generator", action="store_true", help="leave the trade generator as it is")
    verbs.add_parser("down", help="stop everything; data stays")
    verbs.add_parser("status", help="show what runs")
    verbs.add_parser("env", help="print endpoints and credentials as KEY=VALUE lines")
    verbs.add_parser("doctor", help="say what is missing on this machine")
    chosen = parser.parse_args(argv)
    say = partial(print, flush=True)
    try:
        if chosen.verb == "up":
            lifecycle.up(generator=not chosen.no_generator, say=say)
            _show_addresses()
        elif chosen.verb == "down":
            lifecycle.down(say=say)
        elif chosen.verb == "env":
            for key, value in lifecycle.env().items():
                print(f"{key}={value}")
        elif chosen.verb == "status":
            return _show_status()
        else:
            return _show_doctor()
    except StreamOpsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _show_addresses() -> None:
    status = lifecycle.status()
    for name, address in status.addresses.items():
        print(f"  {name:9} {address}")
    print(f"  The login is in {status.home / 'stack.env'} (AIRFLOW_USER, AIRFLOW_PASSWORD).")


def _show_status() -> int:
    status = lifecycle.status()
    if not status.running:
        print(f"The stack in {status.home} is not running; start it with 'make up'.")
        return 1
    for program in status.programs:
        print(f"{program.name:22} {program.state:9} {program.detail}")
    _show_addresses()
    optional = (GENERATOR, *SPARE_WORKERS)  # whether these run is an operator's choice
    servers = [program for program in status.programs if program.name not in optional]
    return 0 if all(program.state == "RUNNING" for program in servers) else 1


def _show_doctor() -> int:
    findings = doctor.doctor()
    for finding in findings:
        print(f"{'ok     ' if finding.ok else 'MISSING'} {finding.what:14} {finding.detail}")
    return 0 if all(finding.ok for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
