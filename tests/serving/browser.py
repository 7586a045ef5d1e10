"""A real browser to test pages in: Chromium without a window, driven through a pipe.

The DevTools protocol over `--remote-debugging-pipe` is JSON between NUL bytes, so that neither a
driver nor a websocket is needed. Keys, clicks and taps are the browser's own input events: what a
test does takes the way that a user's hand takes.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("ZIPFLM_NEED_CHROMIUM"), reason="no Chromium found"
)

_KEYS = {
    "Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "Backspace": (8, ""), "Home": (36, ""),
    "End": (35, ""), "ArrowLeft": (37, ""), "ArrowUp": (38, ""), "ArrowRight": (39, ""),
    "ArrowDown": (40, ""), " ": (32, " "),
}  # fmt: skip
_ALT, _CONTROL = 1, 2
READY = "document.readyState === 'complete'"


class Browser:
    """One browser with one page at a time; what goes wrong in a page is in `problems`."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None, "ZIPFLM_NEED_CHROMIUM is set, but no Chromium is installed"
        (commands, to_browser), (from_browser, events) = _pipe(), _pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        options += ["--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage"]
        options += [f"--user-data-dir={folder / 'profile'}", "--force-device-scale-factor=1"]
        # The browser reads from 3 and writes to 4.
        redirected = f'exec "$@" 3</dev/fd/{commands} 4>/dev/fd/{events}'
        self._process = subprocess.Popen(
            ["sh", "-c", redirected, "sh", CHROMIUM, *options, "about:blank"],
            pass_fds=(commands, events),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(events)
        self._to_browser, self._from_browser = to_browser, from_browser
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._session: str | None = None
        self._context: str | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session = None
        self._send("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        os.close(self._to_browser)
        os.close(self._from_browser)

    # --- Pages. ---

    def open(
        self,
        url: str,
        *,
        width: int = 1400,
        height: int = 900,
        dark: bool = False,
        touch: bool = False,
        password: str = "",
    ) -> None:
        """A fresh page that remembers nothing of those before it.

        A `password` is sent with all requests, as after a prompt, which would need a screen.
        """
        self._session = None
        if self._context:
            self.call("Target.disposeBrowserContext", browserContextId=self._context)
        self._context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=self._context)
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height, touch=touch)
        self.prefer("prefers-color-scheme", "dark" if dark else "light")
        if password:
            basic = base64.b64encode(f":{password}".encode()).decode()
            headers = {"Authorization": f"Basic {basic}"}
            self.call("Network.setExtraHTTPHeaders", headers=headers)
        self.problems.clear()
        self.requests.clear()
        self.call("Page.navigate", url=url)
        self.wait_for(f"location.href !== 'about:blank' && {READY}")

    def reload(self) -> None:
        """The same page once more, which remembers what pages may."""
        self.evaluate("void (window.isOld = true)")
        self.call("Page.reload")
        self.wait_for(f"!window.isOld && {READY}")

    def resize(self, width: int, height: int = 900, *, touch: bool = False, scale: int = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=touch,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)

    def prefer(self, feature: str, value: str) -> None:
        """What the media query of that name finds."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": feature, "value": value}])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 10) -> Any:
        """The value of an expression as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)
        return value

    # --- Hands. ---

    def type(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self.press("Enter")
            else:
                self.call("Input.dispatchKeyEvent", type="keyDown", text=character, key=character)
                self.call("Input.dispatchKeyEvent", type="keyUp", key=character)

    def press(self, key: str, *, alt: bool = False, control: bool = False) -> None:
        code, text = _KEYS.get(key, (ord(key[0].upper()), key))
        event: dict[str, Any] = {"key": key, "code": key if code < 65 else f"Key{key.upper()}"}
        event |= {"windowsVirtualKeyCode": code, "modifiers": _ALT * alt + _CONTROL * control}
        if alt or control:
            text = ""
        kind = "keyDown" if text else "rawKeyDown"
        commands = ["undo"] if control and key == "z" else []
        self.call("Input.dispatchKeyEvent", type=kind, text=text, commands=commands, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def compose(self, text: str) -> None:
        """What an input method shows before a word is chosen."""
        self.call(
            "Input.imeSetComposition", text=text, selectionStart=len(text), selectionEnd=len(text)
        )

    def commit(self, text: str) -> None:
        """What it puts there in the end."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point(self, selector: str) -> None:
        x, y = self.place(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, selector: str) -> None:
        x, y = self.place(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, brought into sight; `selector` may be an expression in ()."""
        found = selector if selector[0] == "(" else f"document.querySelector({selector!r})"
        x, y = self.evaluate(
            f"(() => {{ const node = {found}; node.scrollIntoView({{ block: 'nearest' }});"
            " const box = node.getBoundingClientRect();"
            " return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        return x, y

    # --- The pipe. ---

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        number = self._send(method, **params)
        while True:
            answer = self._answers.get(timeout=30)
            if answer["id"] == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _send(self, method: str, **params: Any) -> int:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        return self._number

    def _read(self) -> None:
        rest = b""
        while part := os.read(self._from_browser, 1 << 16):
            *messages, rest = (rest + part).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers.put(message)
                else:
                    self._note(message["method"], message["params"])

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Log.entryAdded" and about["entry"]["source"] in ("security", "violation"):
            self.problems.append(about["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])


def _pipe() -> tuple[int, int]:
    """Both ends, above the numbers that the browser expects."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
