"""A real headless browser: Chromium, controlled by WebDriver (w3.org/TR/webdriver2) as a person would use it."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import bound, require, wait_until

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element in WebDriver's JSON
# Chromium's options as root, and in containers with a small /dev/shm.
_OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
]


class Browser:
    """A browser window. Elements are selected by CSS, or by their text."""

    def __init__(self, driver: httpx.Client) -> None:
        self._driver = driver
        options = {"binary": shutil.which("chromium"), "args": _OPTIONS}
        capabilities = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "timeouts": {"pageLoad": 60_000}}}}
        self._session = f"/session/{self._ask('POST', '/session', capabilities)['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._driver.request(method, path, json={} if body is None and method == "POST" else body)
        value = answer.json()["value"]
        if answer.is_error:
            raise LookupError(f"{method} {path}: {value['error']}: {value['message'][:500]}")
        return value

    def _command(self, method: str, path: str, body: Any = None) -> Any:
        return self._ask(method, f"{self._session}{path}", body)

    def _element(self, css: str) -> str:
        using, value = ("xpath", css) if css.startswith("//") else ("css selector", css)
        return str(self._command("POST", "/element", {"using": using, "value": value})[_ELEMENT])

    def open(self, url: str) -> None:
        """Open this URL."""
        self._command("POST", "/url", {"url": url})

    @property
    def url(self) -> str:
        """The URL of the open page."""
        return str(self._command("GET", "/url"))

    def text(self, css: str = "main") -> str:
        """The visible text of that element; '' while the page is being replaced."""
        with suppress(LookupError):
            return " ".join(str(self._command("GET", f"/element/{self._element(css)}/text")).split())
        return ""

    def there(self, css: str) -> bool:
        """Whether such an element exists."""
        with suppress(LookupError):
            return bool(self._element(css))
        return False

    def click(self, what: str, within: str = "//main") -> None:
        """Click the link, button or summary with that text; retry while the page is being replaced."""
        path = f"{within}//*[self::a or self::button or self::summary][normalize-space()='{what}']"

        def done() -> bool:
            with suppress(LookupError):
                self._command("POST", f"/element/{self._element(path)}/click")
                return True
            return False

        wait_until(done, 20, f"{what!r} to be clicked")

    def enter(self, css: str, text: str) -> None:
        """Type this text into a field."""
        self._command("POST", f"/element/{self._element(css)}/value", {"text": text})

    def script(self, code: str) -> Any:
        """The result of this script, run in the page by WebDriver."""
        return self._command("POST", "/execute/sync", {"script": code, "args": []})

    def show(self, width: int, *, dark: bool) -> None:
        """Set the window's width, and the preference for dark or light."""
        sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        for cmd, params in (("setDeviceMetricsOverride", sizes), ("setEmulatedMedia", {"features": features})):
            self._command("POST", "/goog/cdp/execute", {"cmd": f"Emulation.{cmd}", "params": params})

    def without_scripts(self) -> None:
        """Disable scripts of pages from now on."""
        self._command("POST", "/goog/cdp/execute", {"cmd": "Emulation.setScriptExecutionDisabled", "params": {"value": True}})

    def picture(self, file: Path) -> None:
        """Write a screenshot as a PNG."""
        file.write_bytes(base64.b64decode(self._command("GET", "/screenshot")))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a fresh profile; it ends with the block."""
    if not (shutil.which("chromedriver") and shutil.which("chromium")):
        require("chromium", "no chromedriver and chromium on PATH; on Debian: apt-get install chromium-driver")
    with subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as driver:
        try:
            assert driver.stdout is not None
            port = next((m[1] for line in driver.stdout if (m := re.search(r"successfully on port (\d+)", line))), None)
            assert port, "chromedriver did not start"
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=bound(90)) as client:
                browser = Browser(client)
                try:
                    yield browser
                finally:
                    browser._command("DELETE", "")
        finally:
            driver.terminate()
            driver.wait(bound(20))
