"""As much of the Hugging Face hub as pushing and pulling small files takes, on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class FakeHub:
    """Repositories with commits of whole files.

    Args:
        token: what a client must send to write.
    """

    def __init__(self, token: str = "secret") -> None:
        self.token = token
        self.repos: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        """The commits of every repository, the newest last: hash and files."""
        self.private: dict[str, bool] = {}
        self.requests: list[str] = []
        self.address = ""

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes] | None:
        commits = self.repos.get(repo, [])
        if revision == "main":
            return commits[-1][1] if commits else None
        return dict(commits).get(revision)

    def commit(self, repo: str, files: dict[str, bytes]) -> str:
        whole = {**(self.files(repo) or {}), **files}
        sha = hashlib.sha1(repr((len(self.repos[repo]), sorted(whole.items()))).encode()).hexdigest()
        self.repos[repo].append((sha, whole))
        return sha


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def answer_json(self, content: Any, status: int = 200, **headers: str) -> None:
            self.answer(json.dumps(content).encode(), status, Content_Type="application/json", **headers)

        def missing(self, code: str) -> None:
            self.answer_json({"error": code}, 404, X_Error_Code=code)

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            hub.requests.append(f"{self.command} {path}")
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                repo, revision = "/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main"
            else:
                repo, revision = "/".join(parts[:2]), parts[3] if len(parts) > 3 else "main"
            if repo not in hub.repos:
                self.missing("RepoNotFound")
                return
            files = hub.files(repo, revision)
            if files is None:
                self.missing("RevisionNotFound")
                return
            sha = hub.repos[repo][-1][0] if revision == "main" else revision
            if parts[0] != "api":
                content = files.get("/".join(parts[4:]))
                if content is None:
                    self.missing("EntryNotFound")
                    return
                self.answer(content, X_Repo_Commit=sha, ETag=f'"{hashlib.sha1(content).hexdigest()}"')
            elif parts[4:5] == ["tree"]:
                listed = [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in files.items()
                ]
                self.answer_json(listed)
            else:
                self.answer_json({"id": repo, "sha": sha, "siblings": [{"rfilename": name} for name in files]})

        do_HEAD = do_GET  # noqa: N815 - the name is http.server's

        def do_POST(self) -> None:
            path = urlsplit(self.path).path
            hub.requests.append(f"POST {path}")
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.answer_json({"error": "Invalid username or password."}, 401)
                return
            parts = path.strip("/").split("/")
            if path == "/api/repos/create":
                wanted = json.loads(body)
                repo = f"{wanted['organization']}/{wanted['name']}"
                status = 409 if repo in hub.repos else 200
                hub.repos.setdefault(repo, [])
                hub.private.setdefault(repo, wanted.get("visibility") == "private" or bool(wanted.get("private")))
                self.answer_json({"url": f"{hub.address}/{repo}", "error": "exists"}, status)
            elif path == "/api/validate-yaml":
                self.answer_json({"errors": [], "warnings": []})
            elif parts[4] == "preupload":
                names = [file["path"] for file in json.loads(body)["files"]]
                modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
                self.answer_json({"files": modes})
            elif parts[4] == "commit":
                repo = "/".join(parts[2:4])
                lines = [json.loads(line) for line in body.splitlines() if line.strip()]
                added = {
                    line["value"]["path"]: base64.b64decode(line["value"]["content"])
                    for line in lines
                    if line["key"] == "file"
                }
                sha = hub.commit(repo, added)
                self.answer_json({"commitUrl": f"{hub.address}/{repo}/commit/{sha}", "commitOid": sha, "success": True})
            else:
                self.missing("EntryNotFound")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
