"""vLLM's tests of its OpenAI server: what they need, and the cases that do not apply to nibbled."""
from suites import NotApplicable, Suite

OPENAI = "tests/entrypoints/openai/"
COMPLETION, CHAT = OPENAI + "completion/test_completion.py", OPENAI + "chat_completion/test_chat.py"
SUITE = Suite("vllm==0.33.0", "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
              ("tests/__init__.py", "tests/entrypoints/__init__.py", "tests/entrypoints/conftest.py", OPENAI + "__init__.py",
               OPENAI + "completion/__init__.py", OPENAI + "chat_completion/__init__.py", COMPLETION, CHAT))
MODELS = ["Qwen/Qwen3-0.6B", "HuggingFaceH4/zephyr-7b-beta"]
ADAPTER = "zephyr-lora"

RULES = [
    NotApplicable(r"test_(chat_)?completion_request_|test_null_top_logprobs", "a test of vLLM's own classes", r"vLLM's own code"),
    NotApplicable(r"test_single_completion|test_single_chat_session", "counts the tokens of vLLM's model",
                  r"prompt_tokens=17|assert CompletionUsa"),
    NotApplicable(r"test_complex_message_content|test_response_format_json", "expects the text of vLLM's model",
                  r"== ('2'|\{'result': 2\})"),
    NotApplicable(r"test_completion_truncation_side", "`return_token_ids`", r"return_token_ids: is not a field"),
    NotApplicable(r"test_logprob_token_ids", "`logprob_token_ids`", r"logprob_token_ids: is not a field"),
    NotApplicable(r"test_prompt_logprobs\S*[^-]-[01]\]|test_more_than_one_prompt_logprobs", "`prompt_logprobs`",
                  r"prompt_logprobs: is not a field"),
    NotApplicable(r"test_prompt_logprobs\S*-None\]", "expects vLLM's field `prompt_logprobs`, null, in the answer",
                  r"has no attribute 'prompt_logprobs'"),
    NotApplicable(r"test_parallel_streaming", "expects no more events than tokens: the last event has no token",
                  r"max_tokens=50 but chunk len is "),
    NotApplicable(r"test_chat_streaming", "expects text in the last event", r"None = ChoiceDelta\(content=None"),
    NotApplicable(r"stream_options", "`stream_options.continuous_usage_stats`", r"stream_options\S*: is not a field"),
    NotApplicable(r"test_batch_completions", "`use_beam_search`", r"use_beam_search: is not a field"),
    NotApplicable(r"test_echo_logprob_completion", "expects null as the first logprob, which is 0 (see [Endpoints](#endpoints))",
                  r"0\.0 is None"),
    NotApplicable(r"test_structured_outputs_choice_chat$", "expects that the model changes its mind", r"assert '(.+)' != '\1'"),
    NotApplicable(r"test_extra_fields_allowed", "expects that unknown fields are ignored", r"extra_field: is not a field"),
    NotApplicable(r"test_long_seed", "expects a message of vLLM", r"seed: is \S+, wanted a whole number of 64 bits"),
    NotApplicable(r"test_invocations", "`/invocations`", r"404 Client Error"),
]
