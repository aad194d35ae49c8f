"""What is reported of a run, how, and how often."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.files import append_jsonl
from hmm_datasets.operations.alerts import AlertSettings, alert
from hmm_datasets.operations.run_state import RunObserver
from hmm_datasets.runtime.events import read_events
from hmm_datasets.runtime.heartbeat_writer import HeartbeatWriter


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
    writer = HeartbeatWriter(dead.folder, every=60)
    writer.enter("data", 4)
    writer._file.write_now()
    yield RunObserver(dead.folder).look()
    writer.end()


def test_the_same_trouble_is_reported_once_and_again_after_the_quiet_time(dead, running, tmp_path):
    log = tmp_path / "log"
    settings = AlertSettings(command=f'cat >> {log}; echo "$STATE" >> {log}', quiet=100)
    assert alert(running, settings, now=900.0) is None
    assert alert(dead, settings, now=1000.0) == "alert: delivered"
    assert alert(dead, settings, now=1099.0) is None
    assert alert(dead, settings, now=1101.0)
    assert alert(running, settings, now=1102.0), "its end is reported"
    assert alert(running, settings, now=1103.0) is None
    assert alert(dead, settings, now=1104.0), "it begins anew"
    text = log.read_text()
    assert text.count("run: dead: rank 0 on ") == 3
    assert text.count("\ndead\n") == 3
    assert text.count("\nrunning\n") == 1
    assert "step             3 of 9" in text
    assert [event["kind"] for event in read_events(dead.folder)] == ["alert"] * 4


def test_a_clock_that_was_set_back_does_not_silence_alerts(dead):
    settings = AlertSettings(command="true", quiet=100)
    assert alert(dead, settings, now=5000.0)
    assert alert(dead, settings, now=1000.0)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/ansible/awx/issues/8226",
    "a notification to be sent again when the server of a web hook fails once",
    "the line of the guide has curl send it again; an alert runs its command once",
)
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_a_web_hook_is_a_line_of_shell(dead):
    """The line of the guide, against a server that fails at first."""
    posted = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if len(posted) == 1 else 200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/T1/secret"
        settings = AlertSettings(command=f"curl -fsS --retry 5 --json \"$EVENT\" '{url}'")
        assert alert(dead, settings, now=0.0) == "alert: delivered"
        server.shutdown()
    assert posted[0] == posted[1]
    assert posted[0]["state"] == "dead"
    assert posted[0]["text"].startswith("run: dead: rank 0 on ")
    assert posted[0]["text"].endswith("failed: step 4: the loss is nan")
    assert "secret" not in "".join(path.read_text() for path in dead.folder.glob("*.json*"))


def test_a_command_that_fails_is_named_and_not_run_again_before_the_quiet_time(dead):
    settings = AlertSettings(command="exit 3", quiet=100)
    lines = [alert(dead, settings, now=float(now)) for now in (0, 10, 99, 101)]
    assert lines == ["alert: the command ended with exit code 3", None, None, lines[0]]


def test_a_wrong_quiet_time_is_refused():
    with pytest.raises(InputError, match=r"quiet is -1; expected 0 or more"):
        AlertSettings(quiet=-1.0)


def test_cron_reports_once(dead, tmp_path, capsys):
    log = tmp_path / "log"
    for _ in range(3):
        assert main(["watch", str(dead.folder), "--command", f'echo "$REASON" >> {log}']) == 1
    assert log.read_text().count("failed: step 4: the loss is nan") == 1
    assert capsys.readouterr().err.count("alert: delivered") == 1


def test_the_end_of_a_run_is_reported_whatever_its_name(tmp_path, capsys):
    run = tmp_path / "a\nBcc: all@example.org\x1b[2J\udcff"
    append_jsonl(run / "history.jsonl", {"step": 3, "time": 1.0, "loss": float("nan"), "max_steps": 3})
    log = tmp_path / "log"
    command = f'echo "$SUBJECT" >> {log}; cat > /dev/null'
    assert main(["watch", str(run), "--follow", "--every", "0.01", "--command", command]) == 1
    assert [line for line in capsys.readouterr().err.splitlines() if line] == ["alert: delivered"]
    assert log.read_text() == "a Bcc: all@example.org [2J : loss is not finite\n"


def test_a_disk_that_cannot_be_written_does_not_repeat_alerts(dead, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hmm_datasets.operations.alerts.write_json", full)
    settings = AlertSettings(command="true")
    assert [alert(dead, settings, now=float(now)) is not None for now in range(5)] == [True] + [False] * 4


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"state": [], "time": "x"}',
        '{"state": "dead", "time": 1e999}',
        "{",
    ],
)
def test_a_damaged_record_of_the_last_alert_alerts_anew(dead, content):
    (dead.folder / ".alerts.json").write_text(content)
    assert alert(dead, AlertSettings(command="true")) == "alert: delivered"
