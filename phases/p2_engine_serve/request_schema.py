"""The fields of a request, as strict models; a refusal names the wrong field."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from phases.p2_engine_serve.api_error import ApiError
from phases.p2_engine_serve.sampling import MAX_TOP

TopCount = Annotated[int, Field(ge=0, le=MAX_TOP)]


T = TypeVar("T", bound="StrictModel")


StopString = Annotated[str, Field(min_length=1, max_length=1024)]
# fail_fast: one error for each item of a long list would take gigabytes
StopStrings = Annotated[list[StopString], Field(max_length=16, fail_fast=True)]
MAX_NAME_CHARS = 100
"""Maximum characters of an unknown field's name in an error message."""


class StrictModel(BaseModel):
    """A request or a part of one; unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, fields: Any) -> Any:
        """Drop optional fields that are null, since clients send their defaults.

        Keep only the first unknown field, so that it is refused by name.
        """
        known = cls.model_fields
        if not isinstance(fields, dict) or (
                None not in fields.values() and fields.keys() <= known.keys()):
            return fields
        unknown = next((name for name in fields if name not in known), None)
        return {name: value for name, value in fields.items() if name == unknown or (
            name in known and (value is not None or known[name].is_required()))}


class StreamOptions(StrictModel):
    """The options of a stream."""

    include_usage: bool = False


class CommonRequest(StrictModel):
    """The fields of both endpoints."""

    model: str
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] = 0
    """-1 and 0 mean no limit."""
    seed: Annotated[int | None, Field(ge=-(1 << 63), lt=1 << 64)] = None
    stop: StopString | StopStrings | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False
    """Return the ids of the prompt and of every token; their texts can be ambiguous."""
    n: Annotated[int, Field(ge=1, le=1)] = 1
    user: str | None = None
    """Accepted and ignored."""

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> CommonRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def limit(self) -> int | None:
        """Maximum new tokens, or None for all that fit."""
        return None

    @property
    def top(self) -> int | None:
        """How many likely tokens to report with each token; None for no log-probs."""
        return None


class CompletionRequest(CommonRequest):
    """The body of /v1/completions."""

    prompt: str | Annotated[list[int], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1)] = 16
    logprobs: TopCount | None = None

    @property
    def limit(self) -> int:
        """Maximum new tokens."""
        return self.max_tokens

    @property
    def top(self) -> int | None:
        """How many likely tokens to report with each token; None for no log-probs."""
        return self.logprobs


class TextPart(StrictModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(StrictModel):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)]
    name: str | None = None

    def as_template_input(self) -> dict[str, str]:
        """Return the message as the template's input."""
        content = self.content if isinstance(self.content, str) \
            else "".join(part.text for part in self.content)
        return {"role": self.role, "content": content,
                **({} if self.name is None else {"name": self.name})}


class ChatRequest(CommonRequest):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool = False
    top_logprobs: TopCount = 0

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are the same limit: give one")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    @property
    def limit(self) -> int | None:
        """Maximum new tokens, or None for all that fit."""
        return self.max_tokens or self.max_completion_tokens

    @property
    def top(self) -> int | None:
        """How many likely tokens to report with each token; None for no log-probs."""
        return self.top_logprobs if self.logprobs else None


def parse(kind: type[T], body: bytes) -> T:
    """Parse a body, or raise `ApiError` naming the first wrong field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _to_api_error(error.errors(include_url=False, include_input=False)) from None


def _to_api_error(errors: list[Any]) -> ApiError:
    place = _error_path(errors[0])
    first, message = _root_cause([one for one in errors if _error_path(one)[:len(place)] == place])
    field = ".".join(place) if place else None
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {message.removeprefix('Invalid JSON: ')}",
                        code="invalid_json")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{_format_path(place)} is an unknown field", field,
                        code="unknown_field")
    if first["type"] == "value_error":  # our messages begin with the field's name
        return ApiError(400, message, message.split()[0], code="invalid_value")
    where = ".".join(_error_path(first)) if field else "the body must be a JSON object"
    return ApiError(400, f"{where}: {message}", field, code="invalid_value")


def _error_path(error: Any) -> list[str]:
    """Return the field names that lead to an error; an unknown field may have any name."""
    path = error["loc"][:-1] if error["type"] == "extra_forbidden" else error["loc"]
    names = [part for part in path if not _is_union_branch(part)]
    return [str(part)[:MAX_NAME_CHARS] for part in (*names, *error["loc"][len(path):])]


def _format_path(place: list[str]) -> str:
    """Return a field's path on one line, quoted if it is empty or not printable."""
    text = ".".join(place)
    return text if text and text.isprintable() else repr(text)


def _root_cause(errors: list[Any]) -> tuple[Any, str]:
    """Return the error that explains a refusal, of those of all types of a union, and its message.

    An error inside a list is preferred to the error that the list is not a string.
    """
    inside = [one for one in errors if one["type"] not in ("string_type", "list_type")
              or not _is_union_branch(one["loc"][-1])]
    if inside:
        return inside[0], inside[0]["msg"].removeprefix("Value error, ")
    kinds = [one["msg"].removeprefix("Input should be ") for one in errors]
    return errors[0], f"Input should be {' or '.join(kinds)}"


def _is_union_branch(part: int | str) -> bool:
    """Return whether a part of an error's path is pydantic's name for a type of a union."""
    return (isinstance(part, str) and not part.isidentifier()) or part in ("str", "int")
