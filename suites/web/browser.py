"""A headless Chromium that is controlled by the DevTools protocol."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

_SECONDS = 30
DESKTOP = (1280, 900)


class Browser:
    """A headless Chromium with one tab.

    Args:
        program: Where Chromium is.
        driver: Where its driver is.
        profile: An empty folder of its own.

    Attributes:
        driver: Selenium's.
    """

    def __init__(self, program: str, driver: str, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        options.add_argument("--headless=new")
        options.add_argument("--disable-gpu")
        options.add_argument("--disable-dev-shm-usage")
        options.add_argument(f"--user-data-dir={profile}")
        if os.geteuid() == 0:  # Chromium's sandbox refuses root
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_page_load_timeout(_SECONDS)
        self.driver.set_script_timeout(_SECONDS)

    def open(self, page: Path, size: tuple[int, int] = DESKTOP) -> None:
        """Load a page from its file, in a window of this size."""
        self.driver.get("about:blank")
        self.problems()
        width, height = size
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        self.driver.get(page.as_uri())

    def command(self, name: str, **arguments: Any) -> Any:
        """Send one command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page; the CSP holds the page back, not the driver."""
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> WebElement:
        """Return the first element that matches."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def shown(self, selector: str) -> list[WebElement]:
        """Return every visible element that matches."""
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return [element for element in found if element.is_displayed()]

    def press(self, *keys: str) -> None:
        """Press keys, one after another, on the element with the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def problems(self) -> list[str]:
        """Return the console messages and the requests of the page since the last call."""
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        page = self.driver.current_url.partition("#")[0]
        return said + [url for url in self._requests() if url.partition("#")[0] != page]

    def _requests(self) -> list[str]:
        """Return the requests that were sent; the console names the blocked ones."""
        sent: dict[str, str] = {}
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            told = message["params"]
            if message["method"] == "Network.requestWillBeSent":
                if not told["request"]["url"].startswith("data:"):  # a part of the page
                    sent[told["requestId"]] = told["request"]["url"]
            elif told.get("blockedReason") == "csp":
                sent.pop(told["requestId"], None)
        return list(sent.values())

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()
