"""Headless Chromium for tests, driven by the DevTools protocol.

With `--remote-debugging-pipe`, the protocol is JSON between NUL bytes, so no driver is needed.
Keys, clicks and taps are real input events.
"""

import base64
import fcntl
import json
import os
import queue
import shutil
import subprocess
import threading
import time

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
    """A browser with one page at a time; `problems` has the errors of the page."""

    def __init__(self, folder):
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
        self._answers = queue.Queue()
        self.problems = []
        self.requests = []
        self._number = 0
        self._session = None
        self._context = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
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

    def open(self, url, *, width=1400, height=900, dark=False, touch=False, password=""):
        """Open a page in a new context. A `password` is sent with all requests."""
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

    def reload(self):
        self.evaluate("void (window.isOld = true)")
        self.call("Page.reload")
        self.wait_for(f"!window.isOld && {READY}")

    def resize(self, width, height=900, *, touch=False, scale=1):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=touch,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)

    def prefer(self, feature, value):
        """Set a media feature."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": feature, "value": value}])

    def evaluate(self, expression):
        """Evaluate a JavaScript expression; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def wait_for(self, expression, seconds=10):
        """Wait until an expression is true; returns its value."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"timed out: {expression}"
            time.sleep(0.02)
        return value

    # --- Input. ---

    def type(self, text):
        for character in text:
            if character == "\n":
                self.press("Enter")
            else:
                self.call("Input.dispatchKeyEvent", type="keyDown", text=character, key=character)
                self.call("Input.dispatchKeyEvent", type="keyUp", key=character)

    def press(self, key, *, alt=False, control=False):
        code, text = _KEYS.get(key, (ord(key[0].upper()), key))
        event = {"key": key, "code": key if code < 65 else f"Key{key.upper()}"}
        event |= {"windowsVirtualKeyCode": code, "modifiers": _ALT * alt + _CONTROL * control}
        if alt or control:
            text = ""
        kind = "keyDown" if text else "rawKeyDown"
        commands = ["undo"] if control and key == "z" else []
        self.call("Input.dispatchKeyEvent", type=kind, text=text, commands=commands, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def compose(self, text):
        """Text of an input method before it is committed."""
        self.call(
            "Input.imeSetComposition", text=text, selectionStart=len(text), selectionEnd=len(text)
        )

    def commit(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point(self, selector):
        x, y = self.place(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, selector):
        x, y = self.place(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def place(self, selector):
        """Scroll to an element and return its center; `selector` may be an expression in ()."""
        found = selector if selector[0] == "(" else f"document.querySelector({selector!r})"
        x, y = self.evaluate(
            f"(() => {{ const node = {found}; node.scrollIntoView({{ block: 'nearest' }});"
            " const box = node.getBoundingClientRect();"
            " return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        return x, y

    # --- Pipe. ---

    def call(self, method, **params):
        number = self._send(method, **params)
        while True:
            answer = self._answers.get(timeout=30)
            if answer["id"] == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _send(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        return self._number

    def _read(self):
        rest = b""
        while part := os.read(self._from_browser, 1 << 16):
            *messages, rest = (rest + part).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers.put(message)
                else:
                    self._note(message["method"], message["params"])

    def _note(self, event, about):
        if event == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Log.entryAdded" and about["entry"]["source"] in ("security", "violation"):
            self.problems.append(about["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])


def _pipe():
    """A pipe with file descriptors above those that the browser uses."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
