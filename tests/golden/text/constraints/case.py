"""How a case of the corpus is written down, and the shapes that many schemas share."""

import json


def text_of(value):
    """The text that a grammar writes: no whitespace, keys in the order of the schema, and no needless escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Raw(str):
    """A text that is not the compact form of a Python value, such as 1.50 or {"a": 1}."""


def case(name, schema, valid=(), invalid=(), loose=()):
    """valid    values that match the schema, and that its grammar must accept
    invalid  values that do not match; the grammar must refuse them
    loose    texts that match the schema but are not in the compact form; the grammar must refuse them too
    """
    def texts(values):
        return [str(value) if isinstance(value, Raw) else text_of(value) for value in values]
    return {"name": name, "schema": schema, "valid": texts(valid), "invalid": texts(invalid), "loose": texts(loose)}


def closed(properties, required=None, **more):
    """An object without other keys; all are required unless `required` lists fewer."""
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


def array(items, **more):
    return {"type": "array", "items": items, **more}


STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
BOOLEAN = {"type": "boolean"}
NULL = {"type": "null"}
