"""Client over HTTP: submits, polls, streams and cancels requests, and retries where a retry can help."""

import contextlib
import math
import weakref
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from typing import Any, ClassVar, Self, Unpack

import httpx

from . import base, messages
from . import chat as chats
from ._async import AsyncConnections
from .base import TRANSPORT_ERRORS, BaseClient, BaseStream
from .chat import ChatAnswer, ChatDelta, ChatReader, Messages, Schema
from .errors import APIConnectionError, APIError
from .events import StreamEvent
from .messages import Answer, Prompt, Request
from .results import Ranked, Result, Verdict, read_page, read_result, read_verdict
from .retry import Deadline
from .sampling import Sampling


class AsyncClient(BaseClient):
    """Client of a server over HTTP. `timeout` in seconds bounds a call with its stream and retries (None: no bound).

    `base_url` and `api_key` default to SPLITFUSE_BASE_URL and SPLITFUSE_API_KEY. Tasks of one event loop can share an
    AsyncClient. client.py has the same calls for threads: so whatever waits here waits by `_io` alone.
    """

    _connections: ClassVar[Any] = AsyncConnections

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = 60.0,
        *,
        max_retries: int = 5,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout, max_retries)
        self._io: AsyncConnections = self._connections(transport, self.http_options())
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()

    async def generate(
        self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]
    ) -> Result:
        """Submit a request, wait for its result, return it; leaving early (timeout, Ctrl-C) cancels the request."""
        deadline = self.retry_policy.begin()
        seq_id = await self._submit(messages.submit(prompt, sampling, idempotency_key), deadline)
        try:
            result = await self._poll(seq_id, math.inf, deadline)
        except BaseException as error:
            if base.is_unfinished_after(error):
                await self._cancel(seq_id)
            raise
        return base.raise_if_failed(result)

    async def submit(
        self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]
    ) -> "AsyncJob":
        """Submit a request and return at once."""
        request = messages.submit(prompt, sampling, idempotency_key)
        return self.job(await self._submit(request, self.retry_policy.begin()))

    def stream(
        self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]
    ) -> "AsyncStream":
        """Submit a request and iterate over its events; leaving the iteration early cancels the request.

        The first event, or `await stream`, submits.
        """
        return AsyncStream(self, request=messages.submit(prompt, sampling, idempotency_key))

    async def chat(
        self,
        /,
        messages: Messages,
        *,
        tools: Sequence[Schema] | None = None,
        schema: Schema | None = None,
        **fields: Any,
    ) -> ChatAnswer:
        """Answer a conversation: a list of messages, or the text of one user message.

        `tools`: OpenAI's form, pydantic models or JSON schemas. `schema`: form of the answer, a pydantic model or a
        JSON schema. `fields`: further fields of /v1/chat/completions.
        """
        request = chats.request(messages, tools=tools, schema=schema, fields=fields)
        answer = await self._ask(request, self.retry_policy.begin(), at_most=None)
        return chats.read_answer(answer.json(), schema=schema)

    async def chat_stream(
        self,
        /,
        messages: Messages,
        *,
        tools: Sequence[Schema] | None = None,
        schema: Schema | None = None,
        **fields: Any,
    ) -> AsyncIterator[ChatDelta]:
        """Like `chat`, but iterate over the parts; the last one has the whole answer. Leaving early cancels."""
        deadline = self.retry_policy.begin()
        request = chats.request(messages, tools=tools, schema=schema, fields=fields, stream=True)
        response = await self._open_stream(request, deadline)
        reader, chunks = ChatReader(schema), self._io.chunks(response)
        try:
            while not reader.has_ended:
                for delta in reader.feed(await self._read_chunk(chunks, deadline, name="the answer")):
                    yield delta
        finally:
            await self._io.close_body(response, chunks)

    def job(self, seq_id: str) -> "AsyncJob":
        """Return the job of a request that was submitted before, perhaps by another process."""
        return AsyncJob(self, seq_id)

    async def fork(self, seq_id: str, *, at: int | None = None, **changes: Any) -> "AsyncJob":
        """Continue a kept answer from its token `at` (None: from its end), and return the fork's job.

        `changes`: fields of POST /fork: output, append_text, append_token_ids, and sampling fields that change.
        """
        fields = {"seq_id": seq_id, **({} if at is None else {"at": at}), **changes}
        answer = await self._ask(messages.post("/fork", fields), self.retry_policy.begin())
        return self.job(answer.seq_id())

    async def tokens(self, seq_id: str, *, top: int = 20, output: int = 0) -> list[dict[str, Any]]:
        """Return each token of a kept answer with its logprob, its rank and the likeliest tokens at its place."""
        request = messages.tokens(seq_id, top=top, output=output)
        answer = await self._ask(request, self.retry_policy.begin(), at_most=None)
        return list(answer.json()["tokens"])

    async def results(self, *, status: str | None = None) -> AsyncIterator[Result]:
        """Iterate over this key's results on the server, newest first, without their outputs."""
        after: str | None = None
        while True:
            answer = await self._ask(messages.results(status=status, after=after), self.retry_policy.begin())
            page, after = read_page(answer.json())
            for result in page:
                yield result
            if after is None:
                return

    async def delete_results(self) -> int:
        """Cancel and delete all of this key's requests. Returns how many there were."""
        answer = await self._ask(messages.delete_results(), self.retry_policy.begin())
        return int(answer.json()["deleted"])

    async def verify(self, receipt: Mapping[str, Any]) -> Verdict:
        """Check a receipt: its hash, and every token of its answer."""
        answer = await self._ask(messages.verify(receipt), self.retry_policy.begin())
        return read_verdict(answer.json())

    async def models(self) -> list[str]:
        """Return the names under which the server serves its model."""
        answer = await self._ask(Request("GET", "/v1/models"), self.retry_policy.begin())
        return [str(model["id"]) for model in answer.json()["data"]]

    async def embed(self, texts: str | Sequence[str], dimensions: int | None = None) -> list[list[float]]:
        """Return the vector of each text, from an embedding model. `dimensions`: the first ones of every vector."""
        fields: dict[str, Any] = {} if dimensions is None else {"dimensions": dimensions}
        request = messages.post("/v1/embeddings", {"input": [texts] if isinstance(texts, str) else [*texts], **fields})
        answer = await self._ask(request, self.retry_policy.begin(), at_most=None)
        return [item["embedding"] for item in answer.json()["data"]]

    async def rerank(self, query: str, documents: Sequence[str]) -> list[Ranked]:
        """Return the documents' places and scores, the best first, from a model that scores pairs."""
        request = messages.post("/v1/rerank", {"query": query, "documents": [*documents]})
        answer = await self._ask(request, self.retry_policy.begin(), at_most=None)
        return [Ranked(item["index"], item["relevance_score"]) for item in answer.json()["results"]]

    async def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text's tokens."""
        answer = await self._ask(messages.post("/tokenize", {"prompt": text}), self.retry_policy.begin())
        return [int(token_id) for token_id in answer.json()["tokens"]]

    async def batch(
        self, bodies: Sequence[Mapping[str, Any]], *, endpoint: str = "/v1/chat/completions"
    ) -> list[dict[str, Any]]:
        """Answer many bodies of an endpoint, as a batch behind all other requests. Returns the answers in order.

        A refused body's answer has `error`. Leaving early, as at the client's `timeout`, cancels the batch.
        """
        deadline = self.retry_policy.begin()
        file = await self._ask(messages.batch_file(endpoint, bodies), deadline, at_most=None)
        fields = {"input_file_id": file.json()["id"], "endpoint": endpoint, "completion_window": "24h"}
        batch = (await self._ask(messages.post("/v1/batches", fields), deadline)).json()
        path, backoff = f"/v1/batches/{batch['id']}", base.FIRST_POLL_BACKOFF_S
        try:
            while batch["status"] not in base.BATCH_ENDS:
                await self._io.sleep(backoff)
                backoff = min(backoff * 2, base.MAX_POLL_BACKOFF_S)
                batch = (await self._ask(Request("GET", path), deadline)).json()
        except BaseException:
            with contextlib.suppress(APIError):
                await self._send(Request("POST", f"{path}/cancel"), base.CANCEL_TIMEOUT_S)
            raise
        answers: dict[int, Any] = {}
        for file_id in filter(None, (batch["output_file_id"], batch["error_file_id"])):
            content = await self._ask(Request("GET", f"/v1/files/{file_id}/content"), deadline, at_most=None)
            answers |= messages.batch_answers(content.content)
        return base.all_answers(answers, batch, num=len(bodies))

    async def update_weights(self, path: str, *, mode: str = "keep") -> int:
        """Change the server to the weights of a folder on its machine, and return their version; for admins.

        `mode`: running requests go on (keep), finish first (wait), or end (abort).
        """
        request = messages.post("/weights", {"path": path, "mode": mode})
        answer = await self._ask(request, self.retry_policy.begin(), at_most=None)
        return int(answer.json()["weights_version"])

    async def pause(self, *, mode: str = "keep") -> None:
        """Let the server take no step until `resume`; requests wait. For admins, like the following calls."""
        await self._ask(messages.post(f"/pause?mode={mode}"), self.retry_policy.begin(), at_most=None)

    async def resume(self) -> None:
        """End a pause."""
        await self._ask(messages.post("/resume"), self.retry_policy.begin())

    async def sleep(self, level: int = 1, *, mode: str = "keep") -> None:
        """Let the server give back the memory of its cache, at level 2 of the weights too; requests wait."""
        await self._ask(messages.post(f"/sleep?level={level}&mode={mode}"), self.retry_policy.begin(), at_most=None)

    async def wake_up(self) -> None:
        """End a sleep."""
        await self._ask(messages.post("/wake_up"), self.retry_policy.begin(), at_most=None)

    async def is_ready(self) -> bool:
        """True if the server accepts requests now."""
        return await self._probe("/ready")

    async def is_healthy(self) -> bool:
        """True if the server's engine makes progress."""
        return await self._probe("/health")

    async def close(self) -> None:
        """End open streams and close the connections."""
        for stream in list(self._streams):
            await stream.close()
        await self._io.close()

    aclose = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _submit(self, request: Request, deadline: Deadline) -> str:
        answer = await self._ask(request, deadline)
        return answer.seq_id()

    async def _poll(self, seq_id: str, seconds: float, deadline: Deadline) -> Result:
        """Return the result once it is finished, or its state after `seconds`."""
        until = deadline.elapsed() + seconds
        backoff = base.FIRST_POLL_BACKOFF_S
        while True:
            sent_at = deadline.elapsed()
            wait = deadline.seconds_left(at_most=min(max(until - sent_at, 0.0), base.MAX_POLL_S)) or 0.0
            answer = await self._ask(messages.read(seq_id, wait), deadline)
            result = read_result(answer.json())
            now = deadline.elapsed()
            if result.is_finished or now >= until:
                return result
            if now - sent_at < wait / 2:  # a server that ignores `wait`
                await self._io.sleep(min(backoff, until - now))
                backoff = min(backoff * 2, base.MAX_POLL_BACKOFF_S)

    async def stop_thinking(self, seq_id: str) -> int:
        """End the reasoning of a running answer. Return the thinking_budget that gives the answer again.

        Raises NotFoundError; APIError with status 409 if the answer does not think.
        """
        answer = await self._ask(messages.stop_thinking(seq_id), self.retry_policy.begin())
        num_tokens: int = answer.json()["thinking_tokens"]
        return num_tokens

    async def _cancel(self, seq_id: str) -> None:
        """Cancel a request whose result is not wanted; if that fails, the request ends by itself at max_tokens."""
        with contextlib.suppress(APIError):
            await self._send(messages.cancel(seq_id), base.CANCEL_TIMEOUT_S)

    async def _probe(self, path: str) -> bool:
        try:
            answer = await self._send(Request("GET", path), self.retry_policy.timeout)
        except APIConnectionError:
            return False
        return answer.status == 200

    async def _ask(
        self, request: Request, deadline: Deadline, *, at_most: float | None = base.ANSWER_TIMEOUT_S
    ) -> Answer:
        """Send until the answer is good, the retries are used up, or an error says that a retry cannot help."""
        num_failures = 0
        while True:
            try:
                answer = await self._send(request, deadline.seconds_left(at_most=at_most))
                answer.raise_for_status()
                return answer
            except APIError as error:
                if isinstance(error, APIConnectionError) and not request.is_repeatable:
                    raise
                num_failures += 1
                await self._io.sleep(deadline.backoff(error, num_failures=num_failures))

    async def _send(self, request: Request, seconds: float | None) -> Answer:
        try:
            return await self._io.send(base.build(self._io.http, request, seconds), seconds)
        except TRANSPORT_ERRORS as exc:
            raise base.translate(exc, self.base_url) from exc

    async def _open(self, request: Request, seconds: float | None) -> httpx.Response:
        """Send once, and read the body only of a refusal."""
        try:
            async with self._io.time_limit(seconds):
                return await self._io.open(base.build(self._io.http, request, seconds))
        except TRANSPORT_ERRORS as exc:
            raise base.translate(exc, self.base_url) from exc

    async def _open_stream(self, request: Request, deadline: Deadline) -> httpx.Response:
        """Like `_ask`, but return once the answer begins; its body is an event stream."""
        num_failures = 0
        while True:
            try:
                response = await self._open(request, deadline.seconds_left(at_most=base.READ_TIMEOUT_S))
                base.raise_unless_stream(response)
                return response
            except APIError as error:
                if isinstance(error, APIConnectionError):
                    raise
                await self._io.close_body(response)
                num_failures += 1
                await self._io.sleep(deadline.backoff(error, num_failures=num_failures))

    async def _read_chunk(self, chunks: AsyncIterator[bytes], deadline: Deadline, *, name: str) -> bytes:
        try:
            async with self._io.time_limit(deadline.seconds_left(at_most=base.READ_TIMEOUT_S)):
                chunk = await anext(chunks, None)
        except TRANSPORT_ERRORS as exc:
            raise base.translate(exc, self.base_url) from exc
        if chunk is None:
            raise APIConnectionError(f"the stream of {name} ended before its last event")
        return chunk


class AsyncJob:
    """Handle of a submitted request: reads its result, streams its events, cancels it."""

    def __init__(self, client: AsyncClient, seq_id: str) -> None:
        self.seq_id = seq_id
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.seq_id!r})"

    async def result(self, wait: float | None = None) -> Result:
        """Return the result once it is finished, or its state after `wait` seconds (0: now).

        Without `wait`, raises APITimeoutError if the request does not finish in time; with `wait`, never waits longer
        than the client's timeout. A failed request is a result with `error` set.
        """
        client = self._client
        return await client._poll(self.seq_id, client._wait_limit(wait), client.retry_policy.begin())

    def stream(self, starting_after: int | None = None) -> "AsyncStream":
        """Iterate over all events, or over events after the id `starting_after`; leaving early cancels nothing."""
        return AsyncStream(self._client, seq_id=self.seq_id, starting_after=starting_after)

    async def cancel(self) -> None:
        """Cancel the request if it runs, and delete its result. Raises NotFoundError if there is no such request."""
        await self._client._ask(messages.cancel(self.seq_id), self._client.retry_policy.begin())


class AsyncStream(BaseStream):
    """Iterator of StreamEvents that reconnects where the connection broke. The last event has the result."""

    def __init__(
        self,
        client: AsyncClient,
        *,
        seq_id: str | None = None,
        starting_after: int | None = None,
        request: Request | None = None,
    ) -> None:
        """Prepare to submit `request`, which ends with the stream, or to watch `seq_id`, which does not."""
        super().__init__(client, seq_id, starting_after=starting_after)
        self._client = client
        self._request = request
        self._body: tuple[httpx.Response, AsyncIterator[bytes]] | None = None
        client._streams.add(self)

    async def start(self) -> Self:
        """Submit the request now, not at the first event; `await stream` does the same."""
        return await self._start()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._start().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if self.seq_id is None:
            await self._start()
        try:
            event = await self._next_event()
        except BaseException as error:
            await self._end(is_unfinished=base.is_unfinished_after(error))
            raise
        if event is None:
            raise StopAsyncIteration
        if event.result is not None:
            self.result = event.result
            await self._end(is_unfinished=False)
        return event

    async def close(self) -> None:
        """End the stream, and cancel the request if this stream submitted it."""
        await self._end(is_unfinished=True)

    aclose = close

    async def __aenter__(self) -> Self:
        return await self._start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if not self._has_ended:
                self._client._io.close_dropped(self.close)

    async def _start(self) -> Self:
        """Submit the request, unless it is submitted."""
        if self._request is not None and self.seq_id is None and not self._has_ended:
            try:
                self.seq_id = await self._client._submit(self._request, self._deadline)
            except BaseException:
                self._has_ended = True
                raise
        return self

    async def _next_event(self) -> StreamEvent | None:
        """Return the next event; None once the stream was closed, perhaps meanwhile by another thread or task."""
        while not self._has_ended:
            for event in self._events:
                return event
            try:
                self._events = self._reader.feed(await self._next_chunk())
            except APIError as error:
                if not self._has_ended:
                    await self._client._io.sleep(self._backoff(error))
                    await self._disconnect()
        await self._disconnect()  # a connection that was opened during `close`
        return None

    async def _next_chunk(self) -> bytes:
        _, chunks = self._body or await self._connect()
        return await self._client._read_chunk(chunks, self._deadline, name=str(self.seq_id))

    async def _connect(self) -> tuple[httpx.Response, AsyncIterator[bytes]]:
        assert self.seq_id is not None
        request = messages.attach(self.seq_id, self._reader.last_event_id)
        response = await self._client._open(request, self._deadline.seconds_left(at_most=base.READ_TIMEOUT_S))
        body = self._body = response, self._client._io.chunks(response)
        base.raise_unless_stream(response)
        self._reader.reattach()
        return body

    async def _disconnect(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            await self._client._io.close_body(*body)

    async def _end(self, *, is_unfinished: bool) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        try:
            if is_unfinished and self._request is not None and self.seq_id is not None:
                await self._client._cancel(self.seq_id)
        finally:
            await self._disconnect()
