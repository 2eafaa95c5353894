"""The local stack: every server of one installation on loopback, supervised, with generated secrets.

May import the core, and neither the demos nor Airflow nor PySpark.

Entry points: ``lifecycle.up`` and ``lifecycle.down``, ``layout.Layout`` (where everything is), ``install`` (set-up),
``doctor`` (what is wrong), and ``python -m stack``.
"""
