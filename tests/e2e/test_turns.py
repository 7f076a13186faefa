"""C4 (docs/faults.md): one principal floods the server while another one calls now and then."""
import time

import grpc
import pytest

from attacks import attackers, check_beside, p99_of
from conftest import Server
from test_limits import reason_of
from test_security import new_token
from wire import Api, message

pytestmark = pytest.mark.full

# Requests as many tokens as the model takes, in a loop, without a pause after a refusal.
FLOOD = """try:
            api.call("InferenceService", "Generate", message("GenerateRequest", model="small", text="a", priority={priority},
                stopping=message("Stopping", max_tokens=1000, ignore_eos=True)), timeout=120)
        except Exception as error:
            assert "QUEUE_FULL" in str(error) or "already waiting" in str(error) or "longer than" in str(error), error"""


@pytest.fixture
def server(tmp_path, model_directory):
    tokens = {name: new_token(tmp_path, name, role) for name, role in (("flood", "infer"), ("quiet", "infer"), ("boss", "operator"),
                                                                       ("admin", "admin"))}
    server = Server(tmp_path / "state", "--token_file", tmp_path / "tokens")
    server.client_flags = ["--token-file", tokens["admin"]]
    server.start()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.tokens = {name: file.read_text().strip() for name, file in tokens.items()}
    yield server
    server.stop()


def generate(api, **fields):
    return api.call("InferenceService", "Generate", message("GenerateRequest", model="small", text="the keeper", stopping=message(
        "Stopping", max_tokens=4, ignore_eos=True), **fields), timeout=120)


def test_C4_a_flood_of_one_principal_holds_up_no_other(server):
    api = Api(server.grpc, server.tokens["quiet"])
    with pytest.raises(grpc.RpcError) as refused:
        generate(api, priority=100)
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED and reason_of(refused.value) == "ROLE"
    generate(api)
    calls = {"Generate": lambda: generate(api)}
    quiet = p99_of(calls)
    with attackers(server, 40, FLOOD.format(priority=0), server.tokens["flood"]):
        attacked = p99_of(calls)
    check_beside(quiet, attacked, slack=10)
    # A principal that may set priorities holds up the others for ten seconds, not forever: waiting requests rise by one
    # priority in each kAgeing, 100 ms (server/serve/waiting_queue.h). The limit leaves time for a busy machine.
    with attackers(server, 40, FLOOD.format(priority=100), server.tokens["boss"]):
        began = time.monotonic()
        generate(api)
        took = time.monotonic() - began
    print(f"beside a flood of priority 100: {took:.1f} s")
    assert took < 60
    api.close()
