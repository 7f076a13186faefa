"""Schemas with a keyword that a grammar cannot enforce, or that mean nothing."""

from case import INTEGER, NULL, NUMBER, STRING, array, closed


def refusal(name, schema, path, keyword=None):
    """path     JSON pointer to the keyword or to the schema at fault
    keyword  what the error must name: the last step of the path, unless another is given
    """
    return {"name": name, "schema": schema, "path": path, "keyword": keyword or path.rsplit("/", 1)[-1]}


def chain(links):
    return {"$ref": "#/$defs/0", "$defs": {**{f"{i}": {"$ref": f"#/$defs/{i + 1}"} for i in range(links)}, f"{links}": INTEGER}}


KIND = {"type": "object", "properties": {"kind": STRING}, "required": ["kind"]}
REFUSALS = [
    refusal("not", {"type": "string", "not": {"const": "secret"}}, "/not"),
    refusal("not-in-property", closed({"name": {"not": NULL}}), "/properties/name/not"),
    refusal("if-then-else",
        {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}, "/if"),
    refusal("unique-items", array(INTEGER, uniqueItems=True), "/uniqueItems"),
    refusal("unique-items-in-property", closed({"tags": array(STRING, uniqueItems=True)}),
        "/properties/tags/uniqueItems"),
    refusal("unique-items-in-items", array(array(STRING, uniqueItems=True)), "/items/uniqueItems"),
    refusal("unique-items-in-tuple", {"type": "array", "prefixItems": [STRING, array(STRING, uniqueItems=True)]},
        "/prefixItems/1/uniqueItems"),
    refusal("unique-items-in-option", {"anyOf": [NULL, array(STRING, uniqueItems=True)]}, "/anyOf/1/uniqueItems"),
    refusal("unique-items-in-map", {"type": "object", "additionalProperties": array(STRING, uniqueItems=True)},
        "/additionalProperties/uniqueItems"),
    refusal("unique-items-in-definition", {"$ref": "#/$defs/set", "$defs": {"set": array(STRING, uniqueItems=True)}},
        "/$defs/set/uniqueItems"),
    refusal("unique-items-behind-escape", closed({"a/b~c": array(STRING, uniqueItems=True)}),
        "/properties/a~1b~0c/uniqueItems", "uniqueItems"),
    refusal("contains", array(INTEGER, contains={"const": 1}), "/contains"),
    refusal("contains-twice", array(INTEGER, contains={"const": 1}, minContains=2), "/contains"),
    refusal("property-names", {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, "/propertyNames"),
    refusal("dependent-required", {"type": "object", "dependentRequired": {"card": ["address"]}}, "/dependentRequired"),
    refusal("dependent-schemas", {"type": "object", "dependentSchemas": {"card": {"required": ["address"]}}},
        "/dependentSchemas"),
    refusal("dependencies",
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "dependencies": {"card": ["address"]}},
        "/dependencies"),
    refusal("unevaluated-properties", {"type": "object", "allOf": [KIND], "unevaluatedProperties": False},
        "/unevaluatedProperties"),
    refusal("unevaluated-items", {"type": "array", "prefixItems": [STRING], "unevaluatedItems": False},
        "/unevaluatedItems"),
    refusal("unevaluated-properties-draft-7",
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "unevaluatedProperties": False},
        "/unevaluatedProperties"),
    refusal("dynamic-reference", {"type": "object", "properties": {"child": {"$dynamicRef": "#"}}},
        "/properties/child/$dynamicRef"),
    refusal("recursive-reference", {"$schema": "https://json-schema.org/draft/2019-09/schema", "type": "object",
        "properties": {"child": {"$recursiveRef": "#"}}}, "/properties/child/$recursiveRef"),
    refusal("remote-reference", closed({"place": {"$ref": "https://example.com/schemas/place.json"}}),
        "/properties/place/$ref"),
    refusal("file-reference", {"$ref": "file:///etc/passwd"}, "/$ref"),
    refusal("relative-reference", {"$ref": "place.json#/$defs/city"}, "/$ref"),
    refusal("missing-definition", array({"$ref": "#/$defs/missing"}), "/items/$ref"),
    refusal("reference-chain-too-long", chain(1000), "/$ref"),
    refusal("reference-to-itself", {"$ref": "#"}, "/$ref"),
    refusal("references-in-a-ring",
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "/$ref"),
    refusal("endless-recursion", {"type": "object", "properties": {"child": {"$ref": "#"}}, "required": ["child"]},
        "/properties/child/$ref"),
    refusal("unknown-format", {"type": "string", "format": "phone"}, "/format"),
    refusal("unknown-format-in-property", closed({"at": {"type": "string", "format": "idn-email"}}),
        "/properties/at/format"),
    refusal("format-named-unknown", {"type": "string", "format": "unknown"}, "/format"),
    refusal("overlapping-patterns", {"type": "object", "patternProperties": {"^a": STRING, "b$": INTEGER}},
        "/patternProperties"),
    refusal("overlapping-one-of", {"oneOf": [INTEGER, NUMBER]}, "/oneOf"),
    refusal("overlapping-one-of-objects", {"oneOf": [KIND, {"type": "object", "required": ["name"]}]}, "/oneOf"),
    refusal("min-properties-of-optional",
        {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "minProperties": 1}, "/minProperties"),
    refusal("max-properties-of-optional",
        {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "maxProperties": 1}, "/maxProperties"),
    refusal("min-properties-of-a-map", {"type": "object", "additionalProperties": INTEGER, "minProperties": 2},
        "/minProperties"),
    refusal("pattern-lookahead", {"type": "string", "pattern": "^(?!admin).*$"}, "/pattern"),
    refusal("pattern-back-reference", {"type": "string", "pattern": r"^(['+])[a-z]*\1$"}, "/pattern"),
    refusal("pattern-word-boundary", {"type": "string", "pattern": r"\bcat\b"}, "/pattern"),
    refusal("pattern-properties-lookahead", {"type": "object", "patternProperties": {"^(?!x-)": STRING}},
        "/patternProperties"),
    refusal("multiple-of-many-digits", {"type": "number", "multipleOf": 0.123456789012}, "/multipleOf"),
    refusal("multiple-of-large", {"type": "integer", "multipleOf": 9999991}, "/multipleOf"),
    refusal("const-beyond-doubles", {"const": 9007199254740993}, "/const"),
    refusal("enum-beyond-doubles", {"enum": [1, 12345678901234567890]}, "/enum"),
    refusal("bounds-in-wrong-order", closed({"n": {"type": "integer", "minimum": 5, "maximum": 3}}), "/properties/n",
        "minimum"),
    refusal("enum-of-another-type", closed({"n": {"type": "string", "enum": [1, 2]}}), "/properties/n", "enum"),
    refusal("required-but-forbidden", {"type": "object", "properties": {"a": False}, "required": ["a"]},
        "/properties/a", "a"),
    refusal("false", False, "", "false"),
    refusal("options-of-the-grammar", {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}},
        "/uniqueItems"),
    refusal("draft-3-extends", {"type": "object", "extends": {"required": ["a"]}}, "/extends"),
    refusal("unknown-draft", {"$schema": "http://json-schema.org/draft-03/schema#", "type": "integer"}, "/$schema"),
]

# Not schemas by the rules of JSON Schema.
MALFORMED = [
    refusal("type-unknown", {"type": "any"}, "/type"),
    refusal("type-of-no-kind", {"type": []}, "/type"),
    refusal("properties-as-list", {"type": "object", "properties": ["a"]}, "/properties"),
    refusal("property-as-number", {"type": "object", "properties": {"a": 5}}, "/properties/a", "a"),
    refusal("required-as-flag", {"type": "object", "properties": {"a": {"type": "string", "required": True}}},
        "/properties/a/required"),
    refusal("length-negative", {"type": "string", "minLength": -1}, "/minLength"),
    refusal("length-fractional", {"type": "string", "maxLength": 1.5}, "/maxLength"),
    refusal("multiple-of-zero", {"type": "integer", "multipleOf": 0}, "/multipleOf"),
    refusal("pattern-broken", {"type": "string", "pattern": "["}, "/pattern"),
    refusal("any-of-nothing", {"anyOf": []}, "/anyOf"),
    refusal("reference-as-number", {"$ref": 5}, "/$ref"),
]
