"""Faulty chat templates; each class has one fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jinja2

from phases.p2_engine_serve.template import Template


class TemplateWithoutASandbox(Template):
    """The template is rendered in the server process, without a sandbox."""

    def _query_process(self, line: str) -> dict[str, Any]:
        query = json.loads(line)
        try:
            text = jinja2.Environment().from_string(query["source"]).render(**query["values"])
        except Exception as error:
            return {"error": "failed", "detail": str(error)}
        return {"text": text}


class OneChatRefusesAll(Template):
    """After one chat that the template cannot render, every chat is refused."""

    def _to_input_error(self, answer: dict[str, Any]) -> Any:
        refusal = super()._to_input_error(answer)
        self._broken_reason = str(refusal)
        return refusal


class TemplateIsTriedAgain(Template):
    """A template that is broken is run again for the next request."""

    def _to_input_error(self, answer: dict[str, Any]) -> Any:
        refusal = super()._to_input_error(answer)
        self._broken_reason = ""
        return refusal


class TemplateIsCachedByLength(Template):
    """A rendered prompt is cached by the number of messages."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._prompts: dict[int, str] = {}

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        if len(messages) not in self._prompts:
            self._prompts[len(messages)] = super().render(messages)
        return self._prompts[len(messages)]


class LastMessageOnly(Template):
    """The template gets only the newest message."""

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        return super().render(messages[-1:])
