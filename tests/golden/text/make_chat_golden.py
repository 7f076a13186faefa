#!/usr/bin/env python3
"""Writes chat_masks.json: conversations, their tokens by transformers, and a mask of the tokens that an assistant
wrote.

Needs transformers==5.23.0, tokenizers==0.23.3, jinja2==3.1.6.

    make_chat_golden.py

chat/*.jinja       our templates that behave like those of known models. {% generation %} was added by hand around the
                   model's output; it is the oracle for templates without it, whose text must be the same.
chat/tokenizer.json  the vocabulary of hf_qwen.json, with every marker of these templates as a special token
chat_masks.json    by template: its source with and without {% generation %}; by conversation: the text, its tokens, the
                   assistant's mask (return_assistant_tokens_mask), and the marked text, for people
"""

import json
import pathlib
import re

import jinja2
import transformers
from tokenizers import AddedToken, Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from chat_cases import WEATHER

HERE = pathlib.Path(__file__).parent
MARKERS = ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
           "[/TOOL_RESULTS]", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|system|>", "<|user|>", "<|assistant|>",
           "<|end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def turns(*contents, system=None):
    """Alternating questions and answers."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return first + [{"role": ["user", "assistant"][i % 2], "content": content} for i, content in enumerate(contents)]


def call(city, content=""):
    return {"role": "assistant", "content": content, "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": city, "days": 2}}}]}


RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": "21.5 degrees"}
PLAIN = {
    "one turn": turns("Which tide is it?", "Low."),
    "two turns": turns("Which tide is it?", "Low.", "And now?", "High, since noon."),
    "system": turns("Which tide is it?", "Low.", "And now?", "High.", "Why?", "The moon.", system="You keep the light."),
    "last question open": turns("Which tide is it?", "Low.", "And now?", "High.", "Why?"),
    "blanks": turns("  Which tide is it?\n", "\n Low.  \n", "And now? ", " High,\n\n since noon. ", "Why?", "\tThe moon.\n"),
    "alike": turns("Low.", "Low.", "Low.", "Low.", "assistant", "user\nLow.", system="Low."),
    "markers in the text": turns("<|im_end|>\n<|im_start|>assistant\nNo.", "</s>[INST] <|end|>\n", "<|eot_id|>?",
                                 "<|start_header_id|>assistant<|end_header_id|>\n\n{{ 1 }} {% generation %}"),
    "letters": turns("Où est la mer ? 灯台", "Là-bas 😀, où naît la brume.", "e\u0301?", "\u0301Oui."),
}
THOUGHTS = {
    "thoughts": turns("Which tide is it?", "<think>\nThe moon is low.\n</think>\n\nLow.", "And now?", "<think>\nIt rises.\n</think>\n\nHigh."),
    "thoughts of the first": turns("Which tide is it?", "<think>\nThe moon is low.\n</think>\n\nLow.", "And now?", "High."),
}
TOOLS = {
    "tools": [{"role": "user", "content": "Weather in Paris?"}, call("Parí\"s\""), RESULT,
              {"role": "assistant", "content": "It is 21.5 degrees."}, {"role": "user", "content": "And in Rome?"},
              call("Rome"), RESULT, {"role": "assistant", "content": "The same."}],
    "ends with a call": turns("Hi", "Hello.", "Weather in Paris?") + [call("Paris")],
}
WORDY = {"words before a call": [*turns("Weather in Paris?"), call("Paris", "I look."), RESULT, RESULT,
                                 {"role": "assistant", "content": "Warm."}]}
CASES = {"chatml": PLAIN, "smollm2": PLAIN, "llama3": PLAIN | TOOLS, "qwen2": PLAIN | TOOLS | WORDY,
         "qwen3": PLAIN | THOUGHTS | TOOLS | WORDY, "mistral": PLAIN | TOOLS, "phi3": PLAIN}


def make_tokenizer(path):
    tokenizer = Tokenizer.from_file(str(HERE / "hf_qwen.json"))
    tokenizer.add_special_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    path.write_text(tokenizer.to_str(pretty=False) + "\n")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **TOKENS)


def case(tokenizer, name, conversation, plain, annotated):
    options = {"tools": [WEATHER]} if any("tool_calls" in message for message in conversation) else {}
    dated = {"date_string": "26 Jul 2024"}  # as given to our renderer
    rendered = [render_jinja_template(conversations=[conversation], chat_template=source, **TOKENS, **options, **dated)[0][0]
                for source in (plain, annotated)]
    assert rendered[0] == rendered[1], (name, rendered)
    made = tokenizer.apply_chat_template(conversation, chat_template=annotated, tokenize=True, return_dict=True,
                                         return_assistant_tokens_mask=True, **options, **dated)
    ids, mask = made["input_ids"], made["assistant_masks"]
    marked = [id for id, bit in zip(ids, mask, strict=True) if bit]
    return {"name": name, "messages": conversation, **options, "rendered": rendered[0], "ids": ids, "mask": mask,
            "trained": tokenizer.decode(marked)}


def main():
    tokenizer = make_tokenizer(HERE / "chat" / "tokenizer.json")
    templates = []
    for name, conversations in CASES.items():
        annotated = (HERE / "chat" / f"{name}.jinja").read_text()
        plain = re.sub(r"\{%- (?:end)?generation -%\}", "{#- -#}", annotated)
        templates.append({"name": name, "annotated": annotated, "plain": plain,
                          "cases": [case(tokenizer, *item, plain, annotated) for item in conversations.items()]})
    golden = {"transformers": transformers.__version__, "jinja2": jinja2.__version__, "special_tokens": TOKENS, "templates": templates}
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (HERE / "chat_masks.json").write_text(text + "\n", encoding="utf-8")
    print(f"chat_masks.json: {len(text)} bytes, {sum(len(template['cases']) for template in templates)} conversations")


if __name__ == "__main__":
    main()
