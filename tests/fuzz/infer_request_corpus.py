"""The corpus of F13, requests of KServe's protocol, for make_corpus.py: messages of protobuf from their fields."""
import json
import struct


def varint(value):
    out = b""
    while True:
        out += bytes([(value & 127) | (128 if value > 127 else 0)])
        value >>= 7
        if value == 0:
            return out


def field(number, content):
    """A field of a message: bytes, text, or a whole number."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content & (1 << 64) - 1)
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def infer_request(*tensors, model="m", rest=b""):
    """A ModelInferRequest of (name, type, shape, raw contents)."""
    out = field(1, model)
    for name, kind, shape, raw in tensors:
        out += field(5, field(1, name) + field(2, kind) + b"".join(field(3, size) for size in shape)) + field(7, raw)
    return out + rest


def make_infer_request(write):
    put = lambda name, *tensors, **more: write("infer_request", name, infer_request(*tensors, **more))
    element = lambda text: struct.pack("<I", len(text.encode())) + text.encode()
    prompt = ("text_input", "BYTES", [1], element("Hello"))
    sampling = lambda value: ("sampling_parameters", "BYTES", [1], element(value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))))
    flag = lambda name, raw=b"\1": (name, "BOOL", [1], raw)
    everything = {"n": 2, "temperature": "0.5", "top_p": 1, "top_k": -1, "min_p": 0, "seed": 3, "presence_penalty": 0, "frequency_penalty": 0,
                  "repetition_penalty": 1, "logit_bias": {"5": 1}, "max_tokens": "4", "min_tokens": 0, "stop": ["a"], "stop_token_ids": [1],
                  "ignore_eos": "true", "include_stop_str_in_output": False, "skip_special_tokens": True, "logprobs": 2}
    returned = [flag("return_" + name) for name in ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens",
                                                    "num_output_tokens")]
    put("smallest", prompt)
    put("full", prompt, sampling(everything), *returned, flag("exclude_input_in_output"), rest=field(3, "id"))
    put("stream", prompt, flag("stream"), sampling({"max_tokens": 1}), *returned)
    parameter = lambda key, value: field(4, field(1, key) + field(2, value))
    put("parameters", prompt, rest=parameter("temperature", field(3, "0.5")) + parameter("timeout", field(2, 1000)) +
        parameter("triton_enable_empty_final_response", field(1, 1)) + parameter("max_tokens", field(5, 7)))
    put("sequence", prompt, rest=parameter("sequence_id", field(2, 7)))
    put("outputs", prompt, *returned, rest=field(6, field(1, "finish_reason")) + field(6, field(1, "num_input_tokens")))
    put("unknown-output", prompt, rest=field(6, field(1, "text_outputs")))
    put("shared-memory", rest=field(5, field(1, "text_input") + field(2, "BYTES") + field(3, 1) +
                                    field(4, field(1, "shared_memory_region") + field(2, field(3, "r")))))
    put("typed", rest=field(5, field(1, "text_input") + field(2, "BYTES") + field(3, 1) + field(5, field(8, "Hello"))))
    put("version", prompt, rest=field(2, "2"))
    for name, raw in {"empty": b"", "short-length": b"\1\0", "short": struct.pack("<I", 9) + b"x", "huge": b"\xff\xff\xff\xffx",
                      "two": element("a") + element("b"), "not-utf8": struct.pack("<I", 1) + b"\xff"}.items():
        put("element-" + name, ("text_input", "BYTES", [1], raw))
    for name, shape in {"none": [], "two": [2], "square": [1, 1], "negative": [-1], "huge": [1 << 62, 1 << 62]}.items():
        put("shape-" + name, ("text_input", "BYTES", shape, element("a")))
    put("twice", prompt, prompt)
    put("missing", flag("stream"))
    put("bool-2", prompt, flag("stream", b"\2"))
    put("too-few-contents", prompt, rest=field(5, field(1, "stream") + field(2, "BOOL") + field(3, 1)))
    for name, value in {"list": "[]", "deep": "[" * 5000, "not-json": "{", "n": {"n": 1 << 40}, "unknown": {"max_token": 1},
                        "type": {"temperature": {}}, "nan": {"temperature": "nan"}, "huge": {"temperature": 1e308, "top_p": -1e308}}.items():
        put("sampling-" + name, prompt, sampling(value))
