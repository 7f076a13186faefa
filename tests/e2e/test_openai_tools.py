"""Tools through OpenAI's Python package, against models that write a call in each of the known formats.

A token of these models is a piece of a call. Biases with a large repetition penalty draw each of them once, in the order of the
biases, so the answer is known and still comes out of the model. No piece is in a prompt, because the penalty counts prompts too.
"""
import json
import re

import grpc
import httpx
import openai
import pytest
from safetensors.numpy import load_file, save_file

import client_package
import small_model
from conftest import Server
from test_openai import client_of

END = 257
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                                                                    "required": ["city"]}}}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
TOOLS = [WEATHER, NOW]
ASK = [{"role": "user", "content": "Weather?"}]

# Tools, then messages; `call` renders one call, `each` what comes between calls.
TEMPLATE = ("{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}"
            "{% if m.tool_calls %}@before@{% for c in m.tool_calls %}@call@{% if not loop.last %}@between@{% endif %}{% endfor %}@after@{% endif %}"
            "\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}")
NAMED = "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}"
CHECKED = "{% if c.id | length != 9 %}{{ raise_exception('an id has 9 characters') }}{% endif %}"
MISTRAL = {"[TOOL_CALLS]": True, "[ARGS]": True}
FORMATS = {
    "hermes": {"before": "", "call": "<tool_call>\n" + NAMED + "}\n</tool_call>", "between": "\n", "after": "",
               "markers": {"<tool_call>": False, "</tool_call>": False},
               "pieces": ["<tool_call>", "\n{ \"name\": \"weather\", ", "\"arguments\": {", "\"city\": \"Par", "is\"}", " }\n", "</tool_call>"],
               "second": "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"},
    "llama3": {"before": "", "call": "{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ c.function.arguments | tojson }}}", "between": "; ",
               "after": "", "markers": {"<|python_tag|>": True},
               "pieces": ["<|python_tag|>", "{ \"name\": \"weather\", ", "\"parameters\" : {", "\"city\": \"Par", "is\"}}"],
               "second": "; {\"name\": \"now\", \"parameters\": {}}"},
    "mistral": {"before": "[TOOL_CALLS] [", "call": CHECKED + NAMED + ", \"id\": \"{{ c.id }}\"}", "between": ", ", "after": "]", "markers": MISTRAL,
                "pieces": ["[TOOL_CALLS]", " [{ \"name\": \"weather\", ", "\"arguments\": {", "\"city\": \"Par", "is\"}}"],
                "second": ", {\"name\": \"now\", \"arguments\": {}}]"},
    "mistral-named": {"before": "", "call": CHECKED + "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}", "between": "",
                      "after": "", "markers": MISTRAL, "pieces": ["[TOOL_CALLS]", "weather ", "[ARGS]", "{\"city\": \"Par", "is\"}"], "second": ""},
}


def write(directory, format):
    """A small model whose vocabulary has the pieces of a call; returns the directory."""
    small_model.write(directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    for i, piece in enumerate(pieces_of(format)):
        tokenizer["added_tokens"].append({"id": 259 + i, "content": piece, "single_word": False, "lstrip": False, "rstrip": False,
                                          "normalized": False, "special": format["markers"].get(piece, False)})
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    weights = load_file(directory / "model.safetensors")
    weights["model.embed_tokens.weight"][[END, ord("I"), ord("!"), *range(259, 320)]] = 0  # their logits are 0: only the biases decide
    save_file(weights, directory / "model.safetensors")
    config = json.loads((directory / "tokenizer_config.json").read_text())
    template = TEMPLATE
    for name in ("before", "call", "between", "after"):
        template = template.replace(f"@{name}@", format[name])
    config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def pieces_of(format):
    return format["pieces"] + ([format["second"]] if format["second"] else [])


def drawing(format, count=None):
    """Parameters that draw the first `count` pieces, then the end token."""
    ids = [259 + i for i in range(count or len(format["pieces"]))] + [END]
    return {"logit_bias": {str(id): 100 - 8 * i for i, id in enumerate(ids)}, "temperature": 0, "extra_body": {"repetition_penalty": 1000}}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_directory):
    server = Server(tmp_path_factory.mktemp("tools") / "state", "--openai_address", "127.0.0.1:0").start()
    server.run("models", "import", model_directory, "--name", "plain", "--dtype", "f32")
    for name, format in FORMATS.items():
        server.run("models", "import", write(tmp_path_factory.mktemp("models") / name, format), "--name", name, "--dtype", "f32")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def asked(client, name, stream=False, count=None, **changes):
    request = {"model": name, "messages": ASK, "tools": TOOLS, "max_completion_tokens": 20, **drawing(FORMATS[name], count), **changes}
    return client.chat.completions.create(**request, stream=stream)


def joined(chunks):
    """Content, calls and reason of a stream of one choice. Each call's id, type and name come once, in its first piece."""
    content, calls, reasons = "", [], []
    for chunk in chunks:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
        for piece in choice.delta.tool_calls or []:
            if piece.index == len(calls):
                assert piece.id and piece.type == "function" and piece.function.name and piece.function.arguments == ""
                calls.append({"id": piece.id, "name": piece.function.name, "arguments": ""})
            else:
                assert piece.index == len(calls) - 1
                assert piece.id is None and piece.type is None and piece.function.name is None
                calls[-1]["arguments"] += piece.function.arguments
    assert len(reasons) == 1
    return content, calls, reasons[0]


@pytest.mark.parametrize("name", FORMATS)
def test_call_is_in_tool_calls(client, name):
    answer = asked(client, name)
    message = answer.choices[0].message
    assert message.content is None and answer.choices[0].finish_reason == "tool_calls"
    [call] = message.tool_calls
    assert call.type == "function" and call.function.name == "weather"
    assert call.function.arguments == "{\"city\": \"Paris\"}"
    assert re.fullmatch("[0-9a-z]{9}" if name.startswith("mistral") else "call_[0-9a-z]{16}", call.id)
    assert answer.usage.completion_tokens == len(FORMATS[name]["pieces"]) + 1, "tokens of calls count"


@pytest.mark.parametrize("name", FORMATS)
def test_streamed_call_has_index_and_comes_in_pieces(client, name):
    chunks = list(asked(client, name, stream=True))
    content, calls, reason = joined(chunks)
    assert content == "" and reason == "tool_calls"
    assert [(call["name"], call["arguments"]) for call in calls] == [("weather", "{\"city\": \"Paris\"}")]
    arguments = [piece.function.arguments for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or [] if piece.function.arguments]
    assert len(arguments) >= 2, "arguments arrive while the model writes them"


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral"])
def test_parallel_calls(client, name):
    count = len(pieces_of(FORMATS[name]))
    calls = asked(client, name, count=count).choices[0].message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [("weather", {"city": "Paris"}), ("now", {})]
    assert calls[0].id != calls[1].id
    _, streamed, reason = joined(asked(client, name, stream=True, count=count))
    assert [call["name"] for call in streamed] == ["weather", "now"] and reason == "tool_calls"
    one = asked(client, name, count=count, parallel_tool_calls=False).choices[0]
    assert [call.function.name for call in one.message.tool_calls] == ["weather"] and one.message.content is None


@pytest.mark.parametrize("name", FORMATS)
def test_answer_and_result_go_back_to_the_model(server, client, name):
    message = asked(client, name).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21.5"}
    answer = client.chat.completions.create(model=name, messages=[*ASK, message, result], tools=TOOLS, temperature=0, max_completion_tokens=1)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 1
    more = [*ASK, message.model_dump(), result]  # with every field that the package knows
    tokens = httpx.post(f"http://{server.openai}/tokenize", json={"model": name, "messages": more, "tools": TOOLS}).json()["tokens"]
    assert len(tokens) == answer.usage.prompt_tokens
    prompt = httpx.post(f"http://{server.openai}/detokenize", json={"model": name, "tokens": tokens}).json()["prompt"]
    assert "21.5" in prompt and "\"city\": \"Paris\"" in prompt and "The weather" in prompt


@pytest.mark.parametrize("stream", [False, True])
def test_text_that_is_no_call_is_content(client, stream):
    def answer(**changes):
        got = asked(client, "hermes", stream=stream, **changes)
        if stream:
            content, calls, reason = joined(got)
            return content, [call for call in calls if reason == "tool_calls"], reason
        choice = got.choices[0]
        return choice.message.content, choice.message.tool_calls or [], choice.finish_reason
    whole = "".join(FORMATS["hermes"]["pieces"])
    assert answer(tools=[NOW]) == (whole, [], "stop"), "a tool that the request does not have"
    assert answer(tool_choice="none") == (whole, [], "stop")
    cut = answer(max_completion_tokens=4)
    assert cut == ("".join(FORMATS["hermes"]["pieces"][:4]), [], "length"), "an incomplete call"


def test_text_before_a_call_stays(client):
    changes = drawing(FORMATS["hermes"])
    changes["logit_bias"] = {**{id: bias - 10 for id, bias in changes["logit_bias"].items()}, str(ord("I")): 100, str(ord("!")): 95}
    answer = asked(client, "hermes", **changes)
    assert answer.choices[0].message.content == "I!" and len(answer.choices[0].message.tool_calls) == 1
    content, calls, _ = joined(asked(client, "hermes", stream=True, **changes))
    assert content == "I!" and len(calls) == 1


def test_tokens_and_logprobs_are_those_of_the_whole_answer(client):
    with_tools = asked(client, "hermes", logprobs=True)
    pieces = [token.token for token in with_tools.choices[0].logprobs.content]
    assert pieces == [*FORMATS["hermes"]["pieces"], "<|end|>"]
    streamed = [token.token for chunk in asked(client, "hermes", stream=True, logprobs=True)
                for token in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])]
    assert streamed == pieces


def test_errors_name_the_field(client):
    def error(**changes):
        with pytest.raises(openai.BadRequestError) as raised:
            asked(client, "hermes", **changes)
        return raised.value
    assert error(model="plain").code == "template_error"
    assert "tools: the chat template does not render tools" in error(model="plain").message
    assert error(tools=None, tool_choice="auto").param == "tool_choice"
    assert error(tools=[{"type": "function", "function": {"name": "a b"}}]).param == "tools[0].function.name"
    assert error(tools=TOOLS + [NOW]).param == "tools[2].function.name"
    assert error(tool_choice={"type": "function", "function": {"name": "then"}}).param == "tool_choice"
    assert error(extra_body={"functions": [{"name": "now"}]}).param == "functions"
    bad = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{"}}]}
    assert error(messages=[*ASK, bad]).param == "messages[1].tool_calls[0].function.arguments"
    other = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}
    assert "an id has 9 characters" in error(model="mistral", messages=[*ASK, other]).message


def test_grpc_api_gives_the_same_calls(server):
    client_package.load()
    from nibble_client import v1
    from nibble_client.v1 import inference_service_pb2_grpc
    chat = v1.ChatInput(messages=[{"role": "user", "content": "Weather?"}], tools=[
        {"name": "weather", "description": "The weather", "parameters": json.dumps(WEATHER["function"]["parameters"])}])
    bias = {259 + i: 100 - 8 * i for i in range(len(FORMATS["mistral"]["pieces"]))} | {END: 20}
    request = v1.GenerateRequest(model="mistral", chat=chat, sampling={"repetition_penalty": 1000, "logit_bias": bias})
    with grpc.insecure_channel(server.grpc) as channel:
        stub = inference_service_pb2_grpc.InferenceServiceStub(channel)
        output = stub.Chat(v1.ChatRequest(request=request)).outputs[0]
        assert [(call.name, call.arguments) for call in output.tool_calls] == [("weather", "{\"city\": \"Paris\"}")]
        assert output.finish.reason == v1.FINISH_REASON_TOOL_CALLS and output.text == ""
        assert list(output.token_ids) == [*bias], "the tokens are those of the model"
        deltas = [reply.delta for reply in stub.ChatStream(v1.ChatStreamRequest(request=request)) if reply.HasField("delta")]
        assert [id for delta in deltas for id in delta.token_ids] == [*bias]
        assert "".join(call.arguments for delta in deltas for call in delta.tool_calls) == "{\"city\": \"Paris\"}"
        # Without the bias, only the constraint makes the random model call the tool.
        request.sampling.Clear()
        request.required_tool = "weather"
        request.parallel_tool_calls = False
        request.stopping.max_tokens = 200
        output = stub.Chat(v1.ChatRequest(request=request)).outputs[0]
        assert [call.name for call in output.tool_calls] == ["weather"]


@pytest.mark.parametrize("name", FORMATS)
def test_responses_have_calls_as_items(client, name):
    tools = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
    drawn = drawing(FORMATS[name])
    extra = {"logit_bias": drawn["logit_bias"], **drawn["extra_body"]}
    request = {"model": name, "input": "Weather?", "tools": tools, "max_output_tokens": 20, "temperature": 0, "extra_body": extra}
    whole = client.responses.create(**request)
    assert whole.status == "completed" and [item.type for item in whole.output] == ["function_call"]
    call = whole.output[0]
    assert call.name == "weather" and json.loads(call.arguments) == {"city": "Paris"} and call.status == "completed"
    assert [tool.name for tool in whole.tools] == ["weather", "now"] and whole.parallel_tool_calls

    events = list(client.responses.create(**request, stream=True))
    assert [event.type for event in events] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    assert [event.sequence_number for event in events] == list(range(7))
    made = events[-1].response.output[0]
    assert (made.name, made.arguments) == (call.name, call.arguments) and events[5].item == made and made.call_id != call.call_id

    # The result of the call continues the conversation, by id as by items, and as a chat does.
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    text = {**request, "extra_body": {"logit_bias": {str(ord("I")): 100}}, "max_output_tokens": 3}
    by_id = client.responses.create(**{**text, "input": [result]}, previous_response_id=whole.id)
    by_items = client.responses.create(**{**text, "input": [{"role": "user", "content": "Weather?"}, call.to_dict(), result]})
    assert by_id.output_text == by_items.output_text == "III" and by_id.usage.input_tokens == by_items.usage.input_tokens
    chat = client.chat.completions.create(
        model=name, tools=TOOLS, max_completion_tokens=3, temperature=0, logit_bias={str(ord("I")): 100},
        messages=[*ASK, {"role": "assistant", "tool_calls": [{"id": call.call_id, "type": "function", "function": {
            "name": call.name, "arguments": call.arguments}}]}, {"role": "tool", "tool_call_id": call.call_id, "content": "21 degrees"}])
    assert chat.usage.prompt_tokens == by_id.usage.input_tokens
    assert [item.type for item in client.responses.input_items.list(by_id.id, order="asc")] == [
        "message", "function_call", "function_call_output"]
    unknown = {**result, "call_id": "nothing"}
    with pytest.raises(openai.BadRequestError, match="call_id") as raised:
        client.responses.create(**{**text, "input": [unknown]}, previous_response_id=whole.id)
    assert raised.value.param == "input[0].call_id"


def test_responses_of_a_model_without_tools_refuse_them(client):
    tool = {"type": "function", "name": "now", "parameters": {}}
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model="plain", input="Weather?", tools=[tool])
    assert (raised.value.code, raised.value.param) == ("template_error", "tools")


# Random models with a random temperature: only the constraint makes them write calls.
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"])
def test_required_calls_match_their_schemas(client, name, choice):
    request = {"model": name, "messages": ASK, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 1.0, "seed": 5,
               "max_completion_tokens": 400, "extra_body": {"repetition_penalty": 1.3}}
    answer = client.chat.completions.create(**request).choices[0]
    assert answer.finish_reason in ("tool_calls", "length")
    if answer.finish_reason == "tool_calls":
        [call] = answer.message.tool_calls
        assert answer.message.content is None
        assert call.function.name == "weather" or choice == "required"
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "now" or isinstance(arguments["city"], str)


def test_strict_tools_are_checked_before_the_answer(client):
    wrong = {"type": "function", "function": {"name": "then", "strict": True, "parameters": {
        "type": "object", "properties": {"when": {"type": "string", "format": "moment"}}}}}
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="hermes", messages=ASK, tools=[wrong], max_completion_tokens=4)
    assert raised.value.param == "tools" and "#/properties/when/format" in raised.value.message


def test_answer_is_json_of_the_format_or_a_call(client):
    schema = {"type": "object", "properties": {"reply": {"enum": ["yes", "no"]}}, "required": ["reply"], "additionalProperties": False}
    seen = set()
    for seed in range(12):
        answer = client.chat.completions.create(
            model="hermes", messages=ASK, tools=TOOLS, temperature=1.0, seed=seed, max_completion_tokens=300, parallel_tool_calls=False,
            response_format={"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}).choices[0]
        seen.add(answer.finish_reason)
        if answer.finish_reason == "stop":
            assert json.loads(answer.message.content)["reply"] in ("yes", "no")
        elif answer.finish_reason == "tool_calls":
            assert answer.message.tool_calls[0].function.name in ("weather", "now")
    assert "stop" in seen
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="hermes", messages=ASK, tools=TOOLS, extra_body={"guided_regex": "a"})
    assert raised.value.param == "guided_regex"
