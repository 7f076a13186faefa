"""The client: one object per server."""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from nibble_client import methods, v1
from nibble_client._async.caller import AsyncCaller
from nibble_client._async.datasets import AsyncDatasets
from nibble_client._async.jobs import AsyncJobs
from nibble_client._async.models import AsyncModels
from nibble_client._async.operations import AsyncOperations
from nibble_client._async.sending import AsyncSender
from nibble_client._async.transport import AsyncStream, sleep
from nibble_client._async.uploads import AsyncUploads
from nibble_client.answers import Answer, AnswerJoiner, ScoreJoiner
from nibble_client.connection import Retry, Tls, connection
from nibble_client.errors import NibbleError
from nibble_client.messages import fill
from nibble_client.requests import (
    GenerateOptions, Messages, Prompt, chat_input, embed_request, generate_request, one_source, score_request, set_prompt,
    vectors)
from nibble_client.retry import Backoff

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncAnswerStream:
    """An answer as it is generated: an iterator of deltas (`text`, `index` of the output, `token_ids`, `logprobs`).
    After the last one, `answer` is the whole answer. Leave the context, or call `close`, to cancel the rest."""

    def __init__(self, open_stream: Callable[[], AsyncStream[v1.GenerateReply]], outputs: int, retry: Retry) -> None:
        self._open_stream = open_stream
        self._stream: AsyncStream[v1.GenerateReply] | None = None
        self._joiner = AnswerJoiner(outputs)
        self._backoff = Backoff(retry)

    @property
    def answer(self) -> Answer:
        return self._joiner.answer

    async def __aenter__(self) -> AsyncAnswerStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.__aexit__(None, None, None)

    def __aiter__(self) -> AsyncAnswerStream:
        return self

    async def __anext__(self) -> v1.GenerateDelta:
        while True:
            if self._stream is None:
                self._stream = self._open_stream()
            try:
                delta = self._joiner.take(await self._stream.__anext__())
            except StopAsyncIteration:
                self._joiner.end()
                raise
            except NibbleError as error:
                await self.close()
                if self._joiner.started:
                    raise  # a retry would return the same deltas twice
                pause = self._backoff.pause(error)
                self._stream = None
                await sleep(pause)
                continue
            if delta is not None:
                return delta


class AsyncClient:
    """A client of one nibbled server. It connects at its first call.

    `target` is HOST:PORT. With a `token`, the address must be local or `tls` be set: True for the certificates that
    gRPC brings, or Tls. `timeout` (seconds) limits calls that answer at once, `long_timeout` generations, uploads,
    watches and waits; None: no limit. `retry` says how often a call is repeated while the server is unavailable.
    """

    def __init__(self, target: str, *, token: str | None = None, tls: Tls | bool | None = None, insecure: bool = False,
                 timeout: float = 60.0, long_timeout: float | None = None, retry: Retry | None = None) -> None:
        self._caller = AsyncCaller(connection(target, token, tls, insecure, timeout, long_timeout, retry))
        self.uploads = AsyncUploads(self._caller)
        self.operations = AsyncOperations(self._caller)
        sender = AsyncSender(self._caller)
        self.models = AsyncModels(self._caller, self.operations, sender)
        self.datasets = AsyncDatasets(self._caller, sender)
        self.jobs = AsyncJobs(self._caller, self.operations)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. Calls in progress, and later ones, raise Cancelled."""
        await self._caller.transport.close()

    async def generate(self, model: str, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Answer:
        """Completes a text or token ids."""
        request = generate_request(model, prompt, options)
        return Answer(await self._caller.long_call(methods.GENERATE, request))

    async def chat(self, model: str, messages: Messages, **options: Unpack[GenerateOptions]) -> Answer:
        """Answers a conversation: dicts with `role` and `content`, or a text, which is one message of the user."""
        request = v1.ChatRequest(request=generate_request(model, chat_input(messages), options))
        return Answer(await self._caller.long_call(methods.CHAT, request))

    def generate_stream(self, model: str, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncAnswerStream:
        """Same as generate, as a stream."""
        request = v1.GenerateStreamRequest(request=generate_request(model, prompt, options))
        return self._answer_stream(request.request, lambda: self._caller.transport.stream(
            methods.GENERATE_STREAM, request, self._caller.connection.long_timeout))

    def chat_stream(self, model: str, messages: Messages, **options: Unpack[GenerateOptions]) -> AsyncAnswerStream:
        """Same as chat, as a stream."""
        request = v1.ChatStreamRequest(request=generate_request(model, chat_input(messages), options))
        return self._answer_stream(request.request, lambda: self._caller.transport.stream(
            methods.CHAT_STREAM, request, self._caller.connection.long_timeout))

    def _answer_stream(self, request: v1.GenerateRequest,
                       open_stream: Callable[[], AsyncStream[v1.GenerateReply]]) -> AsyncAnswerStream:
        outputs = request.sampling.n if request.sampling.HasField("n") else 1
        return AsyncAnswerStream(open_stream, outputs, self._caller.connection.retry)

    async def score(self, model: str, prompt: Prompt | None = None, *, messages: Messages | None = None,
                    add_generation_prompt: bool = False, **options: object) -> v1.ScoreResponse:
        """The log-probability of every token of a text, of token ids, or of a conversation (`messages`). `options` are
        fields of ScoreRequest: add_special_tokens, top_n, logits_digests, chunk_tokens."""
        source = one_source(prompt, messages, add_generation_prompt)
        request = v1.ScoreStreamRequest(request=score_request(model, source, options))
        backoff = Backoff(self._caller.connection.retry)
        while True:
            joiner = ScoreJoiner()
            try:
                async with self._caller.transport.stream(
                        methods.SCORE_STREAM, request, self._caller.connection.long_timeout) as stream:
                    async for reply in stream:
                        joiner.take(reply)
                return joiner.end()
            except NibbleError as error:
                pause = backoff.pause(error)  # the caller has seen nothing yet
            await sleep(pause)

    async def embed(self, model: str, texts: str | Sequence[Prompt], *, pooling: str | int | None = None,
                    normalize: bool | None = None) -> list[list[float]]:
        """A vector for each text: texts, or lists of token ids. `pooling`: "POOLING_MEAN" (default) or "POOLING_LAST"."""
        return vectors(await self._caller.long_call(
            methods.EMBED, embed_request(model, texts, {"pooling": pooling, "normalize": normalize})))

    async def tokenize(self, model: str, text: str | None = None, *, messages: Messages | None = None,
                       add_generation_prompt: bool = True,
                       add_special_tokens: bool | None = None) -> v1.TokenizeResponse:
        """The tokens of a text, or of a conversation as the model's chat template renders it."""
        request = fill(v1.TokenizeRequest(), {"model": model, "add_special_tokens": add_special_tokens})
        source = one_source(text, messages, add_generation_prompt)
        if isinstance(source, v1.ChatInput):
            request.chat.CopyFrom(source)
        else:
            set_prompt(request, source)
        return await self._caller.call(methods.TOKENIZE, request)

    async def detokenize(self, model: str, token_ids: Prompt, *, skip_special_tokens: bool | None = None) -> str:
        """The text of token ids. A last character that the ids do not complete is left out."""
        request = fill(v1.DetokenizeRequest(), {
            "model": model, "token_ids": token_ids, "skip_special_tokens": skip_special_tokens})
        return (await self._caller.call(methods.DETOKENIZE, request)).text

    async def render_template(self, model: str, messages: Messages, *,
                              add_generation_prompt: bool = True) -> v1.RenderTemplateResponse:
        """A conversation as the model's chat template renders it, with its tokens."""
        request = v1.RenderTemplateRequest(model=model, chat=chat_input(messages, add_generation_prompt))
        return await self._caller.call(methods.RENDER_TEMPLATE, request)

    async def tokenizer_config(self, model: str) -> v1.GetTokenizerConfigResponse:
        """The settings of the model's tokenizer, among them its special tokens, and its chat template."""
        return await self._caller.call(methods.GET_TOKENIZER_CONFIG, v1.GetTokenizerConfigRequest(model=model))

    async def server_info(self) -> v1.ServerInfo:
        """Version, devices, formats and limits of the server, and what it does not implement."""
        return await self._caller.call(methods.GET_SERVER_INFO, v1.GetServerInfoRequest())

    async def server_load(self) -> v1.ServerLoad:
        """Requests, jobs and models of the server at this moment."""
        return await self._caller.call(methods.GET_LOAD, v1.GetLoadRequest())

    async def watch_load(self, *, interval: float | None = None) -> AsyncIterator[v1.ServerLoad]:
        """The load at once and at every interval (seconds, default 1), until the iterator is closed."""
        request = fill(v1.WatchLoadRequest(), {"interval": interval})
        async with self._caller.transport.stream(
                methods.WATCH_LOAD, request, self._caller.connection.long_timeout) as messages:
            async for load in messages:
                yield load

    async def abort(self, request_ids: Sequence[str]) -> list[str]:
        """Cancels generations and scores by the ids of their requests, of this principal or, for an admin without a
        tenant, of all. Returns the ids that were found. To cancel a call of this client, leave its stream."""
        request = fill(v1.AbortRequest(), {"request_ids": request_ids})
        return list((await self._caller.call(methods.ABORT, request)).aborted_request_ids)

    async def drain(self, *, deadline: float | None = None) -> None:
        """Stops admitting work and lets running calls end, for `deadline` seconds (default: nibbled's --drain_s). The
        server then waits for its end (SIGTERM). Needs the role admin."""
        await self._caller.call(methods.DRAIN, fill(v1.DrainRequest(), {"deadline": deadline}))
