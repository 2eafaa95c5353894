"""The command line. It triggers the same runbooks that the Airflow UI triggers, and reads the same objects.

May import everything; ``story`` alone imports the demos.

Entry point: ``app``; ``main`` names every command.
"""

from streamops.cli.main import app

__all__ = ["app"]
