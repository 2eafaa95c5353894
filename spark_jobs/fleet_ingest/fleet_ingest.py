"""Pings of two fleets as points identified by vehicle and time; the newest point of a vehicle is where it is."""

from pyspark.sql import DataFrame

from fleet_types import pings


def vehicles(alpha: DataFrame, beta: DataFrame) -> DataFrame:
    """Every ping of both fleets: ``vin``, ``latitude``, ``longitude``, ``time`` and ``fleet``."""
    return pings(alpha, "alpha").unionByName(pings(beta, "beta"))
