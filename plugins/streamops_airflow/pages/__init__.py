"""Pages beside Airflow's own, behind its login."""
