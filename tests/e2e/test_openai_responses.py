"""/v1/responses with OpenAI's own Python package, unmodified: text, streams, conversations, and what the server keeps."""
import json
import re
import time

import httpx
import openai
import pytest

from conftest import ROOT, Server, import_small
from soon import soon
from test_openai import client_of
from test_security import new_token

QUESTION = "Who keeps the light?"
ASK = {"model": "small-int8", "input": QUESTION, "temperature": 0, "max_output_tokens": 8}


@pytest.fixture(scope="module")
def server(openai_server):
    return openai_server


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def chat_text(client, messages, **more):
    answer = client.chat.completions.create(model="small-int8", messages=messages, temperature=0, max_completion_tokens=8, **more)
    return answer.choices[0].message.content


def code_of(kind, call, *arguments, **options):
    with pytest.raises(kind) as raised:
        call(*arguments, **options)
    return raised.value.code, raised.value.param


def test_text_is_that_of_a_chat(client):
    response = client.responses.create(**ASK, instructions="Answer briefly.", metadata={"a": "b"}, user="me")
    wanted = client.chat.completions.create(
        model="small-int8", temperature=0, max_completion_tokens=8,
        messages=[{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": QUESTION}])
    assert response.output_text == wanted.choices[0].message.content != ""
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (wanted.usage.prompt_tokens, 8)
    assert response.usage.total_tokens == wanted.usage.total_tokens
    assert (response.instructions, response.metadata, response.user, response.temperature) == ("Answer briefly.", {"a": "b"}, "me", 0)
    assert (response.max_output_tokens, response.tools, response.text.format.type) == (8, [], "text")
    assert response.output[0].role == "assistant" and response.output[0].status == "incomplete"
    assert abs(response.created_at - time.time()) < 60


def test_example_of_the_document(client):
    text = (ROOT / "docs/clients.md").read_text()
    block = re.search(r"```python\n(.*?)```", text[text.index("## Responses\n"):], re.DOTALL).group(1)
    names = {"client": client}
    exec(block.replace("tuned-int8", "small-int8"), names)
    assert names["second"].previous_response_id == names["first"].id and names["second"].output_text


def test_answer_that_ends_by_itself_is_completed(client):
    text = client.responses.create(**ASK).output_text
    ended = client.responses.create(**ASK, extra_body={"stop": [text[-2:]]})
    assert ended.output_text == text[:text.index(text[-2:])]
    assert (ended.status, ended.incomplete_details, ended.output[0].status) == ("completed", None, "completed")
    assert ended.completed_at >= ended.created_at


def test_events_come_in_openais_order(client):
    whole = client.responses.create(**ASK, include=["message.output_text.logprobs"], top_logprobs=2)
    events = list(client.responses.create(**ASK, include=["message.output_text.logprobs"], top_logprobs=2, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert kinds == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
                     *["response.output_text.delta"] * len(deltas), "response.output_text.done", "response.content_part.done",
                     "response.output_item.done", "response.incomplete"]
    last = events[-1].response
    assert "".join(event.delta for event in deltas) == events[-4].text == last.output_text == whole.output_text
    assert events[0].response.id == last.id and events[0].response.status == "in_progress" and events[0].response.output == []
    assert events[-2].item == last.output[0] and events[2].item.id == last.output[0].id
    logprobs = last.output[0].content[0].logprobs
    assert logprobs == whole.output[0].content[0].logprobs and len(logprobs) == 8
    assert all(len(one.top_logprobs) == 2 and one.bytes == list(one.token.encode()) for one in logprobs)
    assert [one.token for event in deltas for one in event.logprobs] == [one.token for one in logprobs]
    assert last.usage == whole.usage
    with client.responses.stream(**ASK) as stream:  # the package builds the response from the events
        assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == whole.output_text


def test_events_have_names(server):
    with httpx.stream("POST", f"http://{server.openai}/v1/responses", json={**ASK, "stream": True}) as answer:
        blocks = answer.read().decode().strip().split("\n\n")
    for block in blocks:
        name, data = block.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


def test_conversation_continues_by_id_as_by_messages(client):
    first = client.responses.create(**ASK, instructions="Be brief.")
    second = client.responses.create(**{**ASK, "input": "And why?"}, previous_response_id=first.id)
    third = client.responses.create(**{**ASK, "input": [{"role": "user", "content": [{"type": "input_text", "text": "Since when?"}]}]},
                                    previous_response_id=second.id)
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": "And why?"}, {"role": "assistant", "content": second.output_text},
                {"role": "user", "content": "Since when?"}]
    assert second.output_text == chat_text(client, messages[:3])  # without the instructions of the first response
    assert third.output_text == chat_text(client, messages) and third.previous_response_id == second.id
    branch = client.responses.create(**{**ASK, "input": "Since when?"}, previous_response_id=first.id)
    assert branch.output_text == chat_text(client, [*messages[:2], messages[4]])

    items = list(client.responses.input_items.list(third.id, order="asc"))
    assert [item.content[0].text for item in items] == [message["content"] for message in messages]
    assert [item.role for item in items] == [message["role"] for message in messages]
    pages = client.responses.input_items.list(third.id, limit=2)
    assert [item.id for item in pages] == [item.id for item in reversed(items)]
    assert pages.has_more and [item.id for item in pages.data] == [items[4].id, items[3].id]
    assert code_of(openai.BadRequestError, client.responses.input_items.list, third.id, after="msg_x") == ("invalid_value", "after")
    assert code_of(openai.BadRequestError, client.responses.input_items.list, third.id, limit=101) == ("invalid_value", "limit")

    # The client's own copy of the conversation, and references to kept items, are the same conversation.
    own = client.responses.create(**{**ASK, "store": False, "input": [
        {"role": "user", "content": QUESTION}, *[item.to_dict() for item in first.output], {"role": "user", "content": "And why?"}]})
    referred = client.responses.create(**{**ASK, "input": [
        {"type": "item_reference", "id": items[0].id}, {"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "And why?"}]})
    assert own.output_text == referred.output_text == second.output_text


def test_kept_response_is_read_and_deleted(client):
    made = client.responses.create(**ASK)
    last = list(client.responses.create(**ASK, stream=True))[-1].response
    assert client.responses.retrieve(made.id) == made and client.responses.retrieve(last.id) == last
    later = client.responses.create(**{**ASK, "input": "And why?"}, previous_response_id=made.id)
    client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel, client.responses.input_items.list):
        assert code_of(openai.NotFoundError, call, made.id) == ("response_not_found", "response_id")
    assert code_of(openai.BadRequestError, client.responses.create, **ASK, previous_response_id=made.id) == (
        "previous_response_not_found", "previous_response_id")
    # A later response keeps the items that it continues.
    assert len(list(client.responses.input_items.list(later.id))) == 3
    again = client.responses.create(**{**ASK, "input": "Since when?"}, previous_response_id=later.id)
    assert again.usage.input_tokens > later.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(later.id)


def test_response_without_store_is_not_kept(server, client):
    unkept = client.responses.create(**ASK, store=False)
    assert code_of(openai.NotFoundError, client.responses.retrieve, unkept.id) == ("response_not_found", "response_id")
    before = server.metrics()["nibble_openai_stored_responses"]
    client.responses.create(**ASK, store=False)
    assert server.metrics()["nibble_openai_stored_responses"] == before
    client.responses.create(**ASK)
    assert server.metrics()["nibble_openai_stored_responses"] == before + 1


@pytest.mark.parametrize("fields, param", [
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"metadata": {"x" * 65: ""}}, "metadata"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"input": []}, "input"),
    ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"type": "web_search_call", "id": "ws_1", "status": "completed"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "msg_nothing_0"}]}, "input[0].id"),
    ({"temperature": -1}, "temperature"),
    ({"extra_body": {"n": 2}}, "n"),
    ({"extra_body": {"max_tokens": 2}}, "max_tokens"),
])
def test_other_fields_are_refused_by_name(client, fields, param):
    assert code_of(openai.BadRequestError, client.responses.create, **{**ASK, **fields})[1] == param


def test_errors_before_the_first_event_are_answers(client):
    for stream in (False, True):
        long = code_of(openai.BadRequestError, client.responses.create, **{**ASK, "input": "x" * 2000}, stream=stream)
        assert long == ("context_length_exceeded", "input")
        assert code_of(openai.NotFoundError, client.responses.create, **{**ASK, "model": "nowhere"}, stream=stream)[0] == "model_not_found"


def test_request_of_a_client_that_goes_is_not_kept(server, client):
    before = server.metrics()["nibble_openai_stored_responses"]
    with client.responses.create(**{**ASK, "max_output_tokens": 200}, stream=True, extra_body={"ignore_eos": True}) as stream:
        response = next(iter(stream)).response
    soon(lambda: server.metrics()['nibble_requests_running{model="small-int8"}'] == 0, "the request has ended", 20)
    assert server.metrics()["nibble_openai_stored_responses"] == before
    assert code_of(openai.NotFoundError, client.responses.retrieve, response.id)[0] == "response_not_found"


def test_responses_expire(tmp_path, model_directory):
    server = Server(tmp_path / "state", "--openai_address", "127.0.0.1:0", "--openai_response_ttl_s", "2").start()
    try:
        import_small(server, model_directory)
        client = client_of(server)
        client.responses.create(**ASK)  # loads the model
        made = client.responses.create(**ASK)
        client.responses.retrieve(made.id)
        soon(lambda: server.metrics()["nibble_openai_stored_responses"] == 0, "the responses have expired", 20)
        assert server.metrics()["nibble_openai_stored_response_bytes"] == 0
        assert code_of(openai.NotFoundError, client.responses.retrieve, made.id)[0] == "response_not_found"
    finally:
        server.stop()


def test_server_without_state_refuses_what_needs_it(tmp_path, model_directory):
    server = Server(tmp_path / "state", "--openai_address", "127.0.0.1:0", "--openai_response_ttl_s", "0").start()
    try:
        import_small(server, model_directory)
        client = client_of(server)
        response = client.responses.create(**ASK)
        assert response.store is False
        assert code_of(openai.BadRequestError, client.responses.create, **ASK, store=True) == ("invalid_value", "store")
        assert code_of(openai.BadRequestError, client.responses.create, **ASK, previous_response_id=response.id)[1] == "previous_response_id"
    finally:
        server.stop()


def test_oldest_responses_go_when_the_memory_is_full(tmp_path, model_directory):
    server = Server(tmp_path / "state", "--openai_address", "127.0.0.1:0", "--openai_response_bytes", 1 << 20).start()
    try:
        import_small(server, model_directory)
        client = client_of(server)
        large = {**ASK, "max_output_tokens": 1, "metadata": {str(i): "v" * 500 for i in range(16)}}  # about 11 KB
        made = [client.responses.create(**large) for _ in range(150)]
        assert server.metrics()["nibble_openai_stored_response_bytes"] <= 1 << 20
        assert 50 < server.metrics()["nibble_openai_stored_responses"] < 150
        assert code_of(openai.NotFoundError, client.responses.retrieve, made[0].id)[0] == "response_not_found"
        assert client.responses.retrieve(made[-1].id) == made[-1]
    finally:
        server.stop()


def test_principals_cannot_see_each_others_responses(tmp_path, model_directory):
    folder = tmp_path
    tokens = {name: new_token(folder, name, role) for name, role in (("ann", "infer"), ("bob", "infer"), ("view", "viewer"), ("root", "admin"))}
    server = Server(folder / "state", "--openai_address", "127.0.0.1:0", "--token_file", folder / "tokens")
    server.client_flags = ["--token-file", tokens["root"]]
    server.start()
    try:
        server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
        clients = {name: client_of(server, api_key=file.read_text().strip()) for name, file in tokens.items()}
        ask = {**ASK, "model": "small"}
        made = clients["ann"].responses.create(**ask)
        assert clients["ann"].responses.retrieve(made.id) == made
        for name in ("bob", "root"):
            other = clients[name].responses
            for call in (other.retrieve, other.delete, other.cancel, other.input_items.list):
                assert code_of(openai.NotFoundError, call, made.id) == ("response_not_found", "response_id")
            assert code_of(openai.BadRequestError, other.create, **ask, previous_response_id=made.id)[0] == "previous_response_not_found"
            reference = [{"type": "item_reference", "id": made.output[0].id}]
            assert code_of(openai.BadRequestError, other.create, **{**ask, "input": reference}) == ("invalid_value", "input[0].id")
        with pytest.raises(openai.PermissionDeniedError):
            clients["view"].responses.retrieve(made.id)
        assert clients["ann"].responses.retrieve(made.id) == made
    finally:
        server.stop()
