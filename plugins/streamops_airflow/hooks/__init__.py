"""Hooks: from Airflow connections to clients of the core.

May import the core and Airflow's own hooks, and no operator.

Entry points: ``streamops.StreamOpsHook`` (an installation), ``snapshots.SnapshotHook`` (what a plain task may do).
"""
