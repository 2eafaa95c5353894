"""Measurements on a running stack: throughput and lateness, the gap of an upgrade, memory. Not tests."""
