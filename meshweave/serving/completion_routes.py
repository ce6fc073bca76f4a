"""The routes of a model that decodes: completions as OpenAI's clients ask for them, whole or as a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from meshweave.errors import MeshweaveError
from meshweave.serving.application import (
    Application,
    Inbox,
    Request,
    Response,
    error_json,
    give_up,
    status_of,
    written,
)
from meshweave.serving.completions import Completion, CompletionRequest, Envelope, read_request
from meshweave.serving.slot_service import Generation, SlotService
from meshweave.serving.text import TextStream, Tokenizer


@dataclass(frozen=True)
class Grown:
    """Tell what a completion has grown by. why: it has ended, by "stop", "length", or an error."""

    index: int
    text: str
    tokens: tuple[int, ...]
    why: str | Exception | None = None


class CompletionRoutes:
    """Answer POST /v1/completions and GET /v1/models. tokenizer: None where clients send and get tokens."""

    def __init__(
        self,
        application: Application,
        service: SlotService,
        model: str,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._application, self._service = application, service
        self._model, self._tokenizer = model, tokenizer
        application.inner.router.add_get("/v1/models", self._models)
        application.add_work("/v1/completions", self._completions)

    async def _models(self, request: Request) -> Response:
        model = {"id": self._model, "object": "model", "owned_by": "meshweave"}
        return self._application.json({"object": "list", "data": [model]})

    async def _completions(self, request: Request) -> Response:
        body = await self._application.body(request)
        asked = read_request(body, self._service.decoder, self._tokenizer)
        inbox, envelope = Inbox(self._application), Envelope.of(self._model, time.time())
        jobs = [self._job(index, asked, inbox) for index in range(len(asked.prompts))]
        try:
            self._service.queue.put(jobs)
            grown = self._grown(inbox, len(jobs))
            if asked.stream:
                return await self._streamed(request, asked, envelope, grown)
            return await self._whole(asked, envelope, grown)
        finally:
            give_up([*jobs])

    def _job(self, index: int, asked: CompletionRequest, inbox: Inbox) -> Generation:
        """Return the job of one prompt, which tells the inbox how its completion grows."""
        stream = None if self._tokenizer is None else TextStream(self._tokenizer, asked.stops)

        def told(token: int) -> bool:
            text = "" if stream is None else stream.add(token)
            inbox.tell(Grown(index, text, (token,)))
            return stream is not None and stream.stopped

        def ended(why: str | Exception) -> None:
            text = "" if stream is None or isinstance(why, Exception) else stream.end()
            inbox.tell(Grown(index, text, (), why))

        return Generation(asked.prompts[index], asked.most, asked.how, told, ended)

    async def _grown(self, inbox: Inbox, count: int) -> AsyncIterator[Grown]:
        """Give what `count` completions grow by, until all have ended. Raises what ended one."""
        began, first = time.monotonic(), True
        while count:
            grown = await inbox.get()
            if isinstance(grown.why, Exception):
                raise grown.why
            if first:
                self._application.metrics.first.observe(time.monotonic() - began)
                first = False
            count -= grown.why is not None
            yield grown

    async def _whole(
        self, asked: CompletionRequest, envelope: Envelope, grown: AsyncIterator[Grown]
    ) -> Response:
        made = [Completion(index, "", [], None) for index in range(len(asked.prompts))]
        async for piece in grown:
            completion = made[piece.index]
            completion.text += piece.text
            completion.tokens += piece.tokens
            completion.why = None if piece.why is None else str(piece.why)
        usage = _usage(asked, sum(len(completion.tokens) for completion in made))
        choices = [completion.as_json(self._tokenizer is None) for completion in made]
        return self._application.json(envelope.around(choices, usage))

    async def _streamed(
        self,
        request: Request,
        asked: CompletionRequest,
        envelope: Envelope,
        grown: AsyncIterator[Grown],
    ) -> Response:
        """Send each piece as a server-sent event. What fails before the first is a plain answer."""
        first = await anext(grown)
        head = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
        response = self._application.web.StreamResponse(headers=head)
        await response.prepare(request)
        count = await self._send(response, envelope, first)
        try:
            async for piece in grown:
                count += await self._send(response, envelope, piece)
            if asked.usage:
                await _event(response, envelope.around([], _usage(asked, count)))
        except MeshweaveError as error:
            await _event(response, error_json(error, status_of(error)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _send(self, response: Response, envelope: Envelope, piece: Grown) -> int:
        """Send a piece, unless it says nothing; return how many tokens it has."""
        if piece.text or piece.why is not None or self._tokenizer is None:
            why = None if piece.why is None else str(piece.why)
            completion = Completion(piece.index, piece.text, [*piece.tokens], why)
            await _event(response, envelope.around([completion.as_json(self._tokenizer is None)]))
        return len(piece.tokens)


def _usage(asked: CompletionRequest, made: int) -> tuple[int, int]:
    return sum(map(len, asked.prompts)), made


async def _event(response: Any, value: object) -> None:
    await response.write(f"data: {written(value)}\n\n".encode())
