"""A headless Chromium for one test, driven over its debugging pipe: JSON messages, each ended by a NUL, from descriptor 3 and to
descriptor 4 of the browser. Whatever the page did wrong or asked the network for is kept."""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DEADLINE = 60


def high(descriptor):
    """The same at 10 or above, out of the way of 3 and 4."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Browser:
    def __init__(self, folder, environment):
        folder.mkdir()
        self.last, self.waiting, self.events = 0, b"", []
        (orders, self.to), (self.answers, back) = map(lambda pair: map(high, pair), (os.pipe(), os.pipe()))
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={folder}/profile", "--remote-debugging-pipe"]
        with open(folder / "chromium.log", "wb") as log:
            self.child = subprocess.Popen(["bash", "-c", 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"', str(orders), str(back), CHROMIUM, *flags], stdin=subprocess.DEVNULL,
                                          stdout=log, stderr=log, env=environment, pass_fds=(orders, back), start_new_session=True)
        os.close(orders)
        os.close(back)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def receive(self, end):
        while b"\0" not in self.waiting:
            assert select.select([self.answers], [], [], max(0, end - time.monotonic()))[0], "the browser does not answer"
            got = os.read(self.answers, 1 << 20)
            assert got, "the browser has ended"
            self.waiting += got
        one, self.waiting = self.waiting.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE
        while True:
            got = self.receive(end)
            if got.get("id") == self.last:
                assert "error" not in got, f"{method}: {got}"
                return got["result"]
            self.events.append(got)

    def open(self, path, width):
        """The page in a window so many pixels wide, loaded and painted."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.call("Page.navigate", url=path.as_uri())
        end = time.monotonic() + DEADLINE
        while not self.seen("Page.loadEventFired"):
            self.events.append(self.receive(end))
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def seen(self, method):
        return [event["params"] for event in self.events if event["method"] == method]

    def troubles(self):
        """Exceptions, console messages and what the browser itself complains about."""
        return self.seen("Runtime.exceptionThrown") + self.seen("Runtime.consoleAPICalled") + self.seen("Log.entryAdded")

    def requests(self):
        return [event["request"]["url"] for event in self.seen("Network.requestWillBeSent")]

    def evaluate(self, expression):
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def close(self):
        try:
            self.call("Browser.close")
            self.child.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            pass
        finally:
            if self.child.poll() is None:
                os.killpg(self.child.pid, signal.SIGKILL)
                self.child.wait()
            os.close(self.to)
            os.close(self.answers)
