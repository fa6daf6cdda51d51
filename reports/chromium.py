"""A page in a real browser, for tests of the pages: what it says, asks for, and lets stick out.

Headless Chromium is driven over its debugging pipe; nothing but its program is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from falsifiers.gate.tiers import BROWSER_PROGRAMS

ANSWER_TIMEOUT = 120.0
"""Seconds that any answer may take; a browser that is silent for longer is broken."""
FIND_OVERFLOW_JS = """(() => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const wide = document.documentElement.clientWidth, found = [];
  const inside = e => e && (["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX)
    || inside(e.parentElement));
  if (document.documentElement.scrollWidth > wide) found.push("the page itself");
  for (const e of document.body.querySelectorAll("*")) {
    const box = e.getBoundingClientRect();
    if (box.width && (box.right > wide + 1 || box.left < -1) && !inside(e.parentElement))
      found.push(e.tagName + "." + e.className + " reaches " + Math.round(box.right));
  }
  return found;
})()"""


@dataclass(frozen=True)
class PageVisit:
    """What a page did when it was opened."""

    errors: tuple[str, ...]
    """Console errors and warnings, exceptions, and what the browser logged of the page."""
    requests: tuple[str, ...]
    """Every address that was asked for, the page's own first."""
    outside: tuple[str, ...]
    """Elements that stick out of the window, with all folded parts open."""
    height: int


class Chromium:
    """A headless browser; a context manager that ends it."""

    def __init__(self) -> None:
        program = next(filter(None, map(shutil.which, BROWSER_PROGRAMS)))
        self._profile = tempfile.TemporaryDirectory(prefix="rowtwin-browser-")
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        # the browser takes its orders from 3 and answers on 4, whatever those are here
        ours = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]

        def wire() -> None:
            os.dup2(ours[0], 3)
            os.dup2(ours[1], 4)

        self._process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "--no-first-run",
             "--disable-background-networking", "--disable-dev-shm-usage", "about:blank"],
            preexec_fn=wire, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (read, write, *ours):
            os.close(end)
        self._unread, self._next = b"", 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def open_page(
        self, page: Path, width: int, dark: bool = False, picture: Path | None = None
    ) -> PageVisit:
        """Open a page in a window of that width and return what it did; keep a picture if asked."""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

        def ask(method: str, **given: Any) -> Any:
            return self._send(method, session, **given)

        for domain in ("Page", "Runtime", "Log", "Network"):
            ask(f"{domain}.enable")
        ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
            mobile=width < 600)
        ask("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self._events.clear()
        ask("Page.navigate", url=page.resolve().as_uri())
        self._wait_for(lambda event: event["method"] == "Page.loadEventFired")
        outside = _result_value(
            ask("Runtime.evaluate", expression=FIND_OVERFLOW_JS, returnByValue=True)
        )
        height = _result_value(ask("Runtime.evaluate", returnByValue=True,
                            expression="document.documentElement.scrollHeight"))
        if picture is not None:
            picture.write_bytes(base64.b64decode(ask(
                "Page.captureScreenshot", captureBeyondViewport=True)["data"]))
        mine = [event for event in self._events if event.get("sessionId") == session]
        self._send("Target.closeTarget", targetId=target)
        return PageVisit(tuple(text for event in mine for text in _error_messages(event)),
                    tuple(event["params"]["request"]["url"] for event in mine
                          if event["method"] == "Network.requestWillBeSent"),
                    tuple(outside), int(height))

    def _send(self, method: str, session: str | None = None, **given: Any) -> Any:
        self._next += 1
        message = {"id": self._next, "method": method, "params": given,
                   **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._wait_for(lambda said: said.get("id") == self._next)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first message that is wanted; events on the way are kept."""
        end = time.monotonic() + ANSWER_TIMEOUT
        for event in self._events:
            if wanted(event):
                return event
        while True:
            said, found, rest = self._unread.partition(b"\0")
            if found:
                self._unread = rest
                message: dict[str, Any] = json.loads(said)
                if "method" in message:
                    self._events.append(message)
                if wanted(message if "id" in message else {"id": None, **message}):
                    return message
            elif not select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser said nothing for {ANSWER_TIMEOUT:.0f} s")
            else:
                more = os.read(self._read, 1 << 20)
                if not more:
                    raise RuntimeError("the browser ended")
                self._unread += more


def _result_value(answer: Any) -> Any:
    return answer["result"]["value"]


def _error_messages(event: dict[str, Any]) -> list[str]:
    given = event.get("params", {})
    if event["method"] == "Runtime.exceptionThrown":
        return [given["exceptionDetails"]["text"]]
    if event["method"] == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
        return [given["entry"]["text"]]
    if event["method"] == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
        return [json.dumps(given["args"])]
    return []
