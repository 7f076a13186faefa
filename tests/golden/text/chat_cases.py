"""Conversations and snippets; their rendering by transformers is the golden."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "It's the \"weather\" <now> & here",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                       "required": ["city"]},
        "return": {"type": "string"},
    },
}
TALK = [
    {"role": "system", "content": "  You are terse. "},
    {"role": "user", "content": "Hi \U0001f600 \u4f60\u597d"},
    {"role": "assistant", "content": " Hello!\n"},
    {"role": "user", "content": "Caf\u00e9 <b>?</b> \"quoted\" & 'single' {{ not a tag }}"},
]
TOOLS = [
    {"role": "user", "content": "Weather in Paris?"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdefghi", "type": "function",
         "function": {"name": "weather", "arguments": {"city": "Par\u00eds", "days": 2, "metric": True, "x": None, "y": 1.0}}}]},
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "{\"t\": 21.5}"},
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "sunny"},
    {"role": "assistant", "content": "<think>\nwarm, 'nice'\n</think>\n\nIt is 21.5 degrees."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "<think>\nthanks\n</think>\n\nWelcome."},
]
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image"}, ["a", "b"]]},
    {"role": "skip", "content": "never"},
    {"role": "assistant", "content": "seen"},
    {"role": "user", "content": "more"},
    {"role": "stop", "content": "never"},
    {"role": "user", "content": "after"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def case(template, messages, **options):
    return {"template": template, "messages": messages, "special_tokens": TOKENS, "options": options}


CASES = [
    case("chatml", TALK, add_generation_prompt=True),
    case("chatml", TALK[1:], add_generation_prompt=False),
    case("chatml", TALK[1:2], add_generation_prompt=True),
    case("llama3", TALK, add_generation_prompt=True, date_string="21 Nov 2025"),
    case("llama3", TALK[1:], date_string="1 Jan 2000", tools=[WEATHER, WEATHER]),
    case("llama3", TOOLS[:3] + [{"role": "tool", "content": {"a": [1, 2.5, None], "b": {}}},
                                {"role": "tool", "content": ["x", []]}], date_string="x"),
    case("mistral", TALK, add_generation_prompt=True),
    case("mistral", TOOLS, tools=[WEATHER]),
    case("qwen", TALK, add_generation_prompt=True, enable_thinking=False),
    case("qwen", TALK, add_generation_prompt=True, enable_thinking=True),
    case("qwen", TOOLS, tools=[WEATHER], add_generation_prompt=True),
    case("qwen", TOOLS[:2] + [{"role": "assistant", "content": None, "reasoning_content": "\nhm\n",
                               "tool_calls": [{"name": "f", "arguments": "{}"}, {"name": "g", "arguments": {}}]}]),
    case("parts", PARTS, add_generation_prompt=True),
    case("parts", PARTS[2:4]),
]

DATA = {
    "none": None, "yes": True, "no": False, "i": 3, "f": 1.0, "g": 0.1, "big": 1e16, "small": 1e-5, "neg": -2.5,
    "s": "a\"b'c\\d\ne\u00e9\U0001f600\u007f<&>", "list": [1, "two", None, True, 2.0, [], {"k": 'it\'s'}],
    "map": {"b": 1, "a": {"c": [1, 2]}, "n": None}, "empty": [], "words": "  x y  z ",
    "rows": [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}, {"n": 1, "t": "c"}],
}

# Each is rendered with DATA. They cover what real templates use, and behaviour specific to Python.
SNIPPETS = [
    "{{ none }} {{ yes }} {{ no }} {{ i }} {{ f }} {{ g }} {{ big }} {{ small }} {{ neg }}",
    "{{ list }}", "{{ map }}", "{{ s }}", "[{{ missing }}]{{ missing is defined }}{{ none is defined }}{{ none is none }}",
    "{{ s | tojson }}", "{{ s | tojson(ensure_ascii=True) }}", "{{ list | tojson }}", "{{ map | tojson }}",
    "{{ map | tojson(indent=2) }}", "{{ map | tojson(sort_keys=True) }}", "{{ map | tojson(separators=(',', ':')) }}",
    "{{ empty | tojson(indent=4) }}|{{ {} | tojson(indent=4) }}|{{ none | tojson }}|{{ f | tojson }}|{{ big | tojson }}",
    "{{ [1, [2, {'x': 3}]] | tojson(indent=1) }}",
    "{{ words.strip() }}|{{ words | trim }}|{{ words.lstrip() }}|{{ words.rstrip() }}|{{ words.split() }}|{{ words.split(' ') }}",
    "{{ 'a,b,c'.split(',', 1) }}{{ 'xxaxx'.strip('x') }}{{ 'aXbX'.replace('X', '-') }}{{ 'ab'.upper() }}{{ 'AB'.lower() }}",
    "{{ 'hello world'.title() }}{{ 'hello'.capitalize() }}{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}",
    "{{ 'abcabc'.find('c') }}{{ 'abcabc'.count('c') }}{{ '-'.join(['a', 'b']) }}{{ 'a\nb'.splitlines() }}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}{% for k in map %}{{ k }}{% endfor %}",
    "{% for k, v in map|items %}{{ k }}{% endfor %}{% for k, v in map|dictsort %}{{ k }}{% endfor %}",
    "{{ map.get('b') }}{{ map.get('z') }}{{ map.get('z', 'd') }}{{ map['b'] }}{{ map.a.c[-1] }}{{ map.keys() | list }}{{ map.values() | list }}",
    "{{ list[1:3] }}{{ list[::-1][0] }}{{ list[:-5] }}{{ 'hello'[1:-1] }}{{ 'hello'[::-1] }}{{ 'hello'[-1] }}",
    "{{ rows | map(attribute='t') | join(', ') }}{{ rows | selectattr('n', 'equalto', 1) | map(attribute='t') | list }}",
    "{{ rows | rejectattr('n', 'equalto', 1) | list | length }}{{ rows | map(attribute='n') | sum }}{{ [3, 1, 2] | sort }}{{ [1, 1, 2] | unique | list }}",
    "{{ list | length }}{{ list | first }}{{ list | last }}{{ 'x' * 3 }}{{ 7 // 2 }}{{ 7 % 3 }}{{ 7 / 2 }}{{ 2 ** 3 }}{{ 8 / 2 }}",
    "{{ 'a' in 'abc' }}{{ 'z' not in map }}{{ 1 in [1] }}{{ not yes }}{{ yes and i }}{{ no or 'x' }}{{ none or 'y' }}",
    "{{ 'y' if i > 2 else 'n' }}{{ ('a' if no) }}{{ [1, 2] + [3] }}{{ 'a' ~ 1 ~ 'b' ~ 2.5 }}",
    "{{ s is string }}{{ i is number }}{{ i is integer }}{{ f is float }}{{ map is mapping }}{{ list is sequence }}{{ s is sequence }}{{ map is iterable }}{{ s is iterable }}{{ i is iterable }}{{ yes is boolean }}{{ yes is true }}",
    "{{ i is even }}{{ i is odd }}{{ i is divisibleby 3 }}{{ i is eq 3 }}{{ 'a' is in ['a'] }}{{ 'A' is upper }}",
    "{{ missing | default('d') }}{{ none | default('d') }}{{ none | default('d', true) }}{{ '' | default('e', true) }}{{ none | string }}{{ yes | string }}{{ i | string + 'x' }}",
    "{{ none | trim }}{{ list | join('|') }}{{ '5' | int + 1 }}{{ '2.5' | float }}{{ 3.7 | int }}{{ 2.567 | round(1) }}{{ -3 | abs }}",
    "{{ 'a\nb' | indent(2) }}|{{ 'a\nb' | indent(2, true) }}|{{ 'hello' | replace('l', 'L') }}|{{ 'x y' | upper }}|{{ 'A' | lower }}|{{ 'hello' | capitalize }}|{{ 'a b' | title }}",
    "{% set ns = namespace(x=0, l=[]) %}{% for r in rows %}{% set ns.x = ns.x + r.n %}{% set ns.l = ns.l + [r.t] %}{% endfor %}{{ ns.x }}{{ ns.l }}",
    "{% for r in rows %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.previtem.t if not loop.first }}{{ loop.nextitem.t if not loop.last }}{{ loop.cycle('o', 'e') }};{% else %}none{% endfor %}{% for x in empty %}{% else %}none{% endfor %}",
    "{% for r in rows if r.n == 1 %}{{ r.t }}{{ loop.index }}{% endfor %}{% for i in range(3) %}{{ i }}{% endfor %}{{ range(1, 7, 2) | list }}",
    "{% set x %}a{{ i }}{% endset %}{{ x }}{% with y = 2 %}{{ y }}{% endwith %}{% if no %}{% elif i == 3 %}three{% else %}{% endif %}",
    "{% macro m(a, b='d') %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}{% filter upper %}abc{% endfilter %}",
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n{# note #}\nd {%- if yes %} e {% endif -%} \n f\n{%+ if yes %}g{% endif +%}\nh\n",
    "{% raw %}{{ not }}{% endraw %}{{ '{{' }}{{ \"it's\" }}{{ 'tab\\there' }}",
    "{% generation %}x{% endgeneration %}{%- generation -%} y {%- endgeneration -%}",
    "{{ dict(a=1, b='x') }}{{ {'k': [1, (2, 3)[0]]} }}{{ 'a%sb' | replace('%s', '-') }}",
    "{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{{ tools }}{{ documents }}{{ messages }}{{ add_generation_prompt }}",
    "{{ \"%s and %d\" | format('a', 3) }}{{ 'abc' | list }}{{ 'abc' | length }}{{ [[1, 2], [3]] | map('length') | list }}{{ [0, 1, none] | select | list }}",
    "{{ 1 == 1.0 }}{{ 'a' < 'b' }}{{ 1 < 2 < 3 }}{{ [1, 2] == [1, 2] }}{{ {'a': 1} == {'a': 1} }}{{ none == missing }}{{ yes == 1 }}",
]

# Renderings that fail in transformers; ours must fail too.
REFUSED = [
    "{{ missing.x }}", "{{ missing + 'a' }}", "{{ 'a' + 1 }}", "{{ i.x.y }}", "{{ raise_exception('no') }}",
    "{% for x in i %}{% endfor %}", "{{ undefined_function() }}", "{{ 'a' | no_such_filter }}", "{{ missing | tojson }}",
    "{% include 'x' %}", "{% if %}", "{{ ", "{{ 1 / 0 }}", "{{ 's'.no_such_method() }}", "{% endfor %}", "{{ none + 'x' }}",
    "{{ ''.__class__.__mro__ }}", "{% set x = [1] %}{{ x.append(2) }}", "{{ range(10000000) }}",
]
