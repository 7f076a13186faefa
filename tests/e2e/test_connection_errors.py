"""`nibble` explains why it cannot reach its server, with a different sentence for each cause."""
import contextlib
import socket
import subprocess

import pytest

import pki
from conftest import BIN, Server


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A server with TLS, whose certificate is for localhost only; a server without TLS; one like the first that requires
    client certificates; the authority of the first and third, and another authority."""
    folder = tmp_path_factory.mktemp("servers")
    authority = pki.Authority(folder / "pki")
    certificate, key = pki.put_in_place(folder / "served", *authority.issue("server", "DNS:localhost"))
    secure = Server(folder / "secure", "--tls_cert", certificate, "--tls_key", key)
    plain = Server(folder / "plain")
    mutual = Server(folder / "mutual", "--tls_cert", certificate, "--tls_key", key, "--tls_client_ca", authority.certificate,
                    "--tls_require_client_cert")
    started = (secure, plain, mutual)
    for server in started:
        server.start()
    yield *started, authority, pki.Authority(folder / "other_pki")
    for server in started:
        server.stop()


@contextlib.contextmanager
def silent_address():
    """HOST:PORT that is taken, but on which nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield "127.0.0.1:%d" % unused.getsockname()[1]


def nibble(*arguments):
    return subprocess.run([BIN / "nibble", *arguments], env={}, capture_output=True, text=True, timeout=120)


def test_every_cause_has_its_own_sentence(servers):
    secure, plain, mutual, authority, other = servers
    with silent_address() as silent:
        trusts, trusts_other = ("--tls-ca", authority.certificate), ("--tls-ca", other.certificate)
        port, mutual_port = (server.grpc.rpartition(":")[2] for server in (secure, mutual))
        (certificate, key), (wrong, wrong_key) = (issuer.issue("client", "DNS:client") for issuer in (authority, other))
        for address, flags, sentence in (
                (silent, (), "is nibbled running there?"),
                ("nosuch.invalid:1", (), "this host has no address"),
                (secure.grpc, (), "if it uses TLS, give --tls-ca or --tls"),
                (f"localhost:{port}", trusts_other, "is not signed by an authority of --tls-ca"),
                (f"localhost:{port}", ("--tls",), "give the server's authority with --tls-ca"),
                (secure.grpc, trusts, "is for another name; give that name with --tls-name"),
                (f"localhost:{mutual_port}", trusts, "requires a client certificate, give yours with --tls-cert and --tls-key"),
                (f"localhost:{mutual_port}", (*trusts, "--tls-cert", wrong, "--tls-key", wrong_key),
                 "it may not accept the client certificate of --tls-cert"),
                (plain.grpc, trusts, "the server does not use TLS; leave out the --tls options")):
            refused = nibble("--server", address, *flags, "server", "load")
            assert refused.returncode == 5, (address, refused)
            lines = refused.stderr.splitlines()
            assert len(lines) == 2 and lines[0].startswith("error: UNAVAILABLE: "), refused.stderr
            assert lines[1].startswith(f"  server: {address} (--server): ") and lines[1].endswith(sentence), refused.stderr
    assert nibble("--server", f"localhost:{port}", *trusts, "server", "load").returncode == 0
    assert nibble("--server", f"localhost:{mutual_port}", *trusts, "--tls-cert", certificate, "--tls-key", key, "server",
                  "load").returncode == 0
    assert nibble("--server", secure.grpc, *trusts, "--tls-name", "localhost", "server", "load").returncode == 0


def test_health_names_the_address_that_it_asked_and_its_option(servers):
    plain = servers[1]
    assert nibble("health", "--http", plain.http).stdout == "ready\n"
    assert nibble("--server", plain.grpc, "health").stdout == "ready\n"
    with silent_address() as silent:
        refused = nibble("health", "--http", silent)
        assert refused.returncode == 5
        assert f"--http: no answer from http://{silent}/readyz: " in refused.stderr and "--server" not in refused.stderr
        for options in (["--grpc"], []):
            refused = nibble("--server", silent, "health", *options)
            assert refused.returncode == 5 and f"server: {silent} (--server): is nibbled running there?" in refused.stderr
