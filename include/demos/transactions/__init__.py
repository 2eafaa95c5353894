"""The transactions tutorial: declared jobs, each transaction logged once across a snapshot and a new version."""
