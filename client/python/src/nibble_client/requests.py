"""Requests from the arguments of the clients' methods."""
from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import TypedDict, TypeVar

from google.protobuf.message import Message

from nibble_client import v1
from nibble_client.errors import field_error
from nibble_client.messages import describe, fill, find_field, flat, unknown

Messages = str | Sequence[Mapping[str, object] | v1.ChatMessage]
Prompt = str | Sequence[int]

M = TypeVar("M", bound=Message)


class GenerateOptions(TypedDict, total=False):
    """Options of generate and chat: fields of GenerateRequest, Sampling, Stopping, OutputOptions and CacheOptions, and
    for chat `tools`: dicts with `name`, `description`, and `parameters`, a JSON schema as a dict or as text. At most one
    of `json_schema` (a dict or its text), `regex`, `choice` (the allowed texts) and `lark` constrains the answer."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    n: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    max_tokens: int
    min_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop: bool
    logprobs: int
    prompt_logprobs: int
    echo: bool
    include_special_tokens: bool
    bypass: bool
    salt: str
    priority: int
    request_id: str
    queue_timeout: float
    tools: Sequence[Mapping[str, object] | v1.Tool]
    tool_choice: str | int
    required_tool: str
    parallel_tool_calls: bool
    json_schema: str | Mapping[str, object]
    regex: str
    choice: Sequence[str]
    lark: str


def new_id() -> str:
    """An id of a request or an upload. The server treats calls with one request id as one."""
    return str(uuid.uuid4())


def chat_input(messages: Messages, add_generation_prompt: bool | None = None) -> v1.ChatInput:
    """A conversation. A text is one message of the user."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return fill(v1.ChatInput(), {"messages": messages, "add_generation_prompt": add_generation_prompt}, "chat")


def set_prompt(message: M, prompt: Prompt) -> M:
    """Sets `text` or `token_ids` of a request."""
    if isinstance(prompt, str):
        return fill(message, {"text": prompt})
    return fill(message, {"token_ids": {"ids": prompt}})


def one_source(prompt: Prompt | None, messages: Messages | None, add_generation_prompt: bool) -> Prompt | v1.ChatInput:
    """The prompt, or the messages as a conversation; exactly one of them must be given."""
    if prompt is not None and messages is None:
        return prompt
    if messages is not None and prompt is None:
        return chat_input(messages, add_generation_prompt)
    field_error("messages", "both a prompt and messages" if messages else "neither a prompt nor messages",
                "one of them")


def _schema_text(schema: object) -> object:
    return json.dumps(schema, ensure_ascii=False) if isinstance(schema, Mapping) else schema


def _tool(tool: object) -> object:
    """The tool with its schema as text."""
    if isinstance(tool, Mapping) and "parameters" in tool:
        return {**tool, "parameters": _schema_text(tool["parameters"])}
    return tool


def generate_request(model: str, source: Prompt | v1.ChatInput, options: Mapping[str, object]) -> v1.GenerateRequest:
    request = fill(v1.GenerateRequest(), {"model": model})
    others = dict(options)
    tools = others.pop("tools", None)
    others["json_schema"] = _schema_text(others.get("json_schema"))
    if isinstance(others.get("choice"), Sequence) and not isinstance(others["choice"], str):
        others["choice"] = {"choices": others["choice"]}
    if isinstance(source, v1.ChatInput):
        request.chat.CopyFrom(source)
        if isinstance(tools, Sequence) and not isinstance(tools, str):
            tools = [_tool(tool) for tool in tools]
        fill(request.chat, {"tools": tools}, "chat")
    else:
        if tools is not None:
            field_error("tools", "tools of a text", "tools of a conversation: chat or chat_stream")
        set_prompt(request, source)
    return flat(request, others, ("sampling", "stopping", "output", "cache"))


def score_request(model: str, source: Prompt | v1.ChatInput, options: Mapping[str, object]) -> v1.ScoreRequest:
    request = fill(v1.ScoreRequest(), {"model": model, **options})
    if isinstance(source, v1.ChatInput):
        request.chat.CopyFrom(source)
        return request
    return set_prompt(request, source)


def embed_request(model: str, texts: str | Sequence[Prompt], options: Mapping[str, object]) -> v1.EmbedRequest:
    request = fill(v1.EmbedRequest(), {"model": model, **options})
    every: Sequence[Prompt] = [texts] if isinstance(texts, str) else texts
    kinds = {isinstance(text, str) for text in every}
    if len(kinds) > 1:
        field_error("texts", "texts and token ids", "either texts or lists of token ids")
    if kinds == {True}:
        return fill(request, {"texts": every})
    return fill(request, {"token_ids": [{"ids": ids} for ids in every]})


def vectors(response: v1.EmbedResponse) -> list[list[float]]:
    return [list(embedding.values) for embedding in response.embeddings]


_SECTIONS = ("data", "optim", "run", "publish")


def job_spec(spec: Mapping[str, object] | v1.JobSpec | None, method: str | None,
             fields: Mapping[str, object]) -> v1.JobSpec:
    """A job's spec: from a dict in the form of the API's JSON or a message, then from keyword arguments.

    A keyword is a field of JobSpec, or a field of its parts data, optim, run and publish, or of the method.
    """
    made = v1.JobSpec()
    if isinstance(spec, v1.JobSpec):
        made.CopyFrom(spec)
    elif isinstance(spec, Mapping):
        fill(made, spec)
    elif spec is not None:
        field_error("spec", describe(spec), "a dict or a JobSpec")
    top = {name: value for name, value in fields.items() if find_field(made.DESCRIPTOR, name) is not None}
    fill(made, top)
    if method is not None:
        _set_method(made, method)
    chosen = made.WhichOneof("method")
    sections = (*_SECTIONS, chosen) if chosen else _SECTIONS
    return flat(made, {name: value for name, value in fields.items() if name not in top}, sections)


def _set_method(spec: v1.JobSpec, method: str) -> None:
    methods = [field.name for field in spec.DESCRIPTOR.oneofs_by_name["method"].fields]
    if method not in methods:
        unknown("method", method, methods)
    chosen = spec.WhichOneof("method")
    if chosen not in (None, method):
        field_error("method", f"{method} and {chosen}", "the same method in both")
    getattr(spec, method).SetInParent()


def with_request_id(request: M, request_id: str | None) -> M:
    return fill(request, {"request_id": request_id or new_id()})
