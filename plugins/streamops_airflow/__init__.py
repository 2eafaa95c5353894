"""The Airflow side of StreamOps: connections in, calls to the core, ids into XCom. Decisions stay in the core."""
