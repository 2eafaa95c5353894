"""The map in a real browser: it shows what the store holds, moves it, and finds one vehicle by its VIN."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from selenium.webdriver.common.by import By

from airflow_page import AirflowPage, browser
from demos.fleet.vehicles import Ping, Vehicle
from fresh_job import wait_for
from streamops.clients.airflow import Airflow
from streamops.clients.influx import Points, line
from streamops.operations.follow import Runbooks
from streamops.settings import REPOSITORY, Settings
from streamops.store.object_store import ObjectStore

pytestmark = [pytest.mark.stack, pytest.mark.ui, pytest.mark.full]


class Fleet:
    """Vehicles whose pings are written straight to the store."""

    def __init__(self, settings: Settings) -> None:
        self.measurement = f"pings_{uuid.uuid4().hex[:8]}"
        self.points = Points(settings)
        self.vehicles = {fleet: [Vehicle(fleet, number, 1) for number in range(30)] for fleet in ("alpha", "beta")}

    def drive(self, hours: float) -> dict[str, Ping]:
        """Everybody drives on and pings; what is stored, by VIN."""
        found, lines = {}, []
        for fleet, vehicles in self.vehicles.items():
            for vehicle in vehicles:
                vehicle.advance(hours * 3600)
                ping = vehicle.ping(time.time())
                found[ping.vin] = ping
                fields = {"latitude": ping.latitude, "longitude": ping.longitude, "fleet": fleet}
                lines.append(line(self.measurement, {"vin": ping.vin}, fields, int(ping.time * 1000)))
        self.points.write_lines(lines)
        return found


@pytest.fixture(scope="module")
def page(stack: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowPage]:
    with Airflow(stack) as airflow:
        Runbooks(airflow, ObjectStore(stack)).wait_ready(("deploy_job",))
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        page = AirflowPage(driver, stack.airflow_url, REPOSITORY / "build" / "screenshots")
        page.log_in(stack.airflow_user, stack.airflow_password.get_secret_value())
        yield page


def shown(page: AirflowPage) -> dict[str, tuple[float, float]]:
    script = (
        "return [...document.querySelectorAll('.vehicle')]"
        ".map((dot) => [dot.dataset.vin, Number(dot.dataset.latitude), Number(dot.dataset.longitude)])"
    )
    return {vin: (latitude, longitude) for vin, latitude, longitude in page.driver.execute_script(script)}


@pytest.mark.timeout(600)
def test_the_map_shows_moves_and_finds_what_the_store_holds(stack: Settings, page: AirflowPage) -> None:
    fleet = Fleet(stack)
    first = fleet.drive(0.5)
    page.driver.get(f"{stack.airflow_url}/fleet/?measurement={fleet.measurement}")
    wait_for(lambda: shown(page) == {vin: (p.latitude, p.longitude) for vin, p in first.items()}, 180, "all vehicles")
    assert page.driver.find_element(By.ID, "count").text == "60 vehicles"

    second = fleet.drive(0.5)
    wait_for(lambda: shown(page) == {vin: (p.latitude, p.longitude) for vin, p in second.items()}, 180, "their moves")
    vin = fleet.vehicles["beta"][7].vin
    page.driver.find_element(By.ID, "search").send_keys(vin.lower())
    rows = "#track tbody tr"
    wait_for(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, rows)) == 2, 90, "the vehicle's pings")
    assert page.driver.find_element(By.ID, "vin").text == vin
    script = "return [...document.querySelectorAll(arguments[0])].map(cell => cell.textContent)"
    newest = page.driver.execute_script(script, f"{rows}:first-child td")  # at once: the rows are made again every 2 s
    assert newest[1:] == [
        f"{second[vin].latitude:.5f}", f"{second[vin].longitude:.5f}", "beta",
    ]  # fmt: skip
    assert not page.driver.find_element(By.ID, "trouble").text
    page.driver.find_element(By.ID, "search").clear()
    page.driver.find_element(By.ID, "search").send_keys(" ")
    page.picture("fleet-map")
