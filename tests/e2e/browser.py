"""A real Chromium, driven over its DevTools protocol through a pipe: no driver and no package between."""
import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = os.environ.get("MIMO_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

# Nothing that asks the network by itself, so that every request seen is the page's.
FLAGS = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
         "--disable-extensions", "--disable-sync", "--disable-background-networking", "--disable-component-update",
         "--disable-default-apps", "--disable-dev-shm-usage", "--mute-audio", "--lang=en-US"]

KEYS = {"Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""), "Tab": ("Tab", 9, "")}


class Browser:
    def __init__(self, profile):
        # Chromium reads commands from descriptor 3 and answers on 4. The high numbers keep ours out of their way.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for pair in (os.pipe(), os.pipe()) for end in pair]
        theirs_in, self._out, self._in, theirs_out = ends

        def place():
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self.process = subprocess.Popen([CHROMIUM, *FLAGS, *sandbox, f"--user-data-dir={profile}", "about:blank"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        preexec_fn=place, pass_fds=(3, 4))
        os.close(theirs_in)
        os.close(theirs_out)
        self._ids = itertools.count(1)
        self._buffer = b""
        self._listeners = {}  # session -> function of an event

    def _receive(self, seconds):
        """The next message, or None if none comes in time."""
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                return None
            data = os.read(self._in, 1 << 16)
            assert data, "Chromium has ended"
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _dispatch(self, message):
        listener = self._listeners.get(message.get("sessionId"))
        if listener and "method" in message:
            listener(message["method"], message["params"])

    def pump(self, seconds):
        """Lets events come for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if (message := self._receive(left)) is not None:
                self._dispatch(message)

    def send(self, method, session=None, seconds=30, **params):
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + seconds
        while True:
            answer = self._receive(max(0.0, end - time.monotonic()))
            assert answer is not None, f"no answer to {method}"
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._dispatch(answer)

    @contextlib.contextmanager
    def page(self, width=1100, height=760):
        """A tab with nothing of other tabs' in it."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        self._listeners[session] = page.note
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.send(f"{domain}.enable")
            page.resize(width, height)
            yield page
        finally:
            del self._listeners[session]
            self.send("Target.disposeBrowserContext", browserContextId=context)

    def close(self):
        with contextlib.suppress(AssertionError, OSError):
            self.send("Browser.close", seconds=5)
        os.close(self._out)
        os.close(self._in)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.problems = []  # what the console would show in red
        self.requests = []  # (method, URL, body)

    def note(self, event, data):
        if event == "Network.requestWillBeSent":
            request = data["request"]
            self.requests.append((request["method"], request["url"], request.get("postData")))
        elif event == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(data["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(data["args"]))
        elif event == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
            self.problems.append(data["entry"]["text"])

    def send(self, method, **params):
        return self.browser.send(method, self.session, **params)

    def resize(self, width, height, scale=1):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 500)

    def colors(self, scheme):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression):
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression, seconds=20):
        end = time.monotonic() + seconds
        while not self.evaluate(f"!!({expression})"):
            assert time.monotonic() < end, f"not in time: {expression}; the page shows:\n{self.text('body')}"
            self.browser.pump(0.03)

    def count(self, selector):
        return self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def text(self, selector):
        """What a reader sees of the last element that matches."""
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].at(-1)?.innerText ?? ''")

    def shown(self, selector):
        return self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].some(e => e.checkVisibility())")

    def click(self, selector):
        """A press of the mouse in the middle of the last element that matches."""
        x, y = self.evaluate(f"""(() => {{
            const found = [...document.querySelectorAll({json.dumps(selector)})].at(-1);
            found.scrollIntoView({{block: "nearest"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, selector, text):
        """Puts `text` in the place of what the field holds."""
        self.click(selector)
        self.evaluate("document.activeElement.select()")
        if text:
            self.send("Input.insertText", text=text)
        else:
            self.press("Backspace", 8)

    def press(self, key, code=None, shift=False):
        name, number, text = KEYS.get(key, (key, code, ""))
        common = {"key": name, "code": name, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
