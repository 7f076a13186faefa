"""Names of Services for the pods of a node without kube-proxy: each name has the addresses of the Service's ready pods,
as that of a headless Service has."""
import ipaddress
import socket
import struct
import threading

from kubernetes_api import Refused

# Of RFC 1035: the flags of an answer, the record type A, and two error codes.
ANSWER, ADDRESS, NO_SUCH_NAME, FAILURE = 0x8180, 1, 3, 2


class NameServer:
    """Answers queries of the form NAME.NAMESPACE.svc, with or without the cluster's domain, on UDP. One thread."""

    def __init__(self, api, address, domain="cluster.local"):
        self.api, self.domain = api, domain
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 53))
        threading.Thread(target=self.serve, daemon=True).start()

    def stop(self):
        self.socket.close()

    def serve(self):
        while True:
            try:
                query, sender = self.socket.recvfrom(512)
                self.socket.sendto(self.answer(query), sender)
            except OSError:
                return  # stopped

    def answer(self, query):
        """Returns the answer, which repeats only the question of the query (RFC 1035, section 4.1)."""
        labels, at = [], 12
        while length := query[at]:
            labels.append(query[at + 1:at + 1 + length].decode())
            at += 1 + length
        question = query[12:at + 5]
        (kind,) = struct.unpack("!H", query[at + 1:at + 3])
        try:
            addresses, code = self.addresses(".".join(labels)), 0
        except KeyError:
            addresses, code = [], NO_SUCH_NAME
        except (OSError, Refused):
            addresses, code = [], FAILURE  # the API server does not answer
        if kind != ADDRESS:
            addresses = []
        # 0xC00C: the name is that of the question. One second: pods come and go.
        records = [struct.pack("!HHHIH", 0xC00C, ADDRESS, 1, 1, 4) + ipaddress.IPv4Address(one).packed for one in addresses]
        return query[:2] + struct.pack("!HHHHH", ANSWER | code, 1, len(records), 0, 0) + question + b"".join(records)

    def addresses(self, name):
        """The addresses of a Service. Raises KeyError for an unknown one."""
        parts = name.lower().removesuffix(f".{self.domain}").split(".")
        if len(parts) != 3 or parts[2] != "svc":
            raise KeyError(name)
        service, namespace, _ = parts
        if self.api.code("GET", f"/api/v1/namespaces/{namespace}/services/{service}") == 404:
            raise KeyError(name)
        slices = self.api.call("GET", f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
                               labelSelector=f"kubernetes.io/service-name={service}")["items"]
        return [address for one in slices for endpoint in one["endpoints"] or [] if endpoint["conditions"].get("ready")
                for address in endpoint["addresses"]]
