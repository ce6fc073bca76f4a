"""Read requests for completions as OpenAI's clients make them, and write what answers them.

What is not supported is refused by name, so that nothing asked for is ignored.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshweave.errors import UsageError
from meshweave.serving.decoder import Decoder
from meshweave.serving.sampling import Sampling
from meshweave.serving.text import Tokenizer

_MOST_PROMPTS, _MOST_STOPS = 64, 4
# Fields that other servers know, with the values that ask for nothing.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "n": (None, 1), "best_of": (None, 1), "echo": (None, False), "logprobs": (None,),
    "suffix": (None, ""), "logit_bias": (None, {}), "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
}  # fmt: skip
_KNOWN = (
    "model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "stream",
    "stream_options", "user", *_WITHOUT_EFFECT,
)  # fmt: skip


@dataclass(frozen=True)
class CompletionRequest:
    """Say what a client asks for: a completion of each prompt. usage: in a stream, count the tokens at the end."""

    prompts: tuple[tuple[int, ...], ...]
    most: int
    how: Sampling
    stops: tuple[str, ...]
    stream: bool
    usage: bool


def read_request(body: object, decoder: Decoder, tokenizer: Tokenizer | None) -> CompletionRequest:
    """Return what a body asks for. Raises UsageError that names what is wrong."""
    if not isinstance(body, Mapping):
        raise UsageError("an object with a prompt is needed")
    for name, value in body.items():
        if name not in _KNOWN:
            raise UsageError(f'no field "{name:.40}"; there are {", ".join(_KNOWN)}')
        if name in _WITHOUT_EFFECT and value not in _WITHOUT_EFFECT[name]:
            raise UsageError(f"{name}: {value!r:.40} is not supported")
    most = _whole(body, "max_tokens", 16, 1)
    prompts = _prompts(body.get("prompt"), decoder, tokenizer)
    for tokens in prompts:
        if len(tokens) + most > decoder.length:
            raise UsageError(
                f"prompt of {len(tokens)} tokens and max_tokens {most}: {decoder.length} together "
                "is the most"
            )
    seed = None if body.get("seed") is None else _whole(body, "seed", 0, 0)
    how = Sampling(
        _number(body, "temperature", 1.0, 0.0, 2.0), _number(body, "top_p", 1.0, 0.0, 1.0), seed
    )
    stops = _stops(body.get("stop"), tokenizer)
    options = body.get("stream_options") or {}
    if not isinstance(options, Mapping) or set(options) - {"include_usage"}:
        raise UsageError("stream_options: only include_usage is known")
    usage = _flag(options, "include_usage")
    return CompletionRequest(prompts, most, how, stops, _flag(body, "stream"), usage)


def _flag(body: Mapping[str, object], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name}: {value!r:.40}: true or false is right")
    return bool(value)


def _whole(body: Mapping[str, object], name: str, default: int, least: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise UsageError(f"{name}: {value!r:.40}: a whole number of at least {least} is right")
    return value


def _number(
    body: Mapping[str, object], name: str, default: float, low: float, high: float
) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UsageError(f"{name}: {value!r:.40}: a number from {low:g} to {high:g} is right")
    return float(value)


def _stops(given: object, tokenizer: Tokenizer | None) -> tuple[str, ...]:
    stops = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
        raise UsageError(f"stop: {given!r:.40}: text, or a list of texts, is right")
    if len(stops) > _MOST_STOPS:
        raise UsageError(f"stop: {len(stops)} texts, {_MOST_STOPS} are the most")
    if stops and tokenizer is None:
        raise UsageError("stop: the server has no tokenizer, so there is no text to stop at")
    return tuple(stops)


def _prompts(
    given: object, decoder: Decoder, tokenizer: Tokenizer | None
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each prompt: of a text, a list of texts, a list of tokens, or a list of such lists."""
    single = isinstance(given, str) or (
        isinstance(given, list) and bool(given) and _is_token(given[0])
    )
    prompts = [given] if single else given
    if not isinstance(prompts, list) or not prompts:
        raise UsageError("prompt: text, a list of tokens, or a list of either, is needed")
    if len(prompts) > _MOST_PROMPTS:
        raise UsageError(f"prompt: {len(prompts)} prompts, {_MOST_PROMPTS} are the most")
    return tuple(_tokens(prompt, decoder, tokenizer) for prompt in prompts)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _tokens(prompt: object, decoder: Decoder, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise UsageError("prompt: the server has no tokenizer: a list of tokens is needed")
        prompt = tokenizer.encode(prompt)
    if not isinstance(prompt, list) or not all(map(_is_token, prompt)):
        raise UsageError(f"prompt: {prompt!r:.40}: text, or a list of tokens, is needed")
    if not prompt:
        raise UsageError("prompt: it has no tokens, one is needed")
    for token in prompt:
        if not 0 <= token < decoder.vocabulary:
            raise UsageError(f"prompt: token {token}: 0 to {decoder.vocabulary - 1} are there")
    return tuple(prompt)


@dataclass
class Completion:
    """Hold one completion as it grows: its number, text, tokens, and why it ended."""

    index: int
    text: str
    tokens: list[int]
    why: str | None

    def as_json(self, with_tokens: bool) -> dict[str, Any]:
        """Return it as clients read it; its tokens too where there is no tokenizer."""
        more = {"tokens": self.tokens} if with_tokens else {}
        return {"index": self.index, "text": self.text, "logprobs": None, "finish_reason": self.why,
                **more}  # fmt: skip


@dataclass(frozen=True)
class Envelope:
    """Hold what all answers to one request begin with."""

    model: str
    created: int
    id: str

    @staticmethod
    def of(model: str, now: float) -> Envelope:
        """Make one for a new request. now: seconds since 1970."""
        return Envelope(model, math.floor(now), f"cmpl-{uuid.uuid4().hex}")

    def around(
        self, choices: Sequence[dict[str, Any]], usage: tuple[int, int] | None = None
    ) -> dict[str, Any]:
        """Return an answer. usage: tokens of the prompts, and of the completions."""
        made: dict[str, Any] = {"id": self.id, "object": "text_completion", "created": self.created,
                                "model": self.model, "choices": list(choices)}  # fmt: skip
        if usage is not None:
            read, new = usage
            made["usage"] = {"prompt_tokens": read, "completion_tokens": new,
                             "total_tokens": read + new}  # fmt: skip
        return made
