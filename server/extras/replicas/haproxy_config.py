"""Configuration of HAProxy in front of replicas, as text, with the rules of docker/haproxy.cfg for any number of
replicas.

Works from HAProxy 2.4 on. Servers have addresses that the runtime API replaces when a replica starts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from .placement import Address

# A request can be retried at the next replica only if all of it is buffered, so HAProxy waits for the body: clients
# send it after the head, and with the head alone HAProxy passes a 503 on.
_BUFFER_BYTES = 65_536
_NOWHERE = Address("127.0.0.1", 1)
# Reserve of a replica's connections: health checks, and scrapes of metrics, which bypass HAProxy.
_SPARE_CONNECTIONS = 48


@dataclass(frozen=True, kw_only=True)
class HaproxyConfig:
    """Settings of the configuration. `tags` maps a replica's name to the beginning of its ids."""

    tags: Mapping[str, str]
    folder: str  # folder of the sockets
    listener_fd: int
    max_connections: int  # limit of one replica; one address, such as HAProxy's, gets half
    has_shared_results: bool

    @property
    def admin_socket(self) -> str:
        """Path of the runtime API's socket."""
        return f"{self.folder}/admin"

    @property
    def operations_socket(self) -> str:
        """Path of the socket where the supervisor answers /metrics."""
        return f"{self.folder}/operations"

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends that list every replica.

        Replica state is tracked once, in the first, and applies to all except `ids`.
        """
        return ("any", "sessions", "ids") if self.has_shared_results else ("any", "sessions", "keys", "ids")

    def text(self, addresses: Mapping[str, Address]) -> str:
        """Return the configuration file. Replicas without an address get no requests."""
        parts = [self._global(), self._frontend(), self._ids(addresses)]
        parts += [self._backend(name, addresses) for name in self.backends[:-1]]
        return "\n".join(parts)

    def _global(self) -> str:
        per_replica = max(1, self.max_connections // 2 - _SPARE_CONNECTIONS)
        errors = "".join(f"    {line}\n" for line in map(_error, (502, 503, 504)))
        return f"""global
    maxconn {self.max_connections * len(self.tags)}
    no strict-limits
    tune.bufsize {_BUFFER_BYTES}
    stats socket {self.admin_socket} level admin mode 600

defaults
    mode http
    option http-no-delay
    option http-buffer-request
    timeout connect 2s
    timeout http-request 10s
    timeout client 75s
    timeout server 75s
    timeout http-keep-alive 130s
    timeout queue 10s
    retries {max(2, len(self.tags))}
    option redispatch 1
    .if version_atleast(3.2)
        retry-on conn-failure 429 503
    .else
        retry-on conn-failure 503
    .endif
    default-server check inter 1s fall 2 rise 1 maxconn {per_replica}
{errors}"""

    def _frontend(self) -> str:
        keys = "" if self.has_shared_results else "    use_backend keys if { req.hdr(Idempotency-Key) -m found }\n"
        return f"""frontend api
    bind fd@{self.listener_fd}
    use_backend operations if {{ path /metrics }}
    use_backend ids if {{ path_reg ^/(result|v1/responses|v1/files|v1/batches)/ }}
    use_backend ids if {{ path /v1/responses }} {{ {_PREVIOUS} -m beg resp_ }}
    use_backend ids if {{ path /v1/batches }} {{ {_FILE} -m beg file- }}
    use_backend sessions if {{ req.hdr(X-Session-Id) -m found }}
{keys}    default_backend any

backend operations
    server supervisor unix@{self.operations_socket} no-check
"""

    def _ids(self, addresses: Mapping[str, Address]) -> str:
        """Build the backend that sends each id to the replica that created it, even while that replica drains."""
        rules = "".join(_rules(name, tag) for name, tag in self.tags.items())
        if self.has_shared_results:  # once the replica is gone, any other one answers for it
            check = "    option httpchk\n    http-check send meth GET uri /health\n    http-check expect status 200\n"
            return f"backend ids\n{check}{rules}{self._servers(addresses)}"
        # While a replica is away no other one knows its ids, and a 404 from another one would be wrong.
        return f"backend ids\n    no option redispatch\n{rules}{self._servers(addresses, ' no-check')}"

    def _backend(self, name: str, addresses: Mapping[str, Address]) -> str:
        if name == "any":
            check = "    option httpchk\n    http-check send meth GET uri /ready\n    http-check expect status 200\n"
            return f"backend any\n    balance leastconn\n{check}{self._servers(addresses)}"
        header = {"sessions": "X-Session-Id", "keys": "Idempotency-Key"}[name]
        servers = "".join(
            f"    server {server} {addresses.get(server, _NOWHERE)} no-check track any/{server}\n"
            for server in self.tags
        )
        return f"backend {name}\n    balance hdr({header})\n    hash-type consistent\n{servers}"

    def _servers(self, addresses: Mapping[str, Address], options: str = "") -> str:
        return "".join(
            f"    server {name} {addresses.get(name, _NOWHERE)}{options}{'' if name in addresses else ' disabled'}\n"
            for name in self.tags
        )


_PREVIOUS = "req.body,json_query('$.previous_response_id')"
_FILE = "req.body,json_query('$.input_file_id')"


def _rules(name: str, tag: str) -> str:
    return f"""    use-server {name} if {{ path_reg ^/[a-z0-9/]*/(resp_|file-|batch_)?{tag} }}
    use-server {name} if {{ {_PREVIOUS} -m beg resp_{tag} }}
    use-server {name} if {{ {_FILE} -m beg file-{tag} }}
"""


def _error(status: int) -> str:
    """Return HAProxy's own answer with this status, in the form of our errors."""
    message = {
        502: "the replica ended before it answered; try again",
        503: "no replica takes this now; try again in a moment",
        504: "the replica did not answer in time; try again",
    }[status]
    error = {"message": message, "type": "service_unavailable", "param": None, "code": "replica_unavailable"}
    body = json.dumps({"error": error})
    return f"http-error status {status} content-type application/json string '{body}' hdr Retry-After 2"
