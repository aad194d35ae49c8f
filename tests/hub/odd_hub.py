"""A server that is no Hub, though `HF_ENDPOINT` names it, and what reads from it: `outcomes` prints them as JSON."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS = {
    "null": b"null",
    "list": b"[1, 2]",
    "number": b"7",
    "page": b"<html><body>Log in to the network</body></html>",
    "deep": b"[" * 100_000,
    "object": b'{"sha": 7, "siblings": null}',
    "cut off": b'{"sha": "aaa',
    "redirects": b"",
    "gated": b"",
    "silent": b"",
}


_GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Ask for access on the page of the model."}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer as the name of the repository says."""
        kind = next((kind for kind in ANSWERS if f"/me/{kind.replace(' ', '-')}" in self.path), "null")
        content = ANSWERS[kind]
        if kind == "silent":
            time.sleep(60)
        self.send_response({"redirects": 302, "gated": 403}.get(kind, 200))
        for name, value in {
            "ETag": '"abc"',
            "X-Repo-Commit": "a" * 40,
            "Content-Type": "text/html" if kind == "page" else "application/json",
            "Content-Length": str(len(content) + (1000 if kind == "cut off" else 0)),
            **({"Location": self.path} if kind == "redirects" else {}),
            **(_GATED if kind == "gated" else {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.close_connection = kind == "cut off"

    do_HEAD = do_POST = do_GET


@contextlib.contextmanager
def odd_hub() -> Iterator[str]:
    """A context in which the server runs on a free port of this machine; gives its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def outcomes(kinds: list[str], patience: float) -> None:
    """Print what each call does at each kind of answer: the error of one line, `""` without one, or a traceback."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from hmm_datasets.errors import InputError
    from hmm_datasets.hmm.loading import load_source, repository_of_process
    from hmm_datasets.hub import download
    from hmm_datasets.text.tokenizers.chat_templates import load_tokenizer
    from hmm_datasets.training.pretrained import load_pretrained

    calls: dict[str, Callable[[str], Any]] = {
        "process": load_source,
        "kind of a repository": repository_of_process,
        "configuration": lambda name: load_pretrained(AutoConfig, name),
        "model": lambda name: load_pretrained(AutoModelForCausalLM, name),
        "tokenizer": load_tokenizer,
        "branches": download.branches_of,
        "commit": download.commit_of,
    }
    download._PATIENCE = patience
    found: dict[str, dict[str, str]] = {}
    for kind in kinds:
        found[kind] = {}
        for what, call in calls.items():
            try:
                call(f"me/{kind.replace(' ', '-')}")
                found[kind][what] = ""
            except InputError as error:
                found[kind][what] = str(error)
            except Exception as error:
                found[kind][what] = f"Traceback: {type(error).__name__}: {error}"
    print(json.dumps(found))
