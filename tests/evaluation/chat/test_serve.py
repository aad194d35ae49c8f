"""A chat model behind `transformers serve`, called by the client of OpenAI."""

import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("fastapi", reason="needs hmm-datasets[serve]")
openai = pytest.importorskip("openai", reason="needs hmm-datasets[serve]")

from memorized import FRANCE, PARIS  # noqa: E402


def listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def server(chat_model, child_environment, tmp_path):
    """The address of a server of the chat model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", chat_model]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], env=child_environment, stdout=log, stderr=log
        )
    try:
        while process.poll() is None and not listens(port):
            time.sleep(0.1)
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.thorough
def test_the_client_of_openai_talks_to_a_served_model(server, chat_model):
    client = openai.OpenAI(base_url=server, api_key="none")
    messages = [dict(zip(("role", "content"), turn, strict=True)) for turn in [*FRANCE, ("user", "And of Japan?")]]
    found = client.chat.completions.create(model=chat_model, messages=messages[:1], temperature=0)
    assert found.choices[0].message.content == PARIS
    assert found.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(model=chat_model, messages=messages, temperature=0, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == "It is Tokyo."
    assert len(pieces) > 2
