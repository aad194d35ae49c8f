"""Who is told of trouble, how, and how often."""

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.files import append_jsonl
from hmm_datasets.operations.alerts import AlertSettings, alert
from hmm_datasets.operations.run_state import RunObserver
from hmm_datasets.runtime.events import read_events
from hmm_datasets.runtime.heartbeats import HeartbeatWriter


@pytest.fixture
def dead(tmp_path):
    """The state of a run that has failed."""
    run = tmp_path / "run"
    append_jsonl(run / "history.jsonl", {"step": 3, "time": 1.0, "loss": 2.0, "max_steps": 9})
    HeartbeatWriter(run, every=60).end("failed", "step 4: the loss is nan")
    return RunObserver(run).look()


@pytest.fixture
def running(dead):
    """The state of the same run once it trains again."""
    heart = HeartbeatWriter(dead.folder, every=60)
    heart.enter("data", 4)
    heart._file.write_now()
    yield RunObserver(dead.folder).look()
    heart.end()


@pytest.fixture
def served():
    """A function that serves one handler on a free port until the test ends."""
    servers = []

    def serve(kind, handler):
        server = kind(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_address[1]

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_same_trouble_is_told_once_and_again_after_the_quiet_time(dead, running, tmp_path):
    told = tmp_path / "told"
    settings = AlertSettings(command=f'cat >> {told}; echo "$STATE" >> {told}', quiet=100)
    assert alert(running, settings, now=900.0) == []
    assert len(alert(dead, settings, now=1000.0)) == 1
    assert alert(dead, settings, now=1099.0) == []
    assert len(alert(dead, settings, now=1101.0)) == 1
    assert len(alert(running, settings, now=1102.0)) == 1, "its end is told"
    assert alert(running, settings, now=1103.0) == []
    assert len(alert(dead, settings, now=1104.0)) == 1, "it begins anew"
    text = told.read_text()
    assert text.count("run: dead: rank 0 on ") == 3
    assert text.count("\ndead\n") == 3
    assert text.count("\nrunning\n") == 1
    assert "step             3 of 9" in text
    assert [event["kind"] for event in read_events(dead.folder)] == ["alert"] * 4


def test_a_clock_that_was_set_back_does_not_silence_alerts(dead):
    settings = AlertSettings(command="true", quiet=100)
    assert alert(dead, settings, now=5000.0)
    assert alert(dead, settings, now=1000.0)


def test_a_web_hook_gets_json_with_a_text(dead, served):
    posted = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if len(posted) == 1 else 500)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    settings = AlertSettings(webhook=f"http://127.0.0.1:{served(HTTPServer, Hook)}/hook", quiet=0)
    assert alert(dead, settings) == ["webhook: delivered"]
    assert posted[0]["state"] == "dead"
    assert posted[0]["text"].startswith("run: dead: rank 0 on ")
    assert posted[0]["text"].endswith("failed: step 4: the loss is nan")
    (line,) = alert(dead, settings)
    assert "not delivered (HTTP Error 500" in line


def test_an_e_mail_goes_through_the_named_server(dead, served):
    received = []

    class Mail(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(b"220 ready\r\n")
            in_message = False
            for line in self.rfile:
                word = line.strip().upper()
                received.append(line.decode())
                if in_message:
                    in_message = word != b"."
                    if in_message:
                        continue
                elif word == b"DATA":
                    in_message = True
                    self.wfile.write(b"354 go on\r\n")
                    continue
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")

    port = served(socketserver.ThreadingTCPServer, Mail)
    assert alert(dead, AlertSettings(email="her@example.org", smtp=f"127.0.0.1:{port}")) == ["email: delivered"]
    text = "".join(received)
    assert "rcpt to:<her@example.org>" in text.lower()
    assert "Subject: run: dead: rank 0 on " in text.replace("\r\n ", " ")
    (line,) = alert(dead, AlertSettings(email="her@example.org", smtp="127.0.0.1:1", quiet=0))
    assert "not sent by 127.0.0.1:1" in line
    assert "--smtp HOST:PORT" in line


def test_a_command_that_fails_is_reported(dead):
    assert alert(dead, AlertSettings(command="exit 3")) == ["command: try 1 of 5, ended with exit code 3"]


BAD_ADDRESSES = [
    "http://",
    "http://[::1",
    "http://a:b/",
    "http://a:99999/",
    "http://a b/",
    "http://a/\n",
    "https://\u2603/",
]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"email": "her"}, "--email her; expected an address"),
        (
            {"webhook": "example.org/hook"},
            "^--webhook: expected a URL [^#]*HOST/PATH; what was given may be a secret$",
        ),
        *(({"webhook": url}, "expected a URL") for url in BAD_ADDRESSES),
        ({"quiet": -1.0}, "--quiet -1.0; expected 0 seconds or more"),
    ],
)
def test_a_wrong_recipient_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        AlertSettings(**given)


def test_cron_is_told_once(dead, tmp_path, capsys):
    told = tmp_path / "told"
    for _ in range(3):
        assert main(["watch", str(dead.folder), "--command", f'echo "$REASON" >> {told}']) == 1
    assert told.read_text().count("failed: step 4: the loss is nan") == 1
    assert capsys.readouterr().err.count("command: delivered") == 1


class Garbage(socketserver.BaseRequestHandler):
    """Answers with what is no HTTP."""

    def handle(self):
        self.request.recv(65536)
        self.request.sendall(b"\0\xff garbage\r\n\r\n" * 9)


class Elsewhere(BaseHTTPRequestHandler):
    """Answers a POST with a redirection, and accepts the GET that would follow."""

    def do_POST(self):
        self.send_response(302)
        self.send_header("Location", "/login")
        self.end_headers()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize("handler", [Garbage, Elsewhere])
def test_a_web_hook_that_does_not_take_the_message_is_tried_again_five_times(dead, served, handler):
    kind = socketserver.ThreadingTCPServer if handler is Garbage else HTTPServer
    settings = AlertSettings(webhook=f"http://127.0.0.1:{served(kind, handler)}/services/T1/secret")
    tries, now = [], 1000.0
    for _ in range(400):
        tries += [(now, line) for line in alert(dead, settings, now=now)]
        now += 1
    assert [at - 1000 for at, _ in tries] == [0, 10, 30, 70, 150]
    assert [line[:19] for _, line in tries] == [f"webhook: try {n} of 5" for n in range(1, 6)]
    text = (dead.folder / "events.jsonl").read_text() + (dead.folder / ".alerts.json").read_text()
    assert "T1" not in text
    assert "secret" not in text


def test_only_what_was_not_delivered_is_tried_again(dead, tmp_path):
    told, here = tmp_path / "told", tmp_path / "here"
    settings = AlertSettings(command=f"test -e {here} && echo >> {told}", email="her@example.org", smtp="127.0.0.1:1")
    assert len(alert(dead, settings, now=0.0)) == 2
    here.touch()
    assert alert(dead, settings, now=10.0)[1] == "command: delivered"
    (line,) = alert(dead, settings, now=30.0)
    assert line.startswith("email: try 3 of 5")
    assert told.read_text() == "\n"


def test_a_name_with_a_newline_does_not_end_watching(tmp_path, served, capsys, monkeypatch):
    monkeypatch.setattr("hmm_datasets.operations.alerts._FIRST_WAIT", 0.0)
    run = tmp_path / "a\nBcc: all@example.org\x1b[2J\udcff"
    append_jsonl(run / "history.jsonl", {"step": 3, "time": 1.0, "loss": float("nan"), "max_steps": 3})
    port = served(socketserver.ThreadingTCPServer, Garbage)
    words = ["--email", "her@example.org", "--smtp", "127.0.0.1:1", "--webhook", f"http://127.0.0.1:{port}/x"]
    assert main(["watch", str(run), "--follow", "--every", "0.01", *words, "--command", "cat"]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    # The run is finished, and what is still to be delivered is tried to the end.
    assert [line.partition(":")[0] for line in lines] == ["email", "webhook", "command"] + 4 * ["email", "webhook"]
    assert lines[2] == "command: delivered"
    assert all(f": try {number} of 5, " in line for number in range(2, 6) for line in lines[2 * number - 1 :][:2])


def test_a_disk_that_cannot_be_written_does_not_repeat_alerts(dead, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hmm_datasets.operations.alerts.write_json", full)
    assert [len(alert(dead, AlertSettings(command="true"), now=float(now))) for now in range(5)] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"state": [], "time": "x"}', '{"state": "dead", "time": 1e999}', "{"]
)
def test_a_damaged_note_of_the_last_alert_tells_anew(dead, content):
    (dead.folder / ".alerts.json").write_text(content)
    assert alert(dead, AlertSettings(command="true")) == ["command: delivered"]
