"""C2 (docs/faults.md): prompts that are far too long, beside well-behaved calls."""
import grpc
import pytest

from test_attacks import attackers, check_beside, p99_of
from test_limits import reason_of
from test_message_limits import Growth
from wire import Api

pytestmark = pytest.mark.full

MIB = 1 << 20
LONG = "'the keeper of the light ' * 160_000"  # 4 MB; the model takes 1024 tokens
# Each of these calls once took a gigabyte.
SEND_LONG_PROMPTS = f"""for method in ("Generate", "Score", "Tokenize"):
            try:
                api.call("InferenceService", method, model="small", text={LONG}, timeout=60)
            except Exception as error:
                assert "PROMPT_TOO_LONG" in str(error) or "bytes" in str(error) or "wait already" in str(error), error"""


def test_C2_long_prompts_cost_little_and_hold_up_nobody(make_server, model_directory):
    server = make_server()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    api = Api(server.grpc)
    api.call("InferenceService", "Generate", model="small", text="a")  # loads the model
    for method in ("Generate", "Score", "Tokenize"):
        with pytest.raises(grpc.RpcError) as refused:
            api.call("InferenceService", method, model="small", text=eval(LONG))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT and reason_of(refused.value) == "PROMPT_TOO_LONG"
    list_models = api.channel.unary_unary("/nibble.v1.ModelService/ListModels")
    calls = {
        "ListModels": lambda: list_models(b"", timeout=30),
        "Tokenize": lambda: api.call("InferenceService", "Tokenize", model="small", text="the keeper"),
        "GetLoad": lambda: api.call("ServerService", "GetLoad"),
    }
    quiet = p99_of(calls)
    growth = Growth(server)
    with attackers(server, 4, SEND_LONG_PROMPTS):
        attacked = p99_of(calls)
    print(f"peak of memory: {growth.peak() / MIB:.0f} MiB above the quiet server's")
    check_beside(quiet, attacked, slack=10)
    assert growth.peak() < 256 * MIB  # gRPC's buffers of four messages of 4 MB, and a piece of 16 KiB in the encoder
    api.close()
