"""Regular expressions and small Lark grammars, with texts that they match or not."""


def expression(pattern, matches, others):
    return {"pattern": pattern, "matches": matches, "others": others}


EXPRESSIONS = [
    expression("yes|no|maybe", ["yes", "no", "maybe"], ["", "ye", "yesno", "Yes"]),
    expression("[0-9]+", ["0", "0123456789"], ["", "a", "1a", "-1"]),
    expression("-?[0-9]+", ["-1", "12"], ["--1", "-", ""]),
    expression("a*", ["", "a", "aaaa"], ["b", "ab"]),
    expression("a+b?", ["a", "ab", "aaab"], ["b", "abb", ""]),
    expression("(ab)*", ["", "ab", "ababab"], ["a", "aba"]),
    expression("(?:a|bc){2,3}", ["aa", "abc", "bcabc"], ["a", "aaaa"]),
    expression("a{3}", ["aaa"], ["aa", "aaaa"]),
    expression("a{2,}", ["aa", "aaaaa"], ["a", ""]),
    expression("[abc]", ["a", "c"], ["d", "ab", ""]),
    expression("[^abc]", ["d", "é", "\n", "😀"], ["a", "", "dd"]),
    expression("[a-zA-Z_][a-zA-Z0-9_]*", ["x", "_a1"], ["1a", "", "a-b"]),
    expression("[a-c-]", ["-", "b"], ["d", ""]),
    expression(r"[\]\\^]", ["]", "\\", "^"], ["[", ""]),
    expression(r"\.", ["."], ["a", ""]),
    expression(r"\d{4}-\d{2}-\d{2}", ["2024-02-30"], ["2024-2-30", "24-02-30"]),
    expression(r"\d+", ["7", "٣"], ["x", "²"]),
    expression(r"\w+", ["abc_1", "été"], ["a b", "", "-"]),
    expression(r"\s*", ["", " \t\n"], ["a", " a"]),
    expression(r"\S+", ["a!", "é"], ["", "a b"]),
    expression(r"\D\W", ["a-", "é "], ["1-", "ab"]),
    expression(r"\(\d{3}\) \d{3}-\d{4}", ["(555) 123-4567"], ["555 123-4567", "(555)123-4567"]),
    expression(r"[\w.+-]+@[\w-]+(\.[\w-]+)+", ["a.b+c@d-e.org"], ["a@b", "@b.c", "a@b."]),
    expression(r"https?://[a-z0-9.-]+(/[a-z0-9/._-]*)?", ["http://a.b", "https://a/x/y.z"],
        ["ftp://a", "http://", "http://a?b"]),
    expression("#[0-9a-f]{6}", ["#00ff7a"], ["#00FF7A", "#fff"]),
    expression("(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])(\\.(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])){3}",
        ["0.0.0.0", "255.249.199.9"], ["256.0.0.1", "1.2.3"]),
    expression(".", ["a", "é", "😀", "\t"], ["\n", "", "ab"]),
    expression("(?s).{2}", ["a\n", "\n\n"], ["a", "\n"]),
    expression("(?i)stop", ["stop", "STOP", "sToP"], ["sto", "stopp"]),
    expression("(?P<year>[0-9]{4})/(?P<month>0[1-9]|1[0-2])", ["2024/01", "1999/12"], ["2024/13", "2024/00"]),
    expression("é+", ["é", "éé"], ["e", "e\u0301"]),
    expression("[α-ω]{1,3}", ["α", "ωβγ"], ["a", "αβγδ", ""]),
    expression("[一-龥ぁ-ん]+", ["灯台", "あ"], ["ア", ""]),
    expression("😀|😁", ["😀", "😁"], ["😂", "😀😁"]),
    expression("a/b", ["a/b"], ["a\\/b", "ab"]),
    expression(r'"[^"\n]*"', ['""', '"a b"'], ['"', '"a"b"']),
    expression(r"\t|\n|\r", ["\t", "\n", "\r"], ["t", " "]),
    expression(r"\x41\u00e9", ["Aé"], ["A", "x41"]),
    expression("x{0,2}y{0,2}", ["", "xxyy", "y"], ["yx", "xxx"]),
    expression("(a|b|c|d){1,200}", ["a", "abcd" * 50], ["", "abcd" * 50 + "a"]),
]
# Expressions that Python takes and that a grammar cannot enforce.
EXPRESSIONS_REFUSED = [r"a(?=b)", r"(?<!a)b", r"(a)\1", r"\bword\b", "a$b"]
# Not regular expressions at all.
EXPRESSIONS_BROKEN = ["(", "[a", "a{3,1}", "*a", "\\"]


def grammar(name, text, accepted, rejected):
    return {"name": name, "grammar": text, "accepted": accepted, "rejected": rejected}


GRAMMARS = [
    grammar("literal", 'start: "hello"', ["hello"], ["", "hell", "hello ", "Hello"]),
    grammar("alternatives", 'start: "yes" | "no" | "unknown"', ["yes", "no", "unknown"], ["", "yesno", "y"]),
    grammar("sequence", 'start: "a" "b" "c"', ["abc"], ["ab", "acb", "a b c"]),
    grammar("repetition", 'start: "a"+ "b"* "c"?', ["a", "aabbc", "ac"], ["", "b", "acc"]),
    grammar("counted", 'start: "a"~2..3 "b"~2', ["aabb", "aaabb"], ["abb", "aab", "aaaabb"]),
    grammar("group", 'start: ("a" | "b" "c")+ ["d"]', ["a", "bca", "abcd"], ["", "b", "d", "add"]),
    grammar("rules", 'start: greeting " " name\ngreeting: "hi" | "hello"\nname: "Ada" | "Alan"',
        ["hi Ada", "hello Alan"], ["hi", "hi ada", "Ada hi"]),
    grammar("terminals", 'start: WORD ("," WORD)*\nWORD: /[a-z]+/', ["a", "abc,d"], ["", ",a", "a,", "A"]),
    grammar("nested-terminals", 'start: VERSION\nVERSION: NUMBER "." NUMBER\nNUMBER: /[0-9]+/', ["1.2", "10.20"],
        ["1", "1.", ".2"]),
    grammar("terminal-alternatives", 'start: COLOUR "!"\nCOLOUR: "red" | "green" | /blue+/', ["red!", "blueee!"],
        ["red", "blu!"]),
    grammar("case-insensitive", 'start: "select"i " " /[a-z]+/', ["SELECT x", "select abc"], ["SELECT X", "selec x"]),
    grammar("ignored-blanks", 'start: "(" NUMBER ("," NUMBER)* ")"\nNUMBER: /[0-9]+/\n%ignore / +/',
        ["(1)", "(1,2)", "( 1 , 2 )"], ["(", "(1 2)", "(,)"]),
    grammar("imports", 'start: INT ":" CNAME\n%import common.INT\n%import common.CNAME', ["12:ab", "0:_x9"],
        [":a", "1:9", "a:b"]),
    grammar("arithmetic", 'start: sum\nsum: product (("+" | "-") product)*\nproduct: atom (("*" | "/") atom)*\natom: NUMBER | "(" sum ")"\nNUMBER: /[0-9]+/',
        ["1", "1+2*3", "(1+2)*(3-4)/5"], ["", "1+", "(1", "1++2", "()"]),
    grammar("left-recursion", 'start: list\nlist: list "," item | item\nitem: "x" | "y"', ["x", "x,y,x"],
        ["", "x,", ",x"]),
    grammar("right-recursion", 'start: "a" start | "b"', ["b", "ab", "aaab"], ["", "a", "ba"]),
    grammar("balanced", 'start: pair*\npair: "(" start ")" | "[" start "]"', ["", "()", "([])[]", "(()[])"],
        ["(", "(]", "][", "([)]"]),
    grammar("palindromes", 'start: "a" start "a" | "b" start "b" | "c"', ["c", "aca", "abcba"],
        ["", "ac", "acb", "aa"]),
    grammar("assignments", 'start: line+\nline: NAME "=" value "\\n"\nvalue: NUMBER | NAME | "\\"" TEXT "\\""\nNAME: /[a-z]+/\nNUMBER: /-?[0-9]+/\nTEXT: /[^"\\n]+/',
        ["a=1\n", "a=b\nc=\"x y\"\n"], ["a=1", "=1\n", "a=\"x\n", "a=\n"]),
    grammar("unicode", 'start: "été" | "灯" "台" | /[α-ω]+/ "😀"', ["été", "灯台", "αβ😀"], ["ete", "灯", "😀", "αβ"]),
]


def broken(name, text):
    return {"name": name, "grammar": text}


GRAMMARS_REFUSED = [
    broken("empty", ""),
    broken("without-start", 'x: "a"'),
    broken("undefined-rule", "start: other"),
    broken("undefined-terminal", "start: OTHER"),
    broken("unbalanced", 'start: ("a"'),
    broken("unknown-import", "start: X\n%import common.X"),
    broken("lookahead", "start: /a(?=b)/"),
    broken("token-ids", "start: <[1-20]>"),
    broken("any-token", "start: <[*]>"),
    broken("other-grammar", "start: @other"),
    broken("schema-with-not", 'start: %json {"not": {"type": "null"}}'),
    broken("schema-with-options",
        'start: %json {"type": "array", "uniqueItems": true, "x-guidance": {"lenient": true}}'),
    broken("invalid-utf8", '%llguidance {"allow_invalid_utf8": true}\nstart: /a/'),
    broken("list-of-grammars",
        '{"grammars": [{"json_schema": {"uniqueItems": true, "x-guidance": {"lenient": true}}}]}'),
]
