"""The chat template of a model's file, rendered in a process with limits."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.errors import InputError

MAX_PROMPT_CHARS = 1 << 22
"""Maximum characters of a prompt."""
RENDER_TIMEOUT = 5.0
"""Seconds that rendering may take; a normal template takes milliseconds."""
RENDER_SCRIPT = Path(__file__).with_name("render.py")


class Template:
    """A chat template; its methods may be called from any thread."""

    def __init__(self, source: str | None, seconds: float = RENDER_TIMEOUT) -> None:
        self.source, self.seconds = source, seconds
        self._broken_reason = "the model's file has no chat template" if source is None else ""
        self._lock = threading.Lock()  # guards the process, which renders one chat at a time
        self._process: subprocess.Popen[str] | None = None

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Return the prompt of a chat; raise `InputError` if it cannot be rendered."""
        values = {"messages": list(messages), "add_generation_prompt": True}
        with self._lock:
            if self._broken_reason:
                raise InputError(self._broken_reason)
            answer = self._query_process(json.dumps({"source": self.source, "values": values,
                                                     "most": MAX_PROMPT_CHARS}))
            if "text" in answer:
                return str(answer["text"])
            raise self._to_input_error(answer)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop_process()

    def _to_input_error(self, answer: dict[str, Any]) -> InputError:
        """Return the error; store it for later chats only if the template itself is broken."""
        kind, detail = answer["error"], _one_line(answer["detail"])
        if kind == "broken":
            self._broken_reason = f"the model's chat template is broken: {detail}"
            return InputError(self._broken_reason)
        if kind == "raised":
            return InputError(f"the chat template refuses these messages: {detail}")
        if kind == "hostile":
            self._stop_process()  # frees its memory before the next chat
        return InputError(f"the chat template cannot render these messages: {detail}")

    def _query_process(self, line: str) -> dict[str, Any]:
        process = self._process = self._process or _start_renderer()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(self.seconds, process.kill)
        late.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            late.cancel()
        if answer.endswith("\n"):  # otherwise the process ended early
            found: dict[str, Any] = json.loads(answer)
            return found
        self._stop_process()
        return {"error": "hostile", "detail": f"it took more than {self.seconds:g} seconds or more "
                f"memory than a template needs"}

    def _stop_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _one_line(text: str) -> str:
    """Return a template's message as one line of valid UTF-8."""
    return " ".join(text.encode("utf-8", "replace").decode().split())


def _start_renderer() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-P", str(RENDER_SCRIPT)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            encoding="utf-8")
