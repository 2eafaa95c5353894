"""The simulators: plausible, repeatable, and honest in their ledgers."""

from __future__ import annotations

import json
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from demos.fleet import alpha, beta
from demos.fleet.recount import compare, expected, with_codes
from demos.fleet.vehicles import CITIES, SPEED_KMH, Fleet, Vehicle, distance_km, read_ledger


def positions(seed: int, rounds: int = 200) -> list[tuple[str, float, float]]:
    found = (vehicle.ping(0.0) for due in islice(Fleet("alpha", 5, 60.0, seed).rounds(), rounds) for vehicle in due)
    return [(ping.vin, ping.latitude, ping.longitude) for ping in found]


def test_the_same_seed_gives_the_same_drives_and_another_one_others() -> None:
    assert positions(1) == positions(1)
    assert positions(1) != positions(2)


def test_vehicles_stay_between_their_cities_and_within_their_speed() -> None:
    low, high = (tuple(edge(place[axis] for place in CITIES.values()) for axis in (0, 1)) for edge in (min, max))
    vehicle, before = Vehicle("beta", 3, 1), None
    for _ in range(2000):
        ping = vehicle.ping(0.0)
        assert low[0] <= ping.latitude <= high[0]
        assert low[1] <= ping.longitude <= high[1]
        if before is not None:
            km = distance_km((before.latitude, before.longitude), (ping.latitude, ping.longitude))
            assert km <= SPEED_KMH[1] / 60 * 1.25 + 0.01  # a straight line on a flat map is not quite a great circle
        before = ping
        vehicle.advance(60)


def test_every_vehicle_pings_once_in_an_interval_and_vins_differ() -> None:
    seen = [vehicle.vin for due in islice(Fleet("beta").rounds(), 10) for vehicle in due]
    assert len(seen) == len(set(seen)) == 30
    assert all(len(vin) == 17 for vin in seen)


def test_alpha_writes_one_file_per_vehicle_and_every_line_is_in_its_ledger(tmp_path: Path) -> None:
    stopped = threading.Event()
    threading.Timer(0.5, stopped.set).start()
    written = alpha.run(tmp_path / "alpha", tmp_path / "alpha.jsonl", stopped, Fleet("alpha", 3, 0.1))
    lines = {line for path in (tmp_path / "alpha").iterdir() for line in path.read_text().splitlines()}
    entries = read_ledger(tmp_path / "alpha.jsonl")
    told = {f'{e["vin"]},{e["latitude"]},{e["longitude"]},{e["time"]},"{" ".join(e["obd_codes"])}"' for e in entries}
    assert lines == told
    assert written == len(entries)
    assert {path.stem for path in (tmp_path / "alpha").iterdir()} == {entry["vin"] for entry in entries}


def test_beta_counts_on_after_a_restart_and_answers_in_order(tmp_path: Path) -> None:
    for _ in range(2):
        pings, stopped = beta.Pings(tmp_path / "beta.jsonl"), threading.Event()
        before, thread = len(pings), threading.Thread(target=beta.drive, args=(pings, stopped, Fleet("beta")))
        thread.start()
        deadline = time.monotonic() + 20
        while len(pings) == before:
            assert time.monotonic() < deadline
        stopped.set()
        thread.join(20)
    answer = json.loads(pings.since(0, 10_000))
    assert [entry["sequence"] for entry in answer] == list(range(1, len(pings) + 1))
    assert [entry["sequence"] for entry in json.loads(pings.since(2, 2))] == [3, 4]
    assert set(answer[0]) == {"vin", "latitude", "longitude", "time", "sequence", "obd_codes"}


def test_half_a_line_at_the_end_of_a_ledger_is_not_a_ping(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"vin": "A", "time": 1.125, "latitude": 1.0, "longitude": 2.0, "obd_codes": []}\n{"vin": "B"')
    assert expected({"beta": path}) == {("A", 1125): {"fleet": "beta", "latitude": 1.0, "longitude": 2.0}}


def test_only_pings_that_were_read_before_codes_were_known_have_none(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(
        "".join(
            json.dumps({"vin": vin, "time": 1.0, "latitude": 1.0, "longitude": 2.0, "obd_codes": codes}) + "\n"
            for vin, codes in (("A", ["P0301"]), ("B", ["P0420", "P0171"]), ("C", []))
        )
    )
    found = expected({"alpha": path}, plain={("A", 1000)})
    assert [found[vin, 1000].get("obd_codes") for vin in ("A", "B", "C")] == [None, "P0420 P0171", ""]
    assert with_codes(found.values()) == {"alpha": 1}


@pytest.mark.parametrize("other", [{"obd_codes": ""}, {"fleet": "beta"}, {"latitude": 9.0}, {"heading": 1.0}])
def test_the_recount_compares_every_field(other: dict[str, Any]) -> None:
    fields = {"fleet": "alpha", "latitude": 1.0, "longitude": 2.0, "obd_codes": "P0301"}
    result = compare({("A", 1): fields}, {("A", 1): fields | other})
    assert (result.wrong, result.clean) == (1, False)


def test_the_recount_tells_missing_wrong_and_unexpected_points_apart() -> None:
    one, other = {"latitude": 1.0}, {"latitude": 9.0}
    wanted = {("A", 1): one, ("A", 2): one, ("B", 1): one}
    found = {("A", 1): one, ("A", 2): other, ("C", 1): one}
    result = compare(wanted, found)
    assert (result.pings, result.missing, result.wrong, result.unexpected, result.clean) == (3, 1, 1, 1, False)
    assert result.examples == ("missing: B at 1", "wrong: A at 2", "unexpected: C at 1")
    assert compare(wanted, wanted).clean
    assert not compare({}, {}).clean
