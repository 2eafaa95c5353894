"""A private Airflow home: parsing the DAGs must need neither a database nor a network nor this machine's settings."""

import os
import tempfile

# Airflow reads its configuration at import, so this stands before any test module.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="airflow-home-"))
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
os.environ.setdefault("AIRFLOW__CORE__UNIT_TEST_MODE", "False")
