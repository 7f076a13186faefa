"""Constraints by every protocol. The model has random weights, so only a constraint makes its answers well formed."""
import asyncio
import json
import re

import openai
import pytest

import client_package
from test_openai import client_of

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Paris", "Rome"]}, "degrees": {"type": "integer", "minimum": -50, "maximum": 50},
                                           "wet": {"type": "boolean"}},
          "required": ["city", "degrees"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA}}
ASK = [{"role": "user", "content": "Weather?"}]


@pytest.fixture(scope="module")
def server(openai_server):
    return openai_server


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def checked(text):
    value = json.loads(text)
    assert value["city"] in ("Oslo", "Paris", "Rome") and -50 <= value["degrees"] <= 50 and set(value) <= {"city", "degrees", "wet"}
    assert json.dumps(value, separators=(",", ":")) == text
    return value


@pytest.mark.parametrize("seed", range(5))
def test_one_seed_gives_the_same_json_by_every_protocol(server, client, tmp_path, seed):
    request = {"model": "small-int8", "messages": ASK, "temperature": 1.0, "seed": seed}
    whole = client.chat.completions.create(**request, response_format=FORMAT)
    text = whole.choices[0].message.content
    checked(text)
    assert whole.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(**request, response_format=FORMAT, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert client.chat.completions.create(**request, extra_body={"structured_outputs": {"json": SCHEMA}}).choices[0].message.content == text
    response = client.responses.create(model="small-int8", input=ASK, temperature=1.0, extra_body={"seed": seed},
                                       text={"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA}})
    assert response.output_text == text
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    answer = server.json("chat", "small-int8", "--message", "Weather?", "--temperature", "1", "--seed", seed, "--json-schema", schema)
    assert answer["text"] == text
    with client_package.load().Client(server.grpc) as nibble:
        assert nibble.chat("small-int8", "Weather?", temperature=1.0, seed=seed, json_schema=SCHEMA).text == text


def test_expressions_choices_and_grammars(server, client, tmp_path):
    def answer(**fields):
        done = client.completions.create(model="small-int8", prompt="A", temperature=2.0, seed=3, max_tokens=100, n=4, extra_body=fields)
        assert {choice.finish_reason for choice in done.choices} == {"stop"}
        return [choice.text for choice in done.choices]

    assert all(re.fullmatch("[a-f]{2}-[0-9]{3}", text) for text in answer(structured_outputs={"regex": "[a-f]{2}-[0-9]{3}"}))
    assert set(answer(guided_choice=["north", "south"])) <= {"north", "south"}
    grammar = "start: NUMBER (\"+\" NUMBER)?\nNUMBER: /[1-9]/\n"
    assert all(re.fullmatch(r"[1-9](\+[1-9])?", text) for text in answer(structured_outputs={"grammar": grammar}))
    (tmp_path / "sum.lark").write_text(grammar)
    run = server.run("generate", "small-int8", "--prompt", "A", "--grammar", tmp_path / "sum.lark")
    assert re.fullmatch(r"[1-9](\+[1-9])?\n?", run.stdout)
    assert server.run("generate", "small-int8", "--prompt", "A", "--choice", "yes", "--choice", "no").stdout.strip() in ("yes", "no")


def test_json_object_is_an_object(client):
    answer = client.chat.completions.create(model="small-int8", messages=ASK, response_format={"type": "json_object"}, max_completion_tokens=300,
                                            temperature=1.0, seed=1).choices[0]
    assert answer.message.content.startswith("{")
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)


@pytest.mark.parametrize("fields, param, words", [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}}, "response_format", "#/not"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "any"}}}}, "response_format", "/type"),
    ({"extra_body": {"guided_regex": "(?=a)b"}}, "guided_regex", "look"),
    ({"extra_body": {"structured_outputs": {"grammar": "start: x"}}}, "structured_outputs.grammar", "x"),
    ({"response_format": {"type": "json_object"}, "extra_body": {"guided_choice": ["a"]}}, "guided_choice", "response_format"),
    ({"response_format": {"type": "json_object"}, "extra_body": {"min_tokens": 3}}, "min_tokens", "constraint"),
    ({"extra_body": {"guided_regex": "a" * 300_000}}, "guided_regex", "262144"),
])
def test_wrong_constraint_is_refused_by_the_clients_name(client, fields, param, words):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="small-int8", messages=ASK, **fields)
    assert raised.value.param == param and words in raised.value.message, raised.value.message


def test_slow_constraints_do_not_stop_other_requests(server, client):
    """Each takes its whole budget of processor time, one after another; a plain request answers meanwhile."""
    slow = "a*b?" * 30_000

    async def run():
        other = openai.AsyncOpenAI(base_url=client.base_url, api_key="unused", max_retries=0)
        waiting = [asyncio.create_task(other.completions.create(model="small-int8", prompt="A", extra_body={"guided_regex": slow + str(i)}))
                   for i in range(3)]
        await asyncio.sleep(0.5)
        await asyncio.wait_for(other.completions.create(model="small-int8", prompt="A", max_tokens=4), 30)
        done = await asyncio.gather(*waiting, return_exceptions=True)
        await other.close()
        return done

    for error in asyncio.run(run()):
        assert isinstance(error, openai.BadRequestError) and "guided_regex" in error.message
