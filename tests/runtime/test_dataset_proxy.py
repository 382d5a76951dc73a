"""Sources are read through a proxy, and from servers whose authority only the site knows."""

from __future__ import annotations

import http.server
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.runtime.datasets import read, run, settings, stage_and_publish, web_server, write
from tests.runtime.faulty_servers import faulty_server


@dataclass
class Proxy:
    """A proxy that forwards and tunnels to loopback, whatever host is asked for. ``asked``: its requests."""

    url: str = ""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    state = Proxy()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(f"GET {self.path}")
            wanted = {name: value for name, value in self.headers.items() if name.lower() == "range"}
            url = self.path.replace("data.example.com", "127.0.0.1")
            request = urllib.request.Request(url, headers=wanted, method=self.command)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request) as answer:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.read())

        do_HEAD = do_GET

        def do_CONNECT(self) -> None:
            state.asked.append(f"CONNECT {self.path}")
            there = socket.create_connection(("127.0.0.1", int(self.path.rpartition(":")[2])))
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=pump, args=(there, self.connection), daemon=True)
            back.start()
            pump(self.connection, there)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with web_server(Handler) as port:
        state.url = f"http://127.0.0.1:{port}"
        yield state


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until one side ends."""
    try:
        while chunk := source.recv(65536):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


@pytest.fixture
def private_site(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The port of a TLS server for data.example.com, and its certificate."""
    openssl = shutil.which("openssl")
    assert openssl, "this test needs openssl on PATH"
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.crt"
    subject = ["-subj", "/CN=data.example.com", "-addext", "subjectAltName=DNS:data.example.com"]
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key)]
    subprocess.run([*made, "-out", str(certificate), *subject], check=True, capture_output=True)
    folder = write(tmp_path / "site", {"words.txt": b"words" * 1000})

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def speak_tls(server: http.server.HTTPServer) -> None:
        server.socket = context.wrap_socket(server.socket, server_side=True)

    with web_server(Handler, speak_tls) as port:
        yield port, certificate


def test_plain_http_names_the_whole_url_to_the_proxy(proxy: Proxy, tmp_path: Path) -> None:
    with faulty_server({"words.txt": b"w" * 3000}) as server:
        port = server.url.rpartition(":")[2]
        source = {"url": f"http://data.example.com:{port}/b/words.txt"}
        stage_and_publish({"HTTP_PROXY": proxy.url, **settings(tmp_path / "data", source)})
    assert read(tmp_path / "data") == {"words.txt": b"w" * 3000}
    assert f"GET http://data.example.com:{port}/b/words.txt" in proxy.asked


def test_tls_goes_through_a_tunnel_and_trusts_the_authority_of_the_site(
    proxy: Proxy, private_site: tuple[int, Path], tmp_path: Path
) -> None:
    port, certificate = private_site
    source = {"url": f"https://data.example.com:{port}/words.txt"}
    env = {"HTTPS_PROXY": proxy.url, **settings(tmp_path / "data", source)}
    stage_and_publish({**env, "SSL_CERT_FILE": str(certificate)})
    assert read(tmp_path / "data") == {"words.txt": b"words" * 1000}
    assert f"CONNECT data.example.com:{port}" in proxy.asked


def test_hosts_of_no_proxy_are_asked_directly(proxy: Proxy, tmp_path: Path) -> None:
    with faulty_server({"words.txt": b"w"}) as server:
        env = {"HTTP_PROXY": proxy.url, "NO_PROXY": "127.0.0.1"}
        stage_and_publish({**env, **settings(tmp_path / "data", {"url": f"{server.url}/b/words.txt"})})
    assert proxy.asked == []


@pytest.mark.parametrize(
    ("address", "told"),
    [("http://a:b:c", "http://a:b:c"), ("http://me:s3cret@proxy:3128", "http://proxy:3128")],
)
def test_a_proxy_that_is_no_address_is_told_without_its_password(
    tmp_path: Path, address: str, told: str
) -> None:
    source = {"url": "http://data.example.com/words.txt"}
    code, log = run("stage", {"HTTP_PROXY": address, **settings(tmp_path / "data", source)})
    assert (code, "s3cret" in log) == (78, False)
    assert f"the proxy {told} is not http://HOST:PORT" in log


def test_the_nodes_own_credentials_are_asked_for_without_a_proxy(proxy: Proxy, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a secret of the pod")
    with faulty_server({"data/a": b"w"}) as server:
        agent = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
            "AWS_ENDPOINT_URL_S3": server.url,
        }
        run(
            "stage", {"HTTP_PROXY": proxy.url, **agent, **settings(tmp_path / "data", {"url": "s3://b/data"})}
        )
        assert server.count("GET /credentials") == 1
    assert proxy.asked
    assert not [each for each in proxy.asked if "credentials" in each]
