"""Pages beside Airflow's own, behind its login.

May import the hooks and the core.
"""
