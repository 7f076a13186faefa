"""Transport security with the real programs (rows S1, S2, S8, S9 of docs/faults.md): certificates, tokens, renewal."""
import concurrent.futures
import contextlib
import json
import os
import socket
import ssl
import subprocess
import threading
import time
import urllib.request

import grpc
import pytest

import pki
from conftest import BIN, ROOT, Server
from soon import soon

INFO = "/nibble.v1.ServerService/GetServerInfo"


def new_token(folder, name, role, *more):
    """Makes a token and appends its line to `folder`/tokens; returns the file of the token."""
    out = folder / f"{name}.token"
    line = subprocess.run([BIN / "nibble", "tokens", "new", name, "--role", role, "--out", out, *more], env={}, capture_output=True,
                          text=True, check=True).stdout
    assert out.stat().st_mode & 0o777 == 0o600 and out.read_text().strip() not in line
    with open(folder / "tokens", "a") as tokens:
        tokens.write(line)
    return out


class Secure:
    """A server with mutual TLS and tokens, and the certificates and tokens of its clients."""

    def __init__(self, folder, *flags, names="DNS:localhost,IP:127.0.0.1", address="127.0.0.1:0"):
        self.folder = folder
        self.ca = pki.Authority(folder / "pki")
        self.served = pki.put_in_place(folder / "served", *self.ca.issue("server0", names))
        self.client_ca = folder / "client_ca.crt"
        self.trust(self.ca)
        self.client = self.ca.issue("client", "URI:spiffe://tests/client")
        self.tokens = {role: new_token(folder, role, role) for role in ("viewer", "infer", "train", "admin")}
        self.server = Server(folder / "state", "--tls_cert", self.served[0], "--tls_key", self.served[1], "--tls_client_ca",
                             self.client_ca, "--tls_require_client_cert", "--token_file", folder / "tokens", *flags)
        self.server.grpc = address
        self.server.start()

    def trust(self, authority):
        """Makes this the authority that the server trusts for client certificates."""
        new = self.client_ca.with_suffix(".new")
        new.write_bytes(authority.certificate.read_bytes())
        os.replace(new, self.client_ca)

    def flags(self, role="admin", ca=None, client=None):
        certificate, key = client or self.client
        return ["--tls-ca", ca or self.ca.certificate, "--tls-cert", certificate, "--tls-key", key, "--token-file", self.tokens[role]]

    def run(self, *arguments, role="admin", ca=None, client=None, **options):
        return self.server.run(*self.flags(role, ca, client), *arguments, **options)

    def channel(self, client=None, ca=None):
        certificate, key = client or self.client
        credentials = grpc.ssl_channel_credentials((ca or self.ca.certificate).read_bytes(), key.read_bytes(), certificate.read_bytes())
        return grpc.secure_channel(self.server.grpc, credentials, options=[("grpc.use_local_subchannel_pool", 1)])

    def info(self, channel, timeout=20):
        metadata = [("authorization", "Bearer " + self.tokens["viewer"].read_text().strip())]
        return channel.unary_unary(INFO)(b"", metadata=metadata, timeout=timeout)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    secure = Secure(tmp_path_factory.mktemp("secure"))
    yield secure
    secure.server.stop()


def test_s1_s2_real_client_needs_a_token_and_its_role(secure, text_file):
    assert json.loads(secure.run("--json", "server", "info", role="viewer").stdout)["version"]
    refused = secure.run("datasets", "upload", text_file, "--name", "page", role="infer", check=False)
    assert refused.returncode == 9 and "PERMISSION_DENIED (ROLE)" in refused.stderr and "train" in refused.stderr
    secure.run("datasets", "upload", text_file, "--name", "page", role="train")
    without = [flag for flag in secure.flags() if flag != "--token-file" and flag != secure.tokens["admin"]]
    missing = secure.server.run(*without, "server", "info", check=False)
    assert missing.returncode == 9 and "UNAUTHENTICATED (TOKEN_MISSING)" in missing.stderr
    assert missing.stderr.endswith("  give your token's file with --token-file\n"), missing.stderr
    assert secure.run("health", "--grpc", role="viewer").stdout == "ready\n"
    asked = secure.server.run(*without, "health", "--grpc", check=False)
    assert asked.returncode == 9 and asked.stdout == "" and "UNAUTHENTICATED" in asked.stderr
    wrong = secure.folder / "wrong.token"
    wrong.write_text("nbl_wrong\n")
    invalid = secure.server.run(*without, "--token-file", wrong, "server", "info", check=False)
    assert invalid.returncode == 9 and "UNAUTHENTICATED (TOKEN_INVALID)" in invalid.stderr
    plain = secure.server.run("server", "info", check=False, timeout=60)
    assert plain.returncode == 5
    soon(lambda: {"ROLE", "TOKEN_MISSING", "TOKEN_INVALID"} <= {entry["reason"] for entry in secure.server.logged("refused")},
         "the refusals are in the log")
    # peer is "unknown" because gRPC does not give the address to the code that checks callers (auth_processor.cc).
    for entry in secure.server.logged("refused"):
        assert (entry["level"], entry["peer"], entry["certificate"]) == ("warning", "unknown", "uri:spiffe://tests/client")


def test_bad_handshakes_are_logged_as_json_and_do_not_flood_the_log(secure):
    host, _, port = secure.server.grpc.rpartition(":")
    attempts, before = 200, len(secure.server.logged("grpc"))
    began = time.monotonic()
    for _ in range(attempts):
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                while raw.recv(4096):
                    pass
    seconds = time.monotonic() - began
    soon(lambda: len(secure.server.logged("grpc")) > before, "a line of gRPC is in the log")
    lines = secure.server.logged("grpc")[before:]
    assert len(lines) <= 20 * (seconds + 2)  # at most kLinesASecond (server/library_log.cc) in each second
    assert {entry["level"] for entry in lines} == {"error"} and any("Handshake failed" in entry["text"] for entry in lines)
    with open(secure.server.state.parent / (secure.server.state.name + ".log"), errors="replace") as log:
        assert all(line.startswith("{") for line in log)


def test_a_token_is_not_sent_in_plaintext_to_another_machine(secure):
    result = subprocess.run([BIN / "nibble", "--server", "192.0.2.1:50051", "--token-file", secure.tokens["viewer"], "server", "info"],
                            env={}, capture_output=True, text=True, timeout=30)
    assert result.returncode == 4 and "plaintext" in result.stderr


def handshake(address, minimum, maximum, ca=None, client=None, name="localhost"):
    """Returns the version agreed on and the server's certificate. This side allows old versions: only the server can
    refuse them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = minimum, maximum
    context.set_alpn_protocols(["h2"])
    if ca is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context.load_verify_locations(ca)
    if client is not None:
        context.load_cert_chain(*client)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw, context.wrap_socket(raw, server_hostname=name) as wrapped:
        # With TLS 1.3 the server accepts (HTTP/2 settings) or refuses (an alert) the certificate after the handshake.
        wrapped.settimeout(20)
        if client is not None and not wrapped.recv(1):
            raise ssl.SSLError("closed without an alert")
        return wrapped.version(), wrapped.getpeercert(binary_form=True)


OLD, NEW = (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1), (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.fixture
def old_server(secure):
    """A server that accepts TLS 1.0 and 1.1. It shows that the client of this machine can use them, so that a failed
    handshake with nibbled is nibbled's refusal."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.load_cert_chain(*secure.served)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(raw, server_side=True).close()
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    yield "127.0.0.1:%d" % listener.getsockname()[1]
    listener.close()


def test_commands_of_security_md_make_a_certificate_that_clients_accept(tmp_path):
    text = (ROOT / "SECURITY.md").read_text()
    commands = text.split("#### Make a certificate", 1)[1].split("```", 2)[1]
    shown = subprocess.run(["bash", "-euc", commands], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert "DNS:nibble.example.org" in shown
    server = Server(tmp_path / "state", "--tls_cert", tmp_path / "server.crt", "--tls_key", tmp_path / "server.key").start()
    try:
        port = server.grpc.rpartition(":")[2]
        info = [BIN / "nibble", "--tls-ca", tmp_path / "ca.crt", "server", "info"]
        for host in ("127.0.0.1", "localhost"):
            assert subprocess.run([*info, "--server", f"{host}:{port}"], env={}, capture_output=True, timeout=60).returncode == 0
        named = [*info, "--server", f"127.0.0.1:{port}", "--tls-name"]
        assert subprocess.run([*named, "nibble.example.org"], env={}, capture_output=True, timeout=60).returncode == 0
        assert subprocess.run([*named, "elsewhere.example"], env={}, capture_output=True, timeout=60).returncode == 5
    finally:
        server.stop()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_s8_only_tls_1_2_and_1_3_are_served(secure, old_server):
    for version in OLD:
        assert handshake(old_server, version, version)[0] in ("TLSv1", "TLSv1.1")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(secure.server.grpc, version, version, client=secure.client)
    for version, name in zip(NEW, ("TLSv1.2", "TLSv1.3")):
        assert handshake(secure.server.grpc, version, version, secure.ca.certificate, secure.client)[0] == name


def test_s8_certificates_that_are_expired_foreign_or_missing_are_refused(secure):
    address = secure.server.grpc
    expired = secure.ca.issue("expired", "URI:spiffe://tests/client", expired=True)
    stranger = pki.Authority(secure.folder / "stranger")
    foreign = stranger.issue("foreign", "URI:spiffe://tests/client")
    for client in (expired, foreign):
        for version in NEW:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                handshake(address, version, version, secure.ca.certificate, client)
        with pytest.raises(grpc.RpcError) as error, secure.channel(client) as channel:
            secure.info(channel)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert secure.run("server", "info", client=client, check=False, timeout=60).returncode == 5
    # No certificate at all.
    with pytest.raises(grpc.RpcError) as error:
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(secure.ca.certificate.read_bytes())) as channel:
            secure.info(channel)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    # The client refuses a server of another authority, or with another name.
    assert secure.run("server", "info", ca=stranger.certificate, check=False, timeout=60).returncode == 5
    assert secure.run("--tls-name", "elsewhere.example", "server", "info", check=False, timeout=60).returncode == 5
    assert secure.run("--tls-name", "localhost", "server", "info").returncode == 0


def test_a_server_with_an_expired_certificate_does_not_start(secure, tmp_path):
    certificate, key = secure.ca.issue("late", "DNS:localhost", expired=True)
    result = subprocess.run([BIN / "nibbled", "--state_dir", tmp_path / "state", "--grpc_address", "127.0.0.1:0", "--http_address",
                             "127.0.0.1:0", "--tls_cert", certificate, "--tls_key", key],
                            env={}, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "--tls_cert" in result.stderr and "expired" in result.stderr


def test_s8_a_new_certificate_is_served_under_load_without_a_dropped_call(secure):
    """Two clients keep their connection, two make a new one for every call; the certificate is replaced twice."""
    stop, failures, calls = threading.Event(), [], [0, 0]

    def load(keep):
        channel = secure.channel()
        while not stop.is_set():
            try:
                secure.info(channel)
                calls[keep] += 1
            except grpc.RpcError as error:
                failures.append(f"{error.code()}: {error.details()}")
            if not keep:
                channel.close()
                channel = secure.channel()
        channel.close()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(load, keep) for keep in (0, 1, 0, 1)]
        try:
            for round_number in (1, 2):
                certificate, key = secure.ca.issue(f"server{round_number}", "DNS:localhost,IP:127.0.0.1")
                wanted = ssl.PEM_cert_to_DER_cert(certificate.read_text())
                before = list(calls)
                pki.put_in_place(secure.folder / "served", certificate, key)
                soon(lambda: handshake(secure.server.grpc, *NEW, secure.ca.certificate, secure.client)[1] == wanted,
                     "the new certificate is served")
                soon(lambda: calls[0] > before[0] and calls[1] > before[1], "both kinds of clients are served")
        finally:
            stop.set()
        for client in clients:
            client.result()  # raises what the client raised
    assert failures == []


def test_s8_another_client_authority_is_trusted_without_a_restart(tmp_path):
    """Clients of the new authority are let in, those of the previous one get no new connection; an open connection
    stays usable."""
    secure = Secure(tmp_path)
    other = pki.Authority(tmp_path / "other")
    newcomer = other.issue("newcomer", "URI:spiffe://tests/newcomer")

    def served(client):
        try:
            handshake(secure.server.grpc, *NEW, secure.ca.certificate, client)
        except (ssl.SSLError, ConnectionError):
            return False
        return True

    def check(client, let_in):
        assert served(client) == let_in
        assert secure.run("server", "info", client=client, check=False, timeout=60).returncode == (0 if let_in else 5)
        with secure.channel(client) as channel:
            try:
                secure.info(channel)
            except grpc.RpcError as error:
                assert not let_in and error.code() == grpc.StatusCode.UNAVAILABLE, error
            else:
                assert let_in

    try:
        with secure.channel() as kept:
            secure.info(kept)
            check(secure.client, let_in=True)
            check(newcomer, let_in=False)
            secure.trust(other)
            soon(lambda: served(newcomer), "the new authority is trusted")
            check(newcomer, let_in=True)
            check(secure.client, let_in=False)
            secure.info(kept)  # an open connection: a new one would be refused
        assert secure.server.stop() == 0
    finally:
        secure.server.stop()


UNUSABLE, USABLE = "the TLS files cannot be used: new connections get the last good ones", "the TLS files can be used again"


@pytest.mark.parametrize("fault", ["another key", pytest.param("half a certificate", marks=pytest.mark.full),
                                   pytest.param("half a key", marks=pytest.mark.full), "half an authority"])
def test_s8_unusable_files_are_reported_and_the_last_good_ones_serve(secure, tmp_path, fault):
    """An operator's mistake: open connections stay usable, new ones get the previous pair, and log, gauge and its alert
    report the fault."""
    def served():
        return handshake(secure.server.grpc, *NEW, secure.ca.certificate, secure.client)[1]

    def check_calls(kept):
        secure.info(kept)
        with secure.channel() as fresh:
            secure.info(fresh)
        assert secure.run("server", "info").returncode == 0
        with urllib.request.urlopen(f"http://{secure.server.http}/readyz", timeout=5) as answer:
            assert answer.status == 200

    certificate, key = secure.ca.issue("unused", "DNS:localhost,IP:127.0.0.1")
    file, flag = {"another key": ("tls.key", "--tls_key"), "half a certificate": ("tls.crt", "--tls_cert"),
                  "half a key": ("tls.key", "--tls_key"), "half an authority": ("client_ca.crt", "--tls_client_ca")}[fault]
    if fault == "another key":
        key = secure.ca.issue("other", "DNS:localhost,IP:127.0.0.1")[1]
    else:
        whole = {"tls.crt": certificate, "tls.key": key, "client_ca.crt": secure.ca.certificate}[file].read_bytes()
        half = tmp_path / file
        half.write_bytes(whole[:len(whole) // 2])
        certificate, key = {"tls.crt": (half, key), "tls.key": (certificate, half)}.get(file, (certificate, key))
    metrics = secure.server.metrics()
    assert metrics["nibble_tls_files_ok"] == 1
    ends = {of: metrics[f'nibble_tls_certificate_expiry_timestamp_seconds{{file="{of}"}}'] - time.time() for of in ("server", "client_ca")}
    # pki.py issues certificates for 7 days and makes authorities for 30.
    assert 0 < ends["server"] < 8 * 86400
    assert 29 * 86400 < ends["client_ca"] < 31 * 86400
    before, errors, mended = served(), len(secure.server.logged(UNUSABLE)), len(secure.server.logged(USABLE))
    with secure.channel() as kept:
        secure.info(kept)
        if fault == "half an authority":
            os.replace(half, secure.client_ca)
        pki.put_in_place(secure.folder / "served", certificate, key)
        # No scrape has happened since the change: the server checks the files on its own.
        soon(lambda: len(secure.server.logged(UNUSABLE)) > errors, "the error is logged")
        time.sleep(3)  # time for gRPC to read the files
        assert served() == before
        check_calls(kept)
        assert secure.server.metrics()["nibble_tls_files_ok"] == 0
        time.sleep(5)  # the server looks again (kTlsLook is 4 s), but logs the same error only once
        [logged] = secure.server.logged(UNUSABLE)[errors:]
        assert logged["level"] == "error"
        assert logged["error"].startswith(flag + ": ") and file in logged["error"] and "BEGIN" not in logged["error"]
        secure.trust(secure.ca)
        new = secure.ca.issue("mended", "DNS:localhost,IP:127.0.0.1")
        pki.put_in_place(secure.folder / "served", *new)
        wanted = ssl.PEM_cert_to_DER_cert(new[0].read_text())
        soon(lambda: served() == wanted, "the new pair is served")
        check_calls(kept)
        assert secure.server.metrics()["nibble_tls_files_ok"] == 1
        assert len(secure.server.logged(USABLE)) == mended + 1


def test_s9_tokens_are_in_no_log_and_no_metric(secure):
    """Uses the log of the tests above: principals `viewer` and `train` must have called."""
    log = (secure.server.state.parent / (secure.server.state.name + ".log")).read_text()
    with urllib.request.urlopen(f"http://{secure.server.http}/metrics") as answer:
        metrics = answer.read().decode()
    assert "nibble_tls_certificate_expiry_timestamp_seconds" in metrics
    for token in secure.tokens.values():
        assert token.read_text().strip() not in log + metrics
    principals = {json.loads(line).get("principal") for line in log.splitlines() if line.startswith("{")}
    assert {"viewer", "train"} <= principals
