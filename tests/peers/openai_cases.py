"""openai-python's tests of its resources: what they need, and the cases that do not apply to nibbled."""
from suites import NotApplicable, Suite

SUITE = Suite("openai==2.54.0", "e3e6f8bc1ba30ddf381ace1a14340eed381cb984a1a59bd0f34b5be3b5d49cfa", ("tests/", "pyproject.toml"))

# Placeholders of the suite, by the kind of object.
DELETED_MODEL = "ft:gpt-4o-mini:acemeco:suffix:abc123"
MODELS = ["gpt-3.5-turbo-instruct", "gpt-5.4", "gpt-4o", "gpt-4o-mini", "text-embedding-3-small"]
FILES = ["file-abc123", "string"]
JOB = "ft-AF1WoRqd3aJAHsqc9NY7iL8F"
RESPONSE = "resp_677efb5139a88190b512bc3fef8e535d"
RESPONSES = [RESPONSE, "response_id"]

SERVED = ["chat", "fine_tuning", "responses", "beta/responses", "test_completions.py", "test_embeddings.py", "test_files.py",
          "test_models.py", "test_responses.py", "beta/test_responses.py"]
NO_ENDPOINT = r"is not an endpoint of this server"
NOT_ALLOWED = NO_ENDPOINT + r"|Error code: 405 "

RULES = [
    NotApplicable(r"chat/completions/test_messages|chat/test_completions\S*_(retrieve|update|list|delete)\b|"
                  r"chat/test_completions\S*_list_with_all_params", "no stored completions", NOT_ALLOWED),
    NotApplicable(r"/test_completions\S*create_with_all_params", "`logit_bias` with the key \"foo\"",
                  r'logit_bias: has the key "foo", wanted a token id'),
    NotApplicable(r"fine_tuning/alpha/", "no graders", NO_ENDPOINT),
    NotApplicable(r"fine_tuning/checkpoints/", "no permissions of checkpoints", NO_ENDPOINT),
    NotApplicable(r"fine_tuning/\S*test_method_list(_events)?_with_all_params", "`after` is a placeholder, or `limit` is 0",
                  r"after: is not the id of|limit: is \"0\""),
    NotApplicable(r"fine_tuning/test_jobs\S*create_with_all_params", "`integrations`", r"integrations: is not supported"),
    NotApplicable(r"test_embeddings\S*create_with_all_params", "`dimensions`", r"dimensions: is not supported"),
    NotApplicable(r"test_embeddings\S*create\[(strict|aiohttp)\]", "the library cannot validate base64 vectors, its own default, strictly",
                  r"APIResponseValidationError"),
    NotApplicable(r"test_files\S*_create", "`purpose` assistants", r'purpose: is "assistants", wanted "fine-tune"'),
    NotApplicable(r"test_files\S*list_with_all_params", "`limit` is 0", r'limit: is "0"'),
    NotApplicable(r"test_responses\S*_create_with_all_params", "`include` with another value", r"include: has \"file_search_call"),
    NotApplicable(r"test_responses\S*_create_", "without `model`", r"model: is missing"),
    NotApplicable(r"test_responses\S*_retrieve\w*_overload_2", "a kept response as a stream", r"stream: is not supported"),
    NotApplicable(r"api_resources/test_responses\S*_retrieve_with_all_params", "`include` of a kept response", r"include\[\]: is not"),
    NotApplicable(r"test_responses\S*_cancel", "no response runs in the background", r"Only responses that run in the background"),
    NotApplicable(r"test_responses\S*_compact|responses/test_input_tokens", "no endpoints that compact or count input",
                  r"Error code: 405 "),
    NotApplicable(r"responses/test_input_items\S*with_all_params", "`limit` is 0", r"limit: is \"0\""),
    NotApplicable(r"beta/(?!\S*_delete)", "`beta` in the query", r"beta: is not a parameter"),
]

# Of the other resources, the synchronous client without variants: each case shows that an endpoint does not exist.
OTHERS = r"::Test(?!Async)\w+::test_method_\w+\[strict\]"
OTHER_RULES = [NotApplicable("", "no such endpoints", NO_ENDPOINT)]
