"""Validates JSON texts against schemas with the package jsonschema, numbers as exact decimals. Needs jsonschema,
rfc3339-validator and rfc3986-validator (deploy/versions.env, NIBBLE_WHEELS_TESTS)."""

import decimal
import json
import re
import sys

import jsonschema
import rfc3339_validator  # noqa: F401 (without it, jsonschema lets every date-time and time pass)
import rfc3986_validator  # noqa: F401 (the same for uri)
from jsonschema.validators import validator_for

# An output may have a number of any length, and Python's own limits are lower.
sys.set_int_max_str_digits(0)
decimal.getcontext().prec = 10_000

# RFC 3339, appendix A, and RFC 1123: jsonschema would need more packages for these two formats.
DURATION_TIME = r"T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"
DURATION_DATE = r"(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)"
DURATION = re.compile(rf"P({DURATION_DATE}({DURATION_TIME})?|{DURATION_TIME}|\d+W)", re.ASCII)
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII | re.IGNORECASE)

FORMATS = jsonschema.FormatChecker([])
FORMATS.checkers = dict(jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers)


@FORMATS.checks("duration")
def is_duration(value):
    return not isinstance(value, str) or DURATION.fullmatch(value) is not None


@FORMATS.checks("hostname")
def is_hostname(value):
    return not isinstance(value, str) or len(value) <= 253 and all(LABEL.fullmatch(label) for label in value.split("."))


def is_integer(_, value):
    return not isinstance(value, bool) and (isinstance(value, int) or isinstance(value, decimal.Decimal) and value == value.to_integral_value())


def pattern(validator, wanted, value, schema):
    """jsonschema's `pattern`, with the \\d and \\w of ECMA 262, which are ASCII."""
    if validator.is_type(value, "string") and not re.search(wanted, value, re.ASCII):
        yield jsonschema.ValidationError(f"{value!r} does not match {wanted!r}")


def number(text):
    """The decimal; exponents that the package decimal cannot hold are cut, which changes no verdict on a schema."""
    mantissa, _, exponent = text.lower().partition("e")
    return decimal.Decimal(mantissa).scaleb(max(-100_000, min(100_000, int(exponent or 0))))


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def parse(text):
    """The value of a JSON text; numbers with a fraction or an exponent are decimals. Raises ValueError."""
    return json.loads(text, parse_float=number, parse_constant=refuse_constant)


class Schema:
    def __init__(self, schema):
        schema = parse(json.dumps(schema))
        kind = validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        kind = jsonschema.validators.extend(kind, {"pattern": pattern}, type_checker=kind.TYPE_CHECKER.redefine("integer", is_integer))
        self._validator = kind(schema, format_checker=FORMATS)

    def error(self, text):
        """What is wrong with `text`, or None."""
        try:
            value = parse(text)
        except ValueError as error:
            return f"not JSON: {error}"
        error = next(self._validator.iter_errors(value), None)
        return error and f"{error.json_path}: {error.message[:300]}"
