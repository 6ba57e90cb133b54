"""A headless Chromium for the tests of the page, and what they ask it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service


def missing() -> str:
    """Why there is no browser to test with; empty where there is one."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if not absent:
        return ""
    return f"no {' and no '.join(absent)}: `make browser` installs them from Debian's packages, as root"


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def opened(
    driver: webdriver.Chrome, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False
) -> None:
    """Load a page afresh from disk. No window is as narrow as a phone, so its page is told to be."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())


def requests(driver: webdriver.Chrome) -> list[str]:
    """Addresses of all that was asked for since the last look."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def complaints(driver: webdriver.Chrome) -> list[str]:
    """What the console says since the last look, refusals of the security policy included."""
    entries: list[dict[str, Any]] = driver.get_log("browser")
    return [entry["message"] for entry in entries]


def screenshots(driver: webdriver.Chrome, page: Path) -> Iterator[Path]:
    """The whole page as a picture: light, dark, and as wide as a phone."""
    for name, width, dark in (("light", 1200, False), ("dark", 1200, True), ("phone", 360, False)):
        opened(driver, page, width=width, dark=dark)
        tall = driver.execute_script("return document.documentElement.scrollHeight")
        opened(driver, page, width=width, height=min(tall, 9000), dark=dark)
        picture = page.with_name(f"{page.stem}-{name}.png")
        picture.write_bytes(driver.get_screenshot_as_png())
        yield picture
