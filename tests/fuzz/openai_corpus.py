"""The corpora of F14 and F15, requests of OpenAI's API, for make_corpus.py."""
import json

# http_request_fuzz.cc: the second byte. The first is the size of the pieces.
WHOLE, STREAM, LATER, NEVER, FAIL, FAILED_STREAM, CUT, EARLY = range(8)
NEEDS_TOKEN = 8
BEARER = "Authorization: Bearer fuzz-token"
JSON_TYPE = "Content-Type: application/json"


def request(line, *fields, body=b"", host="localhost"):
    """`body`: bytes with their length, or a list of chunks."""
    fields = ([f"Host: {host}"] if host else []) + list(fields)
    if isinstance(body, list):
        fields.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in body) + b"0\r\n\r\n"
    elif body:
        fields.append(f"Content-Length: {len(body)}")
    return "\r\n".join([f"{line} HTTP/1.1", *fields, "", ""]).encode() + body


def make_http_request(write):
    def put(name, *requests, mode=WHOLE, piece=3):
        write("http_request", name, bytes([piece, mode]) + b"".join(requests))
    models = request("GET /v1/models")
    chat = request("POST /v1/chat/completions", JSON_TYPE, body=b'{"model":"m"}')
    form = lambda body, *more: request("POST /v1/files", "Content-Type: multipart/form-data; boundary=b", *more, body=body)
    for name, mode in {"whole": WHOLE, "stream": STREAM, "later": LATER, "never": NEVER, "fail": FAIL, "failed-stream": FAILED_STREAM,
                       "cut": CUT, "early": EARLY}.items():
        put("answer-" + name, models, chat, form(b"abc"), models, mode=mode)
    put("pieces-of-1", chat, chat, piece=0)
    put("form-chunked", form([b"abc", b"de", b"x" * 400]), models)
    put("form-too-large", form(b"x" * 70000), models)
    put("form-chunked-too-large", form([b"x" * 60000] * 2), models)
    put("form-of-a-page", form(b"abc", "Origin: https://evil.example"))
    put("form-cut", form(b"abcdef")[:-3])
    put("chunked", request("POST /tokenize", JSON_TYPE, body=[b"{", b"}"]), models)
    put("chunked-extension", request("POST /tokenize", JSON_TYPE, "Transfer-Encoding: chunked") + b"1;a=b\r\n{\r\n0;c\r\nTrailer: x\r\n\r\n", models)
    for name, size in {"not-hex": b"zz", "huge": b"ffffffffffffffffff", "negative": b"-1", "empty": b"", "spaces": b" 1 "}.items():
        put("chunk-size-" + name, request("POST /tokenize", JSON_TYPE, "Transfer-Encoding: chunked") + size + b"\r\n{\r\n0\r\n\r\n", models)
    put("length-and-chunked", request("POST /tokenize", JSON_TYPE, "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n", models)
    put("two-lengths", request("POST /tokenize", JSON_TYPE, "Content-Length: 1", "Content-Length: 2") + b"{}", models)
    for name, length in {"negative": "-1", "huge": "18446744073709551616", "plus": "+2", "hex": "0x2", "large": "100000"}.items():
        put("length-" + name, request("POST /tokenize", JSON_TYPE, f"Content-Length: {length}") + b"{}", models)
    put("chunked-twice", request("POST /tokenize", JSON_TYPE, "Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n", models)
    put("identity", request("POST /tokenize", JSON_TYPE, "Transfer-Encoding: identity", "Content-Length: 2") + b"{}", models)
    put("budget", request("POST /tokenize", JSON_TYPE, body=[b"{}"]), request("POST /tokenize", JSON_TYPE, body=b" " * 4096))
    put("continue", request("POST /tokenize", JSON_TYPE, "Expect: 100-continue", body=b"{}"), models)
    put("continue-form", form(b"abc", "Expect: 100-continue"), models)
    put("continue-cut", request("POST /tokenize", JSON_TYPE, "Expect: 100-continue", "Content-Length: 2"))
    put("head", request("HEAD /v1/models"), models)
    put("options", request("OPTIONS /v1/chat/completions", "Origin: https://app.example", "Access-Control-Request-Method: POST",
                           host="api.example"), models, mode=NEEDS_TOKEN)
    put("token", request("GET /v1/models", BEARER), request("POST /v1/embeddings", BEARER, JSON_TYPE, body=b"{}"), mode=NEEDS_TOKEN)
    for name, fields in {"none": [], "wrong": ["Authorization: Bearer fuzz-tokem"], "two": [BEARER, "Authorization: Bearer x"],
                         "basic": ["Authorization: Basic ZnV6eg=="], "lower": ["authorization: bearer fuzz-token"],
                         "not-ascii": ["Authorization: Bearer \u00e9"], "folded": ["Authorization: Bearer\r\n fuzz-token"]}.items():
        put("token-" + name, request("GET /v1/models", *fields), mode=NEEDS_TOKEN)
    put("old-version", b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n", mode=STREAM)
    put("old-version-kept", b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n" * 2)
    put("close", request("GET /v1/models", "Connection: close"), models)
    put("many-requests", models * 40, mode=LATER, piece=255)
    for host in ("", "evil.example", "127.0.0.1:80", "[::1]:80", "[::1", "localhost:80:80"):
        put("host-" + (host.replace(":", "_").replace("[", "").replace("]", "") or "none"), request("GET /v1/models", host=host))
    put("two-hosts", request("GET /v1/models", "Host: evil.example"))
    for name, target in {"query": "/v1/files?limit=3&after=%20x", "escapes": "/v1/models/a%2Fb%zz%", "nul": "/v1/models/%00", "not-utf8": "/v1/models/%ff%fe",
                         "dots": "/v1/../v1/models", "absolute": "http://localhost/v1/models", "asterisk": "*", "empty-name": "/v1/files/",
                         "name": "/v1/fine_tuning/jobs/a/events", "slash-in-name": "/v1/fine_tuning/jobs/a%2Fb/events",
                         "long": "/v1/models/" + "a" * 1500, "too-long": "/v1/models/" + "a" * 3000}.items():
        put("target-" + name, request("GET " + target), models)
    for name, line in {"method": "BREW /v1/models", "wrong-method": "DELETE /v1/models", "lower-method": "get /v1/models",
                       "no-target": "GET"}.items():
        put(name, request(line), models)
    put("request-id", request("GET /v1/models", "x-request-id: my.id-1"), request("GET /v1/models", "x-request-id: a b"))
    put("type", request("POST /tokenize", "Content-Type: text/plain", body=b"{}"), models)
    put("many-fields", request("GET /v1/models", *(f"A{i}: 1" for i in range(20))), models)
    put("long-field", request("GET /v1/models", "A: " + "a" * 3000), models)
    put("field-without-colon", request("GET /v1/models", "Nonsense"), models)
    put("field-with-nul", request("GET /v1/models", "A: \0"), models)
    put("line-feeds", b"GET /v1/models HTTP/1.1\nHost: localhost\n\n")
    put("blank-lines", b"\r\n\r\n" + models)
    put("tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    put("http2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    put("nothing", b"")


COMPLETION = {"model": "m", "prompt": "Hello", "max_tokens": 5, "temperature": 0.5, "top_p": 1, "n": 2, "seed": 3, "stop": ["a", "b"], "stream": True,
              "stream_options": {"include_usage": True, "include_obfuscation": False}, "echo": False, "logprobs": 2, "presence_penalty": 0,
              "frequency_penalty": 0, "logit_bias": {"5": 1, "6": -100}, "best_of": 1, "suffix": None, "user": "u", "top_k": -1, "min_p": 0,
              "repetition_penalty": 1, "min_tokens": 1, "ignore_eos": True, "include_stop_str_in_output": True, "stop_token_ids": [1, 2],
              "skip_special_tokens": False, "priority": 0}
CHAT = {"model": "m", "messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"}],
        "max_completion_tokens": 5, "logprobs": True, "top_logprobs": 3, "store": False, "service_tier": "auto", "tool_choice": "none", "tools": [],
        "parallel_tool_calls": True, "modalities": ["text"], "response_format": {"type": "text"}, "metadata": {}, "add_generation_prompt": True}
EMBEDDINGS = {"model": "m", "input": ["a", "b"], "encoding_format": "base64", "normalize": True, "pooling": "last", "user": "u"}
FINE_TUNING = {"model": "m", "training_file": "f", "validation_file": "g", "seed": 1, "suffix": "s", "metadata": {"a": "b"},
               "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 3, "batch_size": 8, "learning_rate_multiplier": 0.5}}},
               "nibble": {"run": {"max_steps": "10"}, "qlora": {"rank": 8}, "publish": {"output_model": "o"}}, "integrations": None}


def make_openai_json(write):
    def put(name, value):
        write("openai_json", name, value if isinstance(value, (str, bytes)) else json.dumps(value, separators=(",", ":"), ensure_ascii=False))

    def change(name, whole, **changes):
        put(name, {**whole, **changes})
    for name, whole in {"completion": COMPLETION, "chat": CHAT, "embeddings": EMBEDDINGS, "fine-tuning": FINE_TUNING}.items():
        put(name, whole)
        put(name + "-empty", {key: None for key in whole})
        for kind, value in {"text": "x", "number": 1e308, "list": [[]], "object": {"a": {}}}.items():
            put(f"{name}-of-{kind}", {key: value for key in whole})
        change(name + "-unknown", whole, modle="m")
    for name, prompt in {"empty": "", "ids": [1, 2, 3], "texts": ["a", "b"], "lists": [[1], [2, 3]], "mixed": ["a", [1], 2], "none": [], "empty-lists": [[], []],
                         "many": [""] * 2048, "too-many": [""] * 2049, "large-id": [2147483648], "negative-id": [-1], "huge-id": [18446744073709551615],
                         "fraction": [1.5], "object": {"a": 1}}.items():
        change("prompt-" + name, COMPLETION, prompt=prompt)
    for name, stop in {"text": "x", "five": list("abcde"), "long": "x" * 257, "number": [1], "empty": ""}.items():
        change("stop-" + name, COMPLETION, stop=stop)
    for name, value in {"zero": 0, "many": 17, "negative": -1, "fraction": 1.5, "exponent": 1e0, "huge": 1e19, "huge-whole": 18446744073709551615}.items():
        change("n-" + name, COMPLETION, n=value)
    change("score", COMPLETION, echo=True, max_tokens=0)
    change("bias-key", COMPLETION, logit_bias={"a": 1})
    change("bias-many", COMPLETION, logit_bias={str(i): 1 for i in range(301)})
    change("bias-value", COMPLETION, logit_bias={"1": "1"})
    change("stop-ids-many", COMPLETION, stop_token_ids=list(range(129)))
    change("usage-without-stream", CHAT, stream_options={"include_usage": True})
    change("both-limits", CHAT, max_tokens=5)
    change("different-limits", CHAT, max_tokens=6)
    change("top-without-logprobs", CHAT, logprobs=False)
    for name, content in {"missing": None, "number": 1, "image": [{"type": "image_url", "image_url": {"url": "x"}}], "empty": [], "part-unknown": [{"type": "text", "text": "a", "x": 1}]}.items():
        change("content-" + name, CHAT, messages=[{"role": "user", "content": content}])
    change("role-missing", CHAT, messages=[{"content": "a"}])
    change("tool-calls", CHAT, messages=[{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}])
    change("tools", CHAT, tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], tool_choice="auto")
    change("response-format", CHAT, response_format={"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}}})
    for name, value in {"text": "a", "ids": [1], "lists": [[1], [2]], "none": [], "mixed": ["a", [1]], "empty-list": [[]]}.items():
        change("input-" + name, EMBEDDINGS, input=value)
    for name, value in {"path": "../x", "long": "s" * 41, "dots": "a..b", "empty": ""}.items():
        change("suffix-" + name, {**FINE_TUNING, "nibble": {}}, suffix=value)
    for name, value in {"list": [], "unknown": {"runn": {}}, "type": {"run": 1}, "enum": {"optim": {"optimizer": "OPTIMIZER_SGD"}}, "two-methods": {"qlora": {}, "full": {}},
                        "micro-batch": {"run": {"micro_batch": 2}}, "deep": {"labels": {"a": {"b": {"c": {}}}}}}.items():
        change("extension-" + name, FINE_TUNING, nibble=value)
    change("hyperparameters", {key: value for key, value in FINE_TUNING.items() if key != "method"}, hyperparameters={"n_epochs": "auto", "batch_size": 7})
    change("hyperparameters-twice", FINE_TUNING, hyperparameters={})
    change("method-dpo", FINE_TUNING, method={"type": "dpo", "dpo": {}})
    change("metadata-many", FINE_TUNING, metadata={str(i): "" for i in range(17)})
    for name, text in {"query": "limit=5&after=a%20b&metadata[a]=b", "query-twice": "limit=1&limit=2", "query-escapes": "after=%zz%ff%", "query-number": "limit=0",
                       "query-map": "metadata[a]=1&metadata[a]=2&metadata[]=", "array": "[]", "deep": '{"messages":' * 70, "cut": '{"model":', "twice": '{"n":1,"n":2}',
                       "not-utf8": b'{"model":"\xff"}', "surrogate": '{"model":"\\ud800"}'}.items():
        put(name, text)
