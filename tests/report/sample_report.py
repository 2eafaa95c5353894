"""A report as the demo writes it, with values that can be worked out by hand."""

from typing import Any

T0 = 1_800_000_000_000  # the switch


def sample_report() -> dict[str, Any]:
    """One minute before and ninety seconds after a switch that took four seconds."""

    def series(start: int, price: int, every: int = 7) -> list[list[float]]:
        return [[T0 + s * 1000, price + 40 * ((s * every) % 11) + s] for s in range(start, 90)]

    def measured(stage: str, measurement: str, expected: int, partial: int) -> dict[str, Any]:
        return {
            "stage": stage, "measurement": measurement, "expected": expected, "missing": 0, "wrong": 0,
            "unexpected": 0, "partial": partial, "late": 0, "examples": [],
        }  # fmt: skip

    steps = [
        ("check", "check", "Check the request", -24, -23),
        ("submit", "submit_driver", "Submit the new driver", -22, -13),
        ("standby", "wait_standby", "Wait until it stands by", -13, -1),
        ("request_stop", "switch", "Ask v1 to stop", 0, 0.1),
        ("await_stop", "switch", "Wait for the batch boundary", 0.1, 1.2),
        ("export_and_restore", "switch", "Export and restore", 1.2, 2.0),
        ("hand_over", "switch", "Hand over", 2.0, 2.2),
        ("healthy", "wait_healthy", "Wait until v2 is healthy", 2.2, 5.0),
        ("recount", "recount", "Recount", 5.5, 12.0),
    ]
    return {
        "job": "trade-analyser",
        "finished": "2027-01-15T08:00:00+00:00",
        "shown_from_ms": T0 - 60_000,
        "shown_to_ms": T0 + 90_000,
        "machine": {"cores": 2, "memory_bytes": 24 << 30, "system": "Linux"},
        "rate": {"asked": 10_000, "reached": 9_999.6},
        "story": [{"name": "Start the stack", "seconds": 12.5}, {"name": "Deploy v1", "seconds": 31.0}],
        "upgrade": {
            "operation": "upgrade_job-0123456789ab",
            "from": "v1",
            "to": "v2",
            "snapshot": "SavePoint1",
            "snapshot_bytes": 3_355_443,
            "switch_ms": T0,
            "back_ms": T0 + 4_000,
            "longest_pause_s": 5.25,
            "gaps": {
                "avg_1s": {
                    "last": "2027-01-15T08:00:00.000+00:00",
                    "first": "2027-01-15T08:00:04.100+00:00",
                    "seconds": 4.1,
                },
                "vol_1s": {"last": None, "first": "2027-01-15T08:00:04.500+00:00", "seconds": None},
            },
            "steps": [
                {"name": name, "task": task, "title": title,
                 "started_ms": T0 + start * 1000, "ended_ms": T0 + end * 1000}
                for name, task, title, start, end in steps
            ],
        },
        "recount": {
            "clean": True, "reason": "all 12345 points are as the ledger says", "events": 1_500_000,
            "measurements": [measured("avg_1s", "avg_1s", 15_000, 100), measured("vol_1s", "vol_1s", 88, 1)],
        },
        "takeover": {
            "operation": "upgrade_job-89abcdef0123", "from": "v2", "to": "v3", "snapshot": "Gapless-2", "rate": 1000.4,
            "began_ms": T0 + 40_000, "switch_ms": T0 + 70_000, "ended_ms": T0 + 75_000,
            "undisturbed": {"avg_1s": 1.1, "avg_1m": 1.2, "vol_1s": None},
            "pauses": {"avg_1s": 1.37, "avg_1m": 1.4, "vol_1s": 1.5},
            "lateness": {"count": 15, "p50": 0.31, "p99": 0.47, "worst": 0.5},
        },
        "lateness": {"count": 140, "p50": 2.6, "p99": 3.4, "worst": 8.0},
        "series": {
            "avg_1s": {"AAPL": series(-60, 19_000), "MSFT": series(-60, 42_000, 5), "AMZN": series(-60, 18_000, 3)},
            "avg_1m": {"AAPL": [[T0 + s * 1000, 19_200 + s] for s in range(1, 90)]},
            "vol_1s": [[T0 + s * 1000, 500_000 + 9_000 * (s % 5)] for s in range(1, 90)],
            "lateness": [[T0 + s * 1000, 2.6 + (5 if -2 < s < 3 else 0)] for s in range(-60, 90)],
        },
    }  # fmt: skip
