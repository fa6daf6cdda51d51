"""The exception that becomes an error response, in OpenAI's format."""

from __future__ import annotations

from typing import Any

ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A refused or failed request: HTTP status, message, and the wrong field if there is one."""

    def __init__(self, status: int, message: str, field: str | None = None,
                 code: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.code = status, message, field, code
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    @property
    def body(self) -> dict[str, Any]:
        """The response body as JSON."""
        kind = ERROR_TYPES.get(self.status, "server_error" if self.status >= 500
                               else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.field,
                          "code": self.code}}
