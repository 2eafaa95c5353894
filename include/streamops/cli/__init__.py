"""The command line. It triggers the same runbooks that the Airflow UI triggers, and reads the same objects."""

from streamops.cli.main import app

__all__ = ["app"]
