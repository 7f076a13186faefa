"""The corpus of F16, constraints on outputs, for make_corpus.py."""
import json
import pathlib

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden/text/constraints"
SCHEMA, REGEX, CHOICE, LARK, TOOLS = range(5)
MOST_BYTES = 2000  # larger cases add time, not branches


def make_constraint(write):
    def put(name, kind, source):
        write("constraint", name, bytes([kind]) + (source if isinstance(source, bytes) else source.encode()))
    cases = json.loads((GOLDEN / "schemas.json").read_text())["cases"][::4] + json.loads((GOLDEN / "refused.json").read_text())["cases"][::3]
    for case in cases:
        source = json.dumps(case["schema"], ensure_ascii=False)
        if len(source) <= MOST_BYTES:
            put("schema-" + case["name"], SCHEMA, source)
    for i, case in enumerate(json.loads((GOLDEN / "regexes.json").read_text())["cases"][::4]):
        put(f"regex-{i}", REGEX, case["pattern"])
    for case in json.loads((GOLDEN / "lark.json").read_text())["cases"][::2]:
        put("lark-" + case["name"], LARK, case["grammar"])
    links = "".join(f'"a{i}":{{"$ref":"#/$defs/a{i + 1}"}},' for i in range(3000))
    for name, kind, source in [
            ("empty", SCHEMA, ""), ("not-json", SCHEMA, "{"), ("not-utf8", SCHEMA, b'{"const":"\xff"}'), ("true", SCHEMA, "true"), ("deep", SCHEMA, "[" * 1000),
            ("chain-of-references", SCHEMA, '{"$ref":"#/$defs/a0","$defs":{' + links + '"a3000":{"type":"null"}}}'),
            ("two-multiples", SCHEMA, '{"allOf":[{"multipleOf":9973},{"multipleOf":9967}],"type":"integer"}'),
            ("escape-in-reference", SCHEMA, '{"$ref":"#/$defs/a%7E1b","$defs":{"a/b":{"type":"null"}}}'),
            ("many-repeats", REGEX, "((a{100}){100}){100}"), ("deep-brackets", REGEX, "(" * 200 + ")" * 200), ("slow", REGEX, "a*b?" * 5000),
            ("choices", CHOICE, '["a","ab","\\u0000","(.*)"]'), ("choice-empty", CHOICE, '[""]'), ("choice-not-texts", CHOICE, "[1]"),
            ("chain-of-rules", LARK, "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(3000)) + 'r3000: "a"\n'),
            ("without-end", LARK, 'start: "a" start'), ("special-token", LARK, 'start: "a" <|im_start|>'), ("options", LARK, "%llguidance {}\nstart: /a/"),
            ("schema-in-text", LARK, 'start: "%json {" // %json {\n'), ("schema-cut", LARK, "start: %json {"), ("quote-open", LARK, 'start: "a\\'),
            ("calls", TOOLS, 'start: <[1]> "{" a "}"\na: %json {"type":"object"}'), ("token-unknown", TOOLS, "start: <[999999]>")]:
        put(name, kind, source)
