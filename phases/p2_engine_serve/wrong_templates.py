"""Wrong ways with a chat template, each with one fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jinja2

from phases.p2_engine_serve.template import Template


class TemplateWithoutASandbox(Template):
    """The template is run in the server, by an environment that trusts it."""

    def _query_process(self, line: str) -> dict[str, Any]:
        query = json.loads(line)
        try:
            text = jinja2.Environment().from_string(query["source"]).render(**query["values"])
        except Exception as error:
            return {"error": "failed", "detail": str(error)}
        return {"text": text}


class OneChatRefusesAll(Template):
    """A chat that the template cannot be applied to is the last one."""

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
    """A rendered prompt is kept by how many messages there were."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._prompts: dict[int, str] = {}

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        if len(messages) not in self._prompts:
            self._prompts[len(messages)] = super().render(messages)
        return self._prompts[len(messages)]


class LastMessageOnly(Template):
    """The template gets the newest message alone."""

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        return super().render(messages[-1:])
