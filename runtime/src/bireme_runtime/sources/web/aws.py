"""Credentials of AWS, as pods are given them, and signatures of requests to S3.

Signatures are AWS's version 4 (docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html).
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bireme_runtime.process.errors import NO_PERMISSION, BiremeError, Unreachable
from bireme_runtime.process.http import BROKEN, reason

EMPTY = hashlib.sha256(b"").hexdigest()
_REFRESH_SECONDS = 300
# A provider that did not answer is asked again after this time, as long as the credentials are valid.
_ASK_AGAIN_SECONDS = 20
_LEAST_SECONDS = 10
_TIMEOUT_SECONDS = 30
# How long each try waits for the metadata service, which mostly answers at once. Where there is none,
# connections are not even refused.
_NODE_SECONDS = (1, 2, 4, 8)
_NONE = (
    "there are no AWS credentials: give the ServiceAccount a role (IRSA or Pod Identity), "
    "set s3.existingSecret, or s3.anonymous=true for a public bucket"
)
# docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html
_TEMPORARY = """
BandwidthLimitExceeded EC2ThrottledException IDPCommunicationError InternalError LimitExceededException
OperationAborted PriorRequestNotComplete ProvisionedThroughputExceededException RequestLimitExceeded
RequestThrottled RequestThrottledException RequestTimeout RequestTimeTooSkewed RequestTimeoutException
ServiceUnavailable SlowDown ThrottledException Throttling ThrottlingException TooManyRequestsException
TransactionInProgressException
"""
_TEMPORARY_CODES = frozenset(_TEMPORARY.split())


class CredentialsError(BiremeError):
    """There are no credentials, or their provider refuses them."""

    code = NO_PERMISSION


@dataclass(frozen=True)
class Credentials:
    """Keys of AWS. `expires` is a Unix time, or infinity for keys that do not expire."""

    key: str
    secret: str
    token: str = ""
    expires: float = float("inf")


class CredentialsProvider:
    """Finds credentials in a pod's environment as the AWS SDKs do, and renews them before they expire.

    It tries, in this order: keys of a Secret (AWS_ACCESS_KEY_ID), a role by IRSA
    (AWS_WEB_IDENTITY_TOKEN_FILE), a role by EKS Pod Identity (AWS_CONTAINER_CREDENTIALS_FULL_URI), the role
    of the node, which its metadata service knows (unless AWS_EC2_METADATA_DISABLED is true).
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._current: Credentials | None = None
        self._ask_at = 0.0
        self._lock = threading.Lock()

    def credentials(self) -> Credentials:
        """Credentials that are valid now. Raises CredentialsError, or Unreachable.

        They are renewed some minutes before they expire; until then a provider that fails does no harm.
        """
        with self._lock:
            now = time.time()
            current = self._current
            left = 0.0 if current is None else current.expires - now
            if current is not None and left > (_LEAST_SECONDS if now < self._ask_at else _REFRESH_SECONDS):
                return current
            try:
                self._current = self._find()
            except (KeyError, ValueError, ElementTree.ParseError) as error:
                raise Unreachable(f"the answer with AWS credentials cannot be read: {error!r}") from error
            except (Unreachable, CredentialsError):
                if current is None or left <= _LEAST_SECONDS:
                    raise
                self._ask_at = now + _ASK_AGAIN_SECONDS
                return current
            return self._current

    def renew(self) -> bool:
        """Forget credentials that a service calls expired. False if there can be no others."""
        with self._lock:
            if self._current is not None and self._current.expires == float("inf"):
                return False
            self._current = None
            return True

    def _find(self) -> Credentials:
        env = self._env
        if env.get("AWS_ACCESS_KEY_ID"):
            secret, token = env.get("AWS_SECRET_ACCESS_KEY", ""), env.get("AWS_SESSION_TOKEN", "")
            return Credentials(env["AWS_ACCESS_KEY_ID"], secret, token)
        if env.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
            return self._by_web_identity()
        if env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
            return self._by_pod_identity()
        if env.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
            return self._by_node()
        raise CredentialsError(_NONE)

    def _by_web_identity(self) -> Credentials:
        env = self._env
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = env.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.{domain(region)}"
        query = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": env.get("AWS_ROLE_ARN", ""),
            "RoleSessionName": env.get("AWS_ROLE_SESSION_NAME") or "bireme-dataset",
            "WebIdentityToken": _read(env["AWS_WEB_IDENTITY_TOKEN_FILE"]),
        }
        body = urllib.parse.urlencode(query).encode()
        tree = ElementTree.fromstring(_ask(urllib.request.Request(f"{endpoint}/", body)))
        found = {element.tag.partition("}")[2]: element.text or "" for element in tree.iter()}
        return _credentials({**found, "Token": found["SessionToken"]})

    def _by_pod_identity(self) -> Credentials:
        file = self._env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        token = _read(file) if file else self._env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        headers = {"Authorization": token} if token else {}
        request = urllib.request.Request(self._env["AWS_CONTAINER_CREDENTIALS_FULL_URI"], headers=headers)
        return _credentials(json.loads(_ask(request, is_on_node=True)))

    def _by_node(self) -> Credentials:
        """The role of the node, by version 2 of the instance metadata service."""
        try:
            return self._ask_node_again_and_again()
        except (_NoAnswer, CredentialsError) as error:
            if self._current is not None:
                raise
            # On EC2, too, nobody answers pods if the answers may make one hop only.
            raise CredentialsError(f"{_NONE}; the role of the node: {error}") from error

    def _ask_node_again_and_again(self) -> Credentials:
        # With credentials that are still valid there are other tries, and every request waits for this one.
        for seconds in _NODE_SECONDS[:-1] if self._current is None else ():
            until = time.monotonic() + seconds
            try:
                return self._ask_node(seconds)
            except _NoAnswer:
                time.sleep(max(0.0, until - time.monotonic()))
        return self._ask_node(_NODE_SECONDS[-1])

    def _ask_node(self, seconds: float) -> Credentials:
        place = self._env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
        base = f"{place.rstrip('/')}/latest"
        life = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
        asked = urllib.request.Request(f"{base}/api/token", headers=life, method="PUT")
        token = _ask(asked, seconds, is_on_node=True)
        given = {"X-aws-ec2-metadata-token": token.decode()}

        def ask(url: str) -> bytes:
            return _ask(urllib.request.Request(url, headers=given), seconds, is_on_node=True)

        roles = f"{base}/meta-data/iam/security-credentials/"
        role = ask(roles).decode().partition("\n")[0]
        return _credentials(json.loads(ask(roles + role)))


def domain(region: str) -> str:
    """The domain of AWS services in the partition of `region`."""
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def sign(
    host: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    given: Credentials,
    region: str,
    now: float,
    method: str = "GET",
    payload: str = EMPTY,
) -> dict[str, str]:
    """The headers of a signed request to S3: `headers`, and those that carry the signature.

    `path` is quoted, `query` is quoted and sorted, and `payload` is the sha256 of the body.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    signed = {**headers, "host": host, "x-amz-date": stamp, "x-amz-content-sha256": payload}
    if given.token:
        signed["x-amz-security-token"] = given.token
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    request = hashlib.sha256(f"{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}".encode()).hexdigest()
    key = f"AWS4{given.secret}".encode()
    for part in (stamp[:8], region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{request}".encode()
    signature = hmac.new(key, text, hashlib.sha256).hexdigest()
    parts = f"Credential={given.key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**signed, "authorization": f"AWS4-HMAC-SHA256 {parts}"}


def error_code(text: str) -> str:
    """The code in the XML with which a service of AWS explains an error, "" if there is none."""
    return text.partition("<Code>")[2].partition("</Code>")[0].strip()


def is_temporary(status: int, code: str) -> bool:
    """Whether another attempt may have another result than this error."""
    return status >= 500 or status in (408, 425, 429) or code in _TEMPORARY_CODES


class _NoAnswer(Unreachable):
    """Nobody answers at that address."""


def _ask(
    request: urllib.request.Request, seconds: float = _TIMEOUT_SECONDS, is_on_node: bool = False
) -> bytes:
    # urllib uses the proxies of the environment: STS may be behind one, the node is not.
    proxies = (urllib.request.ProxyHandler({}),) if is_on_node else ()
    opener = urllib.request.build_opener(*proxies)
    place = urllib.parse.urlsplit(request.full_url).netloc
    try:
        with opener.open(request, timeout=seconds) as answer:
            text: bytes = answer.read()
            return text
    except urllib.error.HTTPError as error:
        with error:
            code = error_code(error.read(4096).decode(errors="replace"))
        sentence = " ".join(filter(None, (f"{place} gives no AWS credentials: HTTP {error.code}", code)))
        if is_temporary(error.code, code):
            raise Unreachable(sentence) from error
        raise CredentialsError(sentence) from error
    except BROKEN as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        words = reason(why) if isinstance(why, BaseException) else str(why)
        raise _NoAnswer(f"{place} gives no AWS credentials: {words}") from error


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise CredentialsError(f"the token for AWS credentials cannot be read: {error}") from error
    except OSError as error:
        raise Unreachable(f"the token for AWS credentials cannot be read: {error}") from error


def _credentials(found: Mapping[str, str]) -> Credentials:
    """The keys in an answer, under the names of Pod Identity and of the metadata service."""
    return Credentials(
        found["AccessKeyId"], found["SecretAccessKey"], found["Token"], unix_time(found["Expiration"])
    )


def unix_time(text: str) -> int:
    """The Unix time of a text such as 2026-12-01T18:00:00Z, without parts of a second."""
    return calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
