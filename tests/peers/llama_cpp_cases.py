"""llama.cpp's tests of its server: what they need, and the cases that do not apply to nibbled."""
from suites import NotApplicable, Suite

FOLDER = "vendor/llama.cpp/tools/server/tests/"
# The other files test only endpoints and options of llama-server, such as slots, /infill and /rerank.
FILES = [f"unit/test_{name}.py" for name in ("basic", "chat_completion", "compat_oai_responses", "completion", "embedding", "security",
                                             "tokenize", "tool_call")]
SUITE = Suite("llama-cpp-python==0.3.36", "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
              (FOLDER + "conftest.py", FOLDER + "pytest.ini", *(FOLDER + name for name in FILES)))

MODELS = ["davinci-002", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "gpt-4.1", "text-embedding-3-small", "codellama70b"]

NATIVE = "endpoints of llama-server: /completion, /health, /props, /slots and /chat/completions/input_tokens"
OPTION = "options of llama-server: "

RULES = [
    NotApplicable(r"test_basic.*(multiple_addresses|load_split_model|aliases_and_tags)",
                  OPTION + "addresses with a key, a file of the model, aliases", "no such option: (api_key|model_hf_repo|model_tags)"),
    NotApplicable(r"test_basic.*test_server_models", "expects one model", r"assert \d+ == 1"),
    NotApplicable(r"test_basic.*test_no_ui", "a web page", "assert 404 == 200"),
    NotApplicable(r"test_basic.*", NATIVE, "no such endpoint"),

    NotApplicable(r"chat_template|chatml|This is not a chat template|test_tool_call",
                  OPTION + "another chat template", "no such option: chat_template"),
    NotApplicable(r"test_chat_completion\[|::test_(chat_)?completion_with_openai_library",
                  "expects a `system_fingerprint` that begins with b", r"'fp_\w+' is not None and False|= 'fp_\w+'\.startswith"),
    NotApplicable(r"cached_tokens|usage_(single|multiple)", "counts the tokens of llama.cpp's models", r"assert \d+ == "),
    NotApplicable(r"test_chat_completion_stream|test_logprobs_stream", "expects null as the first text of a stream, which is empty",
                  r"assert '' is None"),
    NotApplicable(r"response_format\[response_format[01]-", "`response_format.schema`", "response_format.schema: is not a field"),
    NotApplicable(r"response_format\[response_format2-", "`response_format.json_schema` without `name`", "name: is missing or empty"),
    NotApplicable(r"with_json_schema", "`json_schema`", "json_schema: is not a field"),
    NotApplicable(r"with_grammar", "`grammar`", "grammar: is not a field"),
    NotApplicable(r"invalid_chat_completion_req\[messages7\]", "expects an error for two answers in a row", r"assert \(200 == 400"),
    NotApplicable(r"timings_per_token|llama_telemetry", "`timings_per_token`", "timings_per_token: is not a field"),
    NotApplicable(r"return_progress", "`return_progress`", "return_progress: is not a field"),
    NotApplicable(r"multiple_choices", "`id_slot`", "id_slot: is not a field"),
    NotApplicable(r"verbose_debug", "`verbose`", "verbose: is not a field"),
    NotApplicable(r"context_size_exceeded", "expects an error type of llama.cpp",
                  "'invalid_request_error' == 'exceed_context_size_error'"),
    NotApplicable(r"token_count", NATIVE, "no such endpoint"),

    NotApplicable(r"test_logit_bias$|test_logit_bias\[True|tokens_input|test_tokenize",
                  "`/tokenize` with `content`, which is `prompt` here", "prompt: wanted either prompt or messages"),
    NotApplicable(r"unified|cancel_request|prompt_cache|backend_sampling", OPTION + "a shared KV cache, slots, a place of sampling",
                  "no such option: (kv_unified|server_slots|backend_sampling)"),
    NotApplicable(r"test_completion.py::(?!\S*openai_library)", NATIVE, "no such endpoint: /completion"),

    NotApplicable(r"mixed_input\[-False\]", "expects a vector of an empty text", r"input\[0\]: has no tokens"),
    NotApplicable(r"mixed_input\[input(3|5|7|8|9|10)-|content_text_same", "`input` as an object, or with texts among token ids",
                  "input: wanted a text, token ids, or an array"),
    NotApplicable(r"pooling_none", OPTION + "pooling `none`", "no such option: pooling"),
    NotApplicable(r"embedding_error_prompt_too_long", "expects a message of llama.cpp", "'too large' in"),
    NotApplicable(r"test_security", OPTION + "a key of one's choice, a server of servers, images",
                  "no such option: (api_key|router|images)"),
]
