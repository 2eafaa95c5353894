"""Airflow's pages as a person uses them, in a headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1500,1250",
)


@contextmanager
def browser(profile: Path) -> Iterator[webdriver.Chrome]:
    """A browser with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    service = webdriver.ChromeService(shutil.which("chromedriver") or "/usr/bin/chromedriver")
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


class AirflowPage:
    """One person at one Airflow.

    Args:
        pictures: where screenshots go.
    """

    def __init__(self, driver: webdriver.Chrome, url: str, pictures: Path) -> None:
        self.driver, self.url, self.pictures = driver, url.rstrip("/"), pictures
        pictures.mkdir(parents=True, exist_ok=True)

    def log_in(self, user: str, password: str) -> None:
        """Sign in on the login page."""
        self.driver.get(self.url)
        self._one("input[name=username]").send_keys(user)
        self._one("input[name=password]").send_keys(password)
        self._one("button[type=submit]").click()
        self._one("[data-testid=nav-dags-link]")

    def dags(self) -> list[str]:
        """The names on the page of all DAGs."""
        self.driver.get(f"{self.url}/dags")
        self._one("a[href$='/dags/deploy_job']")
        links = self.driver.find_elements(By.CSS_SELECTOR, "a[href*='/dags/']")
        return sorted({link.text.strip() for link in links if link.text.strip()})

    def open_form(self, dag: str) -> None:
        """Open the DAG's form."""
        self.driver.get(f"{self.url}/dags/{dag}")
        self._one("[data-testid=trigger-dag-button]").click()
        self._one("[role=dialog] #element_job")

    def value(self, name: str) -> str:
        """What a field of the form holds."""
        return self._one(f"[role=dialog] #element_{name}").get_attribute("value") or ""

    def fill(self, values: dict[str, str]) -> None:
        """Type into the form's fields."""
        for name, value in values.items():
            # A field for a number has its id on the box around it.
            field = self._one(f"[role=dialog] input[name=element_{name}], [role=dialog] input#element_{name}")
            field.send_keys(Keys.CONTROL, "a")
            field.send_keys(value)

    def send(self, dag: str) -> str:
        """Press *Trigger* and return the id of the run whose page opens."""
        submit = self._one("[data-testid=trigger-dag-submit]")
        self._wait(lambda: submit.is_enabled())
        submit.click()
        self._wait(lambda: f"/dags/{dag}/runs/" in self.driver.current_url)
        return unquote(self.driver.current_url.split("/runs/")[1].split("/")[0].split("?")[0])

    def open_run(self, dag: str, run_id: str) -> None:
        """Open a run's page."""
        self.driver.get(f"{self.url}/dags/{dag}/runs/{quote(run_id)}")
        self._one("[data-testid=header-card] [data-testid=state-badge]")

    def run_state(self) -> str:
        """The state that the run's page shows."""
        return self._one("[data-testid=header-card] [data-testid=state-badge]").text.strip().lower()

    def wait_for_run(self, seconds: float) -> str:
        """Watch the page until it shows the end."""
        WebDriverWait(self.driver, seconds, ignored_exceptions=()).until(
            lambda _: self.run_state() in ("success", "failed")
        )
        return self.run_state()

    def tasks(self) -> dict[str, str]:
        """Task id to state, as the table on the run's page shows it."""
        self._one("[data-testid=table-cell-task_display_name]")
        cells = "[data-testid=table-cell-{}]"
        names = self.driver.find_elements(By.CSS_SELECTOR, cells.format("task_display_name"))
        states = self.driver.find_elements(By.CSS_SELECTOR, cells.format("state"))
        return {
            name.text.strip(): state.text.strip().lower().replace(" ", "_")
            for name, state in zip(names, states, strict=True)
        }

    def log(self, dag: str, run_id: str, task: str, expect: str) -> str:
        """The log that a task's page shows, once it contains ``expect``."""
        self.driver.get(f"{self.url}/dags/{dag}/runs/{quote(run_id)}/tasks/{task}")
        self._wait(lambda: expect in self._one("body").text)
        return self._one("body").text

    def leave(self) -> None:
        """Show nothing: a page that is open asks Airflow for news, and draws them."""
        self.driver.get("about:blank")

    def picture(self, name: str) -> Path:
        """Save what is on the screen."""
        path = self.pictures / f"{name}.png"
        self.driver.save_screenshot(str(path))
        return path

    def _one(self, selector: str) -> WebElement:
        self._wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, selector))
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def _wait(self, condition, seconds: float = 120) -> None:
        WebDriverWait(self.driver, seconds).until(lambda _: condition())
