"""A cluster's API server in plain JSON, without the model objects of the client library.

Making model objects of a thousand pods takes longer than fetching them, so everything here is dicts.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from bireme.clusters.kubeconfig import load
from bireme.core.errors import BiremeError

MERGE_PATCH = "application/merge-patch+json"

_PARALLEL = 16
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_BUSY_TRIES = 10
_LEADER_SECONDS = 10
_PASSES = re.compile(rb"etcdserver: .*(leader changed|no leader|request timed out|too many requests)")

T = TypeVar("T")
R = TypeVar("R")


class ApiError(BiremeError):
    """The API server refused a request; ``status`` is the HTTP status, or 0 when it could not be reached."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Api:
    """The API server that a kubeconfig names, or that of the pod in which this runs.

    ``kubeconfig``: the file, or None for the account of the pod; ``context``: one of its contexts, or None
    for the current one. Raises BiremeError when neither can be used. Requests are thread-safe.
    """

    def __init__(self, kubeconfig: Path | None, context: str | None = None) -> None:
        # Imported here because it takes half a second, which `bireme --help` should not.
        from kubernetes import config
        from kubernetes.client import ApiClient, Configuration

        options = Configuration()
        options.connection_pool_maxsize = _PARALLEL + 4
        # A server that cannot be reached is an error at once.
        options.retries = False
        if kubeconfig is None:
            try:
                config.load_incluster_config(client_configuration=options)  # type: ignore[no-untyped-call]
            except (config.ConfigException, OSError) as error:
                raise BiremeError(f"this is not a pod of a cluster: {error}") from error
        else:
            load(kubeconfig, context, options)
        self._client: Any = ApiClient(options)
        self.server: str = self._client.configuration.host

    def close(self) -> None:
        """Close the connections."""
        self._client.rest_client.close()

    def greet(self) -> None:
        """Wait until the server says anything, a refusal too. Raises ApiError after ten seconds without.

        Helm would wait forever for a server that takes connections and does not answer.
        """
        try:
            self._send("GET", "/version", seconds=_CONNECT_SECONDS)
        except ApiError as error:
            if not error.status:
                raise

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """The object or list at ``path``, e.g. ``/api/v1/nodes``. Raises ApiError."""
        return _object(self._send("GET", path, query=query))

    def find(self, path: str) -> dict[str, Any] | None:
        """The object at ``path``, or None when there is none. Raises ApiError for anything else."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, unless: Collection[int] = (), **query: str) -> list[dict[str, Any]]:
        """The objects of the list at ``path``; none for an HTTP status in ``unless``. Raises ApiError."""
        try:
            found: list[dict[str, Any]] = self.get(path, **query)["items"] or []
        except ApiError as error:
            if error.status not in unless:
                raise
            return []
        return found

    def among(self, namespaces: Iterable[str], group: str, plural: str, **query: str) -> list[dict[str, Any]]:
        """The objects in ``namespaces``, in all of them if none is named. Raises ApiError."""
        paths = [f"{group}/namespaces/{each}/{plural}" for each in namespaces] or [f"{group}/{plural}"]
        return [item for path in paths for item in self.items(path, (), **query)]

    def stream(self, path: str, endless: bool = False, **query: str) -> Iterator[bytes]:
        """The text at ``path``, piece by piece as it arrives; with ``endless`` there is no time-out.

        Raises ApiError.
        """
        seconds = None if endless else _READ_SECONDS
        return _chunks(self._send("GET", path, query=query, seconds=seconds, accept="*/*"))

    def proxied(
        self, namespace: str, name: str, port: int, path: str, seconds: float, kind: str = "services"
    ) -> dict[str, Any]:
        """What a Service (or one of ``pods``) answers to a GET of ``path`` within ``seconds``.

        Raises ApiError.
        """
        url = f"/api/v1/namespaces/{namespace}/{kind}/{name}:{port}/proxy/{path}"
        response = self._send("GET", url, seconds=seconds)
        try:
            answer = json.loads(_body(response))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ApiError(response.status, f"what {name} answers to {path} is no JSON object")
        return answer

    def create(self, path: str, body: Mapping[str, Any], **query: str) -> dict[str, Any]:
        """Create ``body`` in the collection at ``path``; with ``dryRun="All"`` only try. Raises ApiError."""
        return _object(self._send("POST", path, body, query))

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Put ``body`` in place of the object at ``path``, if it is of the version in it. Raises ApiError."""
        return _object(self._send("PUT", path, body))

    def patch(
        self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH, **query: str
    ) -> dict[str, Any]:
        """Patch the object at ``path``. Raises ApiError."""
        return _object(self._send("PATCH", path, body, query, content_type))

    def delete(self, path: str, **query: str) -> None:
        """Delete the object (or the collection) at ``path``; fine when there is none. Raises ApiError."""
        try:
            self._send("DELETE", path, query=query).drain_conn()
        except ApiError as error:
            if error.status != 404:
                raise

    def each(self, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """``call`` for every item, several at a time; the results in order. Raises what a call raises."""
        with ThreadPoolExecutor(_PARALLEL) as pool:
            return list(pool.map(call, items))

    @contextlib.contextmanager
    def watch(self, path: str, seconds: float, **query: str) -> Iterator[Iterator[dict[str, Any]]]:
        """The watch events of the collection at ``path``, for at most ``seconds``.

        Give ``resourceVersion`` of the list that the watch carries on from. Raises ApiError.
        """
        limits = {"watch": "true", "timeoutSeconds": str(max(1, round(seconds)))}
        response = self._send("GET", path, query=query | limits, seconds=seconds + _CONNECT_SECONDS)
        try:
            yield _events(response)
        finally:
            # Closed, not read to its end: a watch has none.
            response.close()

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] = MappingProxyType({}),
        content_type: str = "application/json",
        seconds: float | None = _READ_SECONDS,
        accept: str = "application/json",
    ) -> Any:
        import urllib3

        request = self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": accept, "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        verb, url, headers = request[0], request[1], request[2]
        content = None if body is None else json.dumps(body).encode()
        limit = time.monotonic() + min(seconds or _LEADER_SECONDS, _LEADER_SECONDS)
        for attempt in range(_BUSY_TRIES):
            try:
                response = self._client.rest_client.pool_manager.request(
                    verb,
                    url,
                    body=content,
                    headers=headers,
                    preload_content=False,
                    timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=seconds),
                )
            except urllib3.exceptions.HTTPError as error:
                raise ApiError(0, f"the cluster at {self.server} does not answer: {_cause(error)}") from error
            # A busy server, or one that prepares a new CustomResourceDefinition, says when to ask again.
            wait = response.headers.get("Retry-After", "") if response.status == 429 else ""
            if response.status == 500 and _may_be_repeated(verb, content) and time.monotonic() < limit:
                # Its etcd chooses a leader.
                wait = "1" if _PASSES.search(_body(response)) else ""
            if not wait.isdigit() or attempt == _BUSY_TRIES - 1:
                break
            response.drain_conn()
            time.sleep(int(wait))
        if response.status >= 400:
            raise ApiError(response.status, _refusal(verb, path, response))
        return response


def _may_be_repeated(verb: str, content: bytes | None) -> bool:
    """Whether a request that may have been carried out means the same again.

    POST could make two objects. A version that is out of date would look as if another had changed it.
    """
    return verb != "POST" and b'"resourceVersion"' not in (content or b"")


def _body(response: Any) -> bytes:
    with _reading():
        content = bytes(response.data)
    return content


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Raises ApiError where the connection is lost in the middle of an answer."""
    import urllib3

    try:
        yield
    except urllib3.exceptions.HTTPError as error:
        raise ApiError(0, f"the connection to the cluster was lost in the middle: {_cause(error)}") from error


def _object(response: Any) -> dict[str, Any]:
    answer = json.loads(_body(response))
    return answer if isinstance(answer, dict) else {}


def _chunks(response: Any) -> Iterator[bytes]:
    with contextlib.closing(response), _reading():
        # read1 does not wait until a buffer is full: the reader follows a log that is being written.
        while chunk := response.read1(65536):
            yield chunk


def _events(response: Any) -> Iterator[dict[str, Any]]:
    import urllib3

    rest = b""
    try:
        for chunk in response.stream(65536, decode_content=False):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (json.loads(line) for line in lines if line)
    except urllib3.exceptions.HTTPError:
        # A lost connection ends the watch as its timeout does: the reader lists again.
        return


def _refusal(verb: str, path: str, response: Any) -> str:
    body = _body(response)
    try:
        message = json.loads(body).get("message") or response.reason
    except (ValueError, AttributeError):
        message = body.decode(errors="replace").strip() or response.reason
    return f"the cluster refused {verb} {path}: {message}"


def _cause(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error).rsplit(">: ", 1)[-1]
