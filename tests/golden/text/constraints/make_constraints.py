#!/usr/bin/env python3
"""Writes schemas.json, refused.json, regexes.json and lark.json: what constrained output must hold to. Every verdict is
that of an independent program; the script fails where a verdict here differs from it.

Needs jsonschema==4.26.0, rfc3339-validator==0.1.4, rfc3986-validator==0.1.1, pydantic==2.14.3, lark==1.3.1.

    make_constraints.py

schemas.json  200 schemas of the kinds that users send. `valid` texts match the schema (by jsonschema) and are in the
              compact form, so the grammar of the schema accepts them. It refuses `invalid` texts, which do not match,
              and `loose` texts, which match but are not compact: whitespace, another order of keys, needless escapes.
refused.json  schemas that must be refused, with the JSON pointer and the keyword that the error must name
regexes.json  regular expressions: texts that they match as a whole or not (by Python's re), and those to refuse
lark.json     Lark grammars: texts that they accept or not (by lark's Earley parser), and those to refuse
"""

import json
import pathlib
import re
import sys
from importlib.metadata import version

import jsonschema
import lark
from jsonschema.validators import validator_for

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "support"))
from exact_schema import Schema  # noqa: E402

from applications import EXTRACTION, TOOLS, WRITERS  # noqa: E402
from case import text_of  # noqa: E402
from combinations import COMBINATIONS  # noqa: E402
from models import PYDANTIC  # noqa: E402
from objects import ARRAYS, OBJECTS  # noqa: E402
from refusals import MALFORMED, REFUSALS  # noqa: E402
from scalars import CHOICES, NUMBERS, STRINGS  # noqa: E402
from texts import EXPRESSIONS, EXPRESSIONS_BROKEN, EXPRESSIONS_REFUSED, GRAMMARS, GRAMMARS_REFUSED  # noqa: E402

SCHEMAS = [*OBJECTS, *ARRAYS, *STRINGS, *NUMBERS, *CHOICES, *COMBINATIONS, *TOOLS, *EXTRACTION, *WRITERS, *PYDANTIC]


def check(good, *words):
    if not good:
        sys.exit(" ".join(map(str, words)))


def named_once(cases):
    names = [case["name"] for case in cases]
    check(len(names) == len(set(names)), "a name is used twice:", [name for name in names if names.count(name) > 1])


def check_schema(case):
    schema = Schema(case["schema"])
    for text in case["valid"] + case["loose"]:
        error = schema.error(text)
        check(error is None, case["name"], "does not match", text, "because", error)
    for text in case["invalid"]:
        check(schema.error(text), case["name"], "matches", text)


def at(schema, path):
    """The value at a JSON pointer."""
    for step in path.split("/")[1:]:
        schema = schema[int(step) if isinstance(schema, list) else step.replace("~1", "/").replace("~0", "~")]
    return schema


def check_refusal(case, well_formed):
    at(case["schema"], case["path"])
    kind = validator_for(case["schema"], default=jsonschema.Draft202012Validator)
    error = next(kind(kind.META_SCHEMA, format_checker=kind.FORMAT_CHECKER).iter_errors(case["schema"]), None)
    check((error is None) == well_formed, case["name"], "as a schema:", error and error.message)


def check_expression(case):
    pattern = re.compile(case["pattern"])
    check(all(pattern.fullmatch(text) for text in case["matches"]), case, "does not match all of its texts")
    check(not any(pattern.fullmatch(text) for text in case["others"]), case, "matches one of the others")


def is_expression(pattern):
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def check_grammar(case):
    # The dynamic lexer splits a text in every way that the terminals allow.
    parser = lark.Lark(case["grammar"], parser="earley", lexer="dynamic_complete")

    def accepts(text):
        try:
            parser.parse(text)
        except lark.exceptions.UnexpectedInput:
            return False
        return True
    for text in case["accepted"] + case["rejected"]:
        check(accepts(text) == (text in case["accepted"]), case["name"], "takes or refuses", repr(text), "otherwise")


def write(name, cases, **more):
    """One line for each case."""
    rows = ",\n".join(text_of(case) for case in cases)
    head = "".join(f"{text_of(key)}: {text_of(value)},\n" for key, value in more.items())
    (HERE / name).write_text(f'{{{head}"cases": [\n{rows}\n]}}\n')


def main():
    check(len(SCHEMAS) == 200, len(SCHEMAS), "schemas, wanted 200")
    for cases in (SCHEMAS, REFUSALS + MALFORMED, GRAMMARS + GRAMMARS_REFUSED):
        named_once(cases)
    for case in SCHEMAS:
        check_schema(case)
    for case in REFUSALS:
        check_refusal(case, well_formed=True)
    for case in MALFORMED:
        check_refusal(case, well_formed=False)
    for case in EXPRESSIONS:
        check_expression(case)
    check(all(map(is_expression, EXPRESSIONS_REFUSED)), "Python's re refuses one of EXPRESSIONS_REFUSED")
    check(not any(map(is_expression, EXPRESSIONS_BROKEN)), "Python's re takes one of EXPRESSIONS_BROKEN")
    for case in GRAMMARS:
        check_grammar(case)
    write("schemas.json", SCHEMAS, jsonschema=version("jsonschema"), pydantic=version("pydantic"))
    write("refused.json", REFUSALS + MALFORMED)
    write("regexes.json", EXPRESSIONS, refused=EXPRESSIONS_REFUSED + EXPRESSIONS_BROKEN)
    write("lark.json", GRAMMARS, lark=version("lark"), refused=GRAMMARS_REFUSED)
    print(len(SCHEMAS), "schemas,", len(REFUSALS + MALFORMED), "refused,", len(EXPRESSIONS), "expressions,", len(GRAMMARS), "grammars")


if __name__ == "__main__":
    main()
