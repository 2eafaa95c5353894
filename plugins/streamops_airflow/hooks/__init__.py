"""Hooks: from Airflow connections to clients of the core."""
