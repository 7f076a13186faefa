#!/usr/bin/env python3
"""Writes chat_tools.json: conversations with tools in the form of OpenAI's API, and their prompts by transformers.

Needs transformers==5.23.0, jinja2==3.1.6.

    make_tools_golden.py

chat/*.jinja     our templates that behave like those of known models
chat_tools.json  by case: the template, the request, and the prompt. The requests have the arguments of calls as text, as clients
                 send them; transformers gets objects.
"""

import json
import pathlib
import re

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

from make_chat_golden import TOKENS

HERE = pathlib.Path(__file__).parent
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "It's the \"weather\" <now> & here",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Où?"}, "days": {"type": "integer", "minimum": 1}},
                   "required": ["city"], "additionalProperties": False}}}
NOW = {"type": "function", "function": {"name": "now.utc-0", "description": "The time", "parameters": {"type": "object", "properties": {}}}}
ASK = {"role": "user", "content": "Weather in Parí\"s\"?"}


def call(name, arguments, id):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, id):
    return {"role": "tool", "content": content, "tool_call_id": id}


ONE = call("weather", "{\"city\": \"Parí\\\"s\\\"\", \"days\": 2, \"x\": [1.5, null, {}]}", "abcdefgh1")
TWO = call("now.utc-0", "{}", "abcdefgh2")
CASES = {
    "first question": {"messages": [{"role": "system", "content": "Be brief."}, ASK], "tools": [WEATHER, NOW]},
    "result": {"messages": [ASK, {"role": "assistant", "content": "", "tool_calls": [ONE]}, result("21.5", "abcdefgh1")], "tools": [WEATHER]},
    "later question": {"messages": [ASK, {"role": "assistant", "content": "", "tool_calls": [ONE]}, result("21.5", "abcdefgh1"),
                                    {"role": "assistant", "content": "Warm."}, {"role": "user", "content": "Thanks."}], "tools": [WEATHER, NOW]},
}
PARALLEL = {"two calls": {"messages": [ASK, {"role": "assistant", "content": "", "tool_calls": [ONE, TWO]}, result("21.5", "abcdefgh1"),
                                       result("{\"t\": 3}", "abcdefgh2")], "tools": [WEATHER, NOW]}}
TEMPLATES = {"hermes": CASES | PARALLEL, "qwen2": CASES | PARALLEL, "qwen3": CASES | PARALLEL, "mistral": CASES | PARALLEL, "llama3": CASES}


def with_objects(message):
    """The message as transformers wants it."""
    message = json.loads(json.dumps(message))
    for each in message.get("tool_calls", []):
        each["function"]["arguments"] = json.loads(each["function"]["arguments"])
    return message


def main():
    cases = []
    for template, requests in TEMPLATES.items():
        source = (HERE / "chat" / f"{template}.jinja").read_text()
        source = re.sub(r"\{%- (?:end)?generation -%\}", "{#- -#}", source)
        source = source.replace('strftime_now("%d %b %Y")', '"26 Jul 2024"')  # the prompt must not depend on the day
        for name, request in requests.items():
            rendered = render_jinja_template(conversations=[[with_objects(message) for message in request["messages"]]], tools=request["tools"],
                                             chat_template=source, add_generation_prompt=True, **TOKENS)[0][0]
            cases.append({"template": template, "name": name, "source": source, **request, "rendered": rendered})
    golden = {"transformers": transformers.__version__, "jinja2": jinja2.__version__, "special_tokens": TOKENS, "cases": cases}
    (HERE / "chat_tools.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"chat_tools.json: {len(cases)} conversations")


if __name__ == "__main__":
    main()
