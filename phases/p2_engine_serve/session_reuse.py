"""The session turn of a single live request: when a second turn may reuse the first."""

from __future__ import annotations

from typing import Any

from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p2_engine_serve.client_reply import ClientReply, ClientRequest
from phases.p2_engine_serve.harness import Harness

FIRST_PROMPT = [20, 21, 22, 23, 24]
TURN_OPTIONS: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "return_token_ids": True,
                           "logprobs": 2}
OTHER_REQUEST = ClientRequest(
    "completions", False, {"prompt": [40, 41], "max_tokens": 3, **TURN_OPTIONS}
)


def turn_request(prompt: list[int], tokens: int = 4) -> ClientRequest:
    """Return a request for some greedy tokens after a prompt of ids."""
    return ClientRequest("completions", False,
                         {"prompt": prompt, "max_tokens": tokens, **TURN_OPTIONS})


class SessionTurns:
    """A first turn, something in between, and a second turn that is compared with a cold start."""

    def __init__(self, harness: Harness, subject: Subject, judge: Judge) -> None:
        self.harness, self.subject, self.judge = harness, subject, judge
        self.first = harness.ask(turn_request(FIRST_PROMPT))
        self.history = FIRST_PROMPT + self.first.ids
        self.state_length = len(self.history) - 1
        """Tokens in the slot: the last one was never fed back."""

    def second_turn(self, kind: str) -> tuple[list[int], int]:
        """Return the prompt of the second turn and how many of its tokens must be reused."""
        history, harness = self.history, self.harness
        prompts = {"shorter": history[:-2], "the-same-again": FIRST_PROMPT,
                   "held-and-no-more": history[:-1],
                   "diverges-at-the-end": [*history[:-2], history[-2] ^ 1, history[-1], 7],
                   "diverges-at-the-start": [history[0] ^ 1, *history[1:], 7]}
        if kind in prompts:
            return prompts[kind], 0
        if kind == "after-another":
            harness.ask(OTHER_REQUEST)
        if kind == "after-an-error":
            self._fail_request()
        together = kind in ("beside-another", "behind-another")
        return [*history, 7, 8, 9], 0 if together or kind.startswith("after") else self.state_length

    def run(self, kind: str) -> ClientReply:
        """Run the second turn; compare its reuse, and its reply with a cold start."""
        prompt, reused = self.second_turn(kind)
        before = self.harness.service.scheduler.counts.prefilled
        got, others = self._ask_second(kind, turn_request(prompt))
        where = {"kind": kind}
        self.harness.check_equal(
            "cached tokens", got.usage["prompt_tokens_details"]["cached_tokens"], reused, **where)
        self.harness.check_equal("tokens prefilled",
                                 self.harness.service.scheduler.counts.prefilled - before,
                                 len(prompt) - reused + others, **where)
        with Harness(self.subject, self.judge) as cold:
            want = cold.ask(turn_request(prompt))
        self.harness.check_equal("tokens", got.ids, want.ids, **where)
        self.harness.check_equal("log-probs", got.logprobs, want.logprobs, **where)
        return got

    def _ask_second(self, kind: str, request: ClientRequest) -> tuple[ClientReply, int]:
        """Return the reply, and how many prompt tokens were computed for other requests."""
        if kind == "beside-another":
            return self.harness.ask_all([request, OTHER_REQUEST])[0], 2
        if kind == "behind-another":  # the other request gets its slot first
            (other,) = self.harness.hold([OTHER_REQUEST])
            self.harness.law(self.harness.barrier.allow_steps(1), "the allowed step did not run")
            mine = self.harness.accepted(lambda: self.harness.ask(request))
            self.harness.barrier.release()
            self.harness.result(other)
            return self.harness.result(mine), 2
        return self.harness.ask(request), 0

    def _fail_request(self) -> None:
        """Make a request fail in the engine, so that no slot's state is valid."""
        def trouble(tokens: Any) -> bool:
            raise RuntimeError("the device is lost")

        self.harness.steps.fail_step = trouble
        answer = self.harness.post({"model": "nano", "prompt": [50], "max_tokens": 1})
        self.harness.check_equal("status of a failed request", answer.status_code, 500)
        self.harness.steps.fail_step = lambda tokens: False
