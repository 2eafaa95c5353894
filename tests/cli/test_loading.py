"""A command costs what it needs: the modules of the other commands are not loaded for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from streamops.cli import app
from streamops.cli.main import COMMANDS

PROGRAM = """
import json, sys
from streamops.cli import app
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    print(json.dumps(sorted(sys.modules)))
"""


def test_a_command_loads_no_other_ones_module():
    told = subprocess.run([sys.executable, "-c", PROGRAM, "receipts", "--help"], capture_output=True, text=True)
    commands = {f"streamops.cli.{where.split(':')[0]}" for where in COMMANDS.values()}
    assert commands & set(json.loads(told.stdout.splitlines()[-1])) == {"streamops.cli.receipts"}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_it_does(name):
    told = CliRunner().invoke(app, [name, "--help"])
    assert told.exit_code == 0, told.output
    assert told.output.startswith(f"Usage: streamops {name}")
