"""C2 (docs/faults.md): prompts that are far too long, beside well-behaved calls."""

import grpc
import pytest

from attacks import attackers, check_beside, p99_of
from test_limits import reason_of
from test_message_limits import Growth, resident
from wire import Api, message
from soon import soon

pytestmark = pytest.mark.full

MIB = 1 << 20
LONG = "'the keeper of the light ' * 160_000"  # 4 MB; the model takes 1024 tokens
# Without limits, each of these calls would take a gigabyte.
SEND_LONG_PROMPTS = f"""for method in ("Generate", "Score", "Tokenize"):
            try:
                api.call("InferenceService", method, model="small", text={LONG}, timeout=60)
            except Exception as error:
                assert "PROMPT_TOO_LONG" in str(error) or "bytes" in str(error) or "already waiting" in str(error), error"""

# Chats with small contents: a role is rendered too, and the template adds text around each message. Both chats are
# nearly as large as a text may be. The first turn of the attack stores them in `chats`: building them takes long.
LARGE_CHATS = {"a role": 'message("ChatInput", messages=[message("ChatMessage", role="r " * 500_000)])',
               "many messages": 'message("ChatInput", messages=[message("ChatMessage", role="user")] * 20_000)'}
SEND_LARGE_CHATS = f"""globals().setdefault("chats", []) or chats.extend([{", ".join(LARGE_CHATS.values())}])
        for chat in chats:
            for method in ("Tokenize", "RenderTemplate"):
                try:
                    api.call("InferenceService", method, model="small", chat=chat, timeout=60)
                except Exception as error:  # this client takes no answer of more than 4 MiB
                    assert "already waiting" in str(error) or "larger than max" in str(error), error"""


@pytest.fixture
def served(make_server, model_directory):
    """A server with the model "small" in memory, and its API."""
    server = make_server()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    api = Api(server.grpc)
    api.call("InferenceService", "Generate", model="small", text="a")  # loads the model
    yield server, api
    api.close()


def well_behaved(api):
    list_models = api.channel.unary_unary("/nibble.v1.ModelService/ListModels")
    return {
        "ListModels": lambda: list_models(b"", timeout=30),
        "Tokenize": lambda: api.call("InferenceService", "Tokenize", model="small", text="the keeper"),
        "GetLoad": lambda: api.call("ServerService", "GetLoad"),
    }


def check_attack(server, api, body, max_bytes):
    """Times other calls while four callers run `body`, and checks the memory that these take; returns the Growth."""
    calls = well_behaved(api)
    quiet = p99_of(calls)
    growth = Growth(server)
    with attackers(server, 4, body):
        attacked = p99_of(calls)
    print(f"peak memory: {growth.peak() / MIB:.0f} MiB above the quiet server")
    check_beside(quiet, attacked, slack=10)
    assert growth.peak() < max_bytes
    return growth


def test_C2_long_prompts_cost_little_and_hold_up_no_other_call(served):
    server, api = served
    for method in ("Generate", "Score", "Tokenize"):
        with pytest.raises(grpc.RpcError) as refused:
            api.call("InferenceService", method, model="small", text=eval(LONG))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT and reason_of(refused.value) == "PROMPT_TOO_LONG"
    # Allows for gRPC's buffers of four messages of 4 MB, and a piece of 32 KiB in the encoder.
    check_attack(server, api, SEND_LONG_PROMPTS, 256 * MIB)


def test_C2_large_chats_are_encoded_one_at_a_time(served):
    server, api = served
    for what, chat in LARGE_CHATS.items():
        rendered = api.call("InferenceService", "RenderTemplate", model="small", chat=eval(chat), timeout=60)
        print(f"{what}: {len(rendered.text)} bytes, {len(rendered.token_ids)} tokens")
        with pytest.raises(grpc.RpcError) as refused:
            api.call("InferenceService", "Generate", model="small", chat=eval(chat), timeout=60)
        assert reason_of(refused.value) == "PROMPT_TOO_LONG"
    # Allows for 256 times the largest text, and for the messages and their renderings.
    growth = check_attack(server, api, SEND_LARGE_CHATS, (256 + 128) * MIB)
    soon(lambda: resident(server) - growth.before <= 64 * MIB,
         lambda: f"{(resident(server) - growth.before) / MIB:.0f} MiB are freed")
    over = message("ChatInput", messages=[message("ChatMessage", role="user")] * 40_000)
    with pytest.raises(grpc.RpcError) as refused:
        api.call("InferenceService", "RenderTemplate", model="small", chat=over)
    assert reason_of(refused.value) == "PROMPT_TOO_LONG"
