"""Operators: one Airflow task for each task of an operation's plan."""
