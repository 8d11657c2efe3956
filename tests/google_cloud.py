"""A server that answers as the Cloud TPU API and Cloud Storage do: queued resources, nodes, objects with generations.

It knows the requests that launch/ sends, and their errors by status. Sources: the REST references of tpu.googleapis.com
v2 and storage.googleapis.com v1, and the requests of google-cloud-tpu and google-cloud-storage.
"""

import contextlib
import http.server
import io
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

PROJECT, ZONE = "my-project", "us-west4-a"
PARENT = f"projects/{PROJECT}/locations/{ZONE}"
STATUSES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
STATUSES |= {409: "ALREADY_EXISTS", 412: "FAILED_PRECONDITION", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


class Reply(NamedTuple):
    """An answer.

    Attributes:
      status: The HTTP status.
      body: The body.
      length: The value of Content-Length, if it is not that of the body; the connection closes after the body.
    """

    status: int
    body: bytes
    length: int | None = None


def success(value: Any) -> Reply:
    return Reply(200, json.dumps(value).encode())


def failure(status: int, message: str = "failed", **details: Any) -> Reply:
    """Returns an error as Google's APIs send it: google.rpc.Status as JSON.

    Args:
      status: The HTTP status.
      message: The message.
      **details: Fields of one detail by the name of its type in google.rpc.
    """
    items = [{"@type": f"type.googleapis.com/google.rpc.{name}", **fields} for name, fields in details.items()]
    error = {"code": status, "message": message, "status": STATUSES.get(status, "INTERNAL"), "details": items}
    return Reply(status, json.dumps({"error": error}).encode())


class Objects:
    """Objects in memory, by bucket and name."""

    def __init__(self):
        self.stored: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.writes = 0

    def names(self, bucket: str) -> list[str]:
        return sorted(name for of, name in self.stored if of == bucket)

    def get(self, bucket: str, name: str) -> tuple[bytes, int] | None:
        return self.stored.get((bucket, name))

    def put(self, bucket: str, name: str, data: bytes) -> int:
        self.writes += 1
        self.stored[bucket, name] = (data, self.writes)
        return self.writes


class GoogleCloud:
    """The state of the cloud, and its answers.

    Args:
      objects: The objects of all buckets.

    Attributes:
      resources: Requests as they were sent, by name.
      changes: The creations and deletions that the API has accepted.
      requests: Number of requests.
    """

    def __init__(self, objects: Objects | None = None):
        self.objects = objects or Objects()
        self.resources: dict[str, dict] = {}
        self.changes: list[str] = []
        self.requests = 0
        self._lock = threading.RLock()

    # ---- What a test overrides -------------------------------------------------------------------------------------

    def fault(self, method: str, path: str) -> Reply | None:
        """Returns the answer to a request in the place of the API, or None."""

    def lost(self, method: str, path: str) -> Reply | None:
        """Returns the answer to a request that the API has carried out, in the place of the API's, or None."""

    def state(self, name: str) -> str | tuple[str, dict]:
        """Returns the state of a request that exists, and for a failed one the error."""
        return "ACTIVE"

    def nodes(self, name: str) -> dict[str, dict]:
        """Returns the nodes of a request by name, with the fields that differ from those of a node that is ready."""
        return {node: {} for node in self.node_names(name)}

    def created(self, name: str) -> Reply | None:
        """Is called before a request is accepted, and may answer in its place."""

    def accepted(self, name: str) -> None:
        """Is called when a request is accepted."""

    def deleted(self, name: str) -> None:
        """Is called when a deletion is accepted."""
        del self.resources[name]

    # ---- The APIs --------------------------------------------------------------------------------------------------

    def node_names(self, name: str) -> list[str]:
        (spec,) = self.resources[name]["tpu"]["nodeSpec"]
        if "nodeId" in spec:
            return [spec["nodeId"]]
        slices = spec.get("multisliceParams") or spec["multiNodeParams"]
        return [f"{slices['nodeIdPrefix']}-{index}" for index in range(slices["nodeCount"])]

    def answer(self, method: str, url: str, headers: Any, body: bytes) -> Reply:
        """Returns the answer to a request."""
        parts = urllib.parse.urlsplit(url)
        path, query = urllib.parse.unquote(parts.path), dict(urllib.parse.parse_qsl(parts.query))
        with self._lock:
            self.requests += 1
            if replaced := self.fault(method, path):
                return replaced
            if "/storage/" in path:
                reply = self._storage(method, path, query, headers, body)
            else:
                reply = self._tpu(method, path, query, body)
            return self.lost(method, path) or reply

    def _tpu(self, method: str, path: str, query: dict, body: bytes) -> Reply:
        if path.endswith("/nodes"):
            nodes = [item for name in self.resources if name in self.ready() for item in self.nodes(name).items()]
            return success({"nodes": [self._node(name, fields) for name, fields in nodes]})
        name = path.rpartition("/queuedResources")[2].strip("/")
        if method == "POST":
            name = query["queuedResourceId"]
            if name in self.resources:
                return failure(409, f"Resource '{PARENT}/queuedResources/{name}' already exists")
            if reply := self.created(name):
                return reply
            self.changes.append("create")
            self.resources[name] = json.loads(body)
            self.accepted(name)
            return success({"name": f"{PARENT}/operations/create-{name}", "done": False})
        if not name:
            return success({"queuedResources": [self._resource(one) for one in self.resources]})
        if name not in self.resources:
            return failure(404, f"Resource '{PARENT}/queuedResources/{name}' was not found")
        if method == "DELETE":
            self.changes.append("delete")
            self.deleted(name)
            return success({"name": f"{PARENT}/operations/delete-{name}", "done": False})
        return success(self._resource(name))

    def ready(self) -> list[str]:
        """Returns the names of requests that have nodes."""
        return list(self.resources)

    def _resource(self, name: str) -> dict:
        state = self.state(name)
        state, error = state if isinstance(state, tuple) else (state, None)
        described = {"state": state, **({"failedData": {"error": error}} if error else {})}
        return {"name": f"{PARENT}/queuedResources/{name}", "state": described, "tpu": self.resources[name]["tpu"]}

    def _node(self, name: str, fields: dict) -> dict:
        node = {"name": f"{PARENT}/nodes/{name}", "state": "READY", "networkEndpoints": [{"port": 8470}] * 2, **fields}
        return {key: value for key, value in node.items() if value is not None}

    def _storage(self, method: str, path: str, query: dict, headers: Any, body: bytes) -> Reply:
        bucket, objects, name = re.fullmatch(r".*/storage/v1/b/([^/]+)(/o/?)?(.*)", path, re.DOTALL).groups()
        if not objects:  # google-cloud-storage asks for the place of a bucket, for its traces
            return success({"name": bucket, "location": "US-WEST4"})
        if method == "POST":
            return self._upload(bucket, query, headers, body)
        if not name:
            return self._list(bucket, query)
        found = self.objects.get(bucket, name)
        if found is None or ("generation" in query and int(query["generation"]) != found[1]):
            return Reply(404, f"No such object: {bucket}/{name}".encode())
        start = int(re.match(r"bytes=(\d+)-", headers.get("range") or headers.get("Range") or "bytes=0-")[1])
        return Reply(206 if start else 200, found[0][start:])

    def _list(self, bucket: str, query: dict) -> Reply:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        names = [name for name in self.objects.names(bucket) if name.startswith(prefix)]
        nested = [name for name in names if delimiter and delimiter in name[len(prefix) :]]
        prefixes = {prefix + name[len(prefix) :].partition("/")[0] + "/" for name in nested}
        items = [self._metadata(bucket, name) for name in names if name not in nested]
        return success({"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)})

    def _upload(self, bucket: str, query: dict, headers: Any, body: bytes) -> Reply:
        kind = headers.get("content-type") or headers.get("Content-Type")
        kind = kind if isinstance(kind, bytes) else kind.encode()
        boundary = re.search(rb'boundary="?([^";]+)', kind)[1]
        metadata, data = (part.partition(b"\r\n\r\n")[2][:-2] for part in body.split(b"--" + boundary)[1:3])
        name = json.loads(metadata)["name"]
        found = self.objects.get(bucket, name)
        if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != (found[1] if found else 0):
            error = {"code": 412, "message": "conditionNotMet", "errors": [{"reason": "conditionNotMet"}]}
            return Reply(412, json.dumps({"error": error}).encode())
        self.objects.put(bucket, name, data)
        return success(self._metadata(bucket, name))

    def _metadata(self, bucket: str, name: str) -> dict:
        data, generation = self.objects.get(bucket, name)
        return {"bucket": bucket, "name": name, "generation": str(generation), "size": str(len(data))}


@contextlib.contextmanager
def serve(cloud: GoogleCloud) -> Iterator[str]:
    """Serves a cloud on loopback, and gives its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version, wbufsize, disable_nagle_algorithm = "HTTP/1.1", 1 << 16, True

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = cloud.answer(self.command, self.path, self.headers, body)
            self.send_response(reply.status)
            self.send_header("Content-Length", str(len(reply.body) if reply.length is None else reply.length))
            self.end_headers()
            self.wfile.write(reply.body)
            self.close_connection = reply.length is not None

        do_GET = do_POST = do_DELETE = do_PUT = answer

        def log_message(self, *arguments) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def without_sockets(cloud: GoogleCloud) -> Iterator[str]:
    """Answers the requests of this process without a connection, and gives the address. It is several times faster."""
    import requests
    import urllib3

    def send(adapter, request, **options):
        body = request.body or b""
        reply = cloud.answer(request.method, request.url, request.headers, body.encode() if type(body) is str else body)
        if reply.length is not None:
            raise requests.exceptions.ConnectionError("the connection broke")
        raw = urllib3.HTTPResponse(io.BytesIO(reply.body), status=reply.status, preload_content=False)
        return adapter.build_response(request, raw)

    with mock.patch.object(requests.adapters.HTTPAdapter, "send", send):
        yield "http://127.0.0.1:9"
