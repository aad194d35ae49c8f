"""No command writes a secret: neither one of the environment, nor one in a flag, a file of settings or a name.

Here every command that writes is run; `tests/training/test_secrets.py` has all ways of giving a secret to one.
"""

import io
import json
import shlex
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_chat import WORDS, message, save_tiny_chat

from hmm_datasets.cli import HEADINGS, main
from hmm_datasets.files import write_jsonl
from hmm_datasets.hmm import processes
from hmm_datasets.runtime.credentials import MASK, remember_words
from hmm_datasets.runtime.plain_output import PlainStream

TOKEN = "hf_" + "aBcDeFgHiJ" * 3 + "kLmN"
OF_ENVIRONMENT, OF_FLAG, OF_YAML = "my-own-hub-pass-phrase", "another-pass-phrase", "a-third-pass-phrase"  # no form
SECRETS = (TOKEN, OF_ENVIRONMENT, OF_FLAG, OF_YAML)
TINY = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
STEPS = "--global_batch_size 2 --per_device_train_batch_size 2 --save_steps 1 --report_to none --use_cpu"
STEPS = f"{STEPS} --run_name {TOKEN} --max_steps 2"
FLAG, YAML = f"--hub_token {OF_FLAG}", "--config IN/token.yaml"
TEXT = "--tokens new/tokens/text --tokenizer new/tokens/tokenizer --model IN/text.json --length 16"

# IN is a folder whose name has a token.
QUICK = {
    "sample": "sample IN/mess3 --num-sequences 20 --output new/sample.npy",
    "tokenize": "tokenize --corpus IN/corpus.txt --conversations none --vocab_size 290 --output_dir new/tokens",
    "pretrain": f"pretrain --hmm IN/mess3 --model IN/tiny.json --length 16 {STEPS} {YAML} --output_dir new/run",
    "pretrain on text": f"pretrain {TEXT} {STEPS} {FLAG} --output_dir new/text",
    "midtrain": f"midtrain --model new/text --streams new/tokens/text --weights 1 {STEPS} {FLAG} --output_dir new/mid",
    "evaluate": "evaluate --model new/run --targets IN/mess3 --num_sequences 8 --length 7 --output_dir new/evaluation",
    "compare": "compare new/evaluation new/another --output-dir new/compared",
    "benchmark": "benchmark new/run --process mess3 --num-sequences 4 --output-dir new/benchmark",
    "supervise": f"supervise --output-dir new/supervised -- {sys.executable} -c pass {FLAG} {TOKEN}",
    "checkpoint": "checkpoint convert new/run/checkpoint-2 new/converted --to hf",
    "configs": "configs copy demo/pretrain_hmm.yaml new/copied.yaml",
}
SLOW = {
    "fit": "fit IN/tokens.npy --num_states 2 --max_epochs 2 --output_dir new/fit",
    "describe": "describe IN/mess3 --plot new/described --num-sequences 8",
    "sft": f"sft --model IN/chat --conversations IN/chat.jsonl --num_questions 2 {STEPS} {YAML} --output_dir new/sft",
    "dpo": f"dpo --model IN/chat --preferences IN/pairs.jsonl {STEPS} {YAML} --output_dir new/dpo",
    "grpo": f"grpo --model IN/chat --prompts IN/questions.jsonl --rewards exact --num_generations 2 {STEPS} {FLAG} "
    "--max_completion_length 4 --num_test_sequences 2 --output_dir new/grpo",
    "sweep": "sweep IN/sweep.yaml",
    "experiment": "experiment constrained-beliefs --steps 2 --output_dir new/experiment",
    "demo": None,  # runs others of these
}
WRITES_NOTHING = {"plan", "preflight", "watch", "verify", "chat"}
WRITES_NOTHING |= {"push"}  # but a repository: tests/hub/test_redaction.py


@pytest.fixture
def inputs(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", OF_ENVIRONMENT)
    folder = tmp_path / f"in-{TOKEN}"
    processes.mess3(0.15, 0.6).save_pretrained(folder / "mess3")
    np.save(folder / "tokens.npy", processes.mess3(0.15, 0.6).sample(20, 16))
    (folder / "corpus.txt").write_text("\n<|endoftext|>\n".join(f"The cat sat on mat {n}." for n in range(300)))
    for name, size in (("tiny", 4), ("text", 290)):
        (folder / f"{name}.json").write_text(json.dumps({"model_type": "llama", "vocab_size": size, **TINY}))
    save_tiny_chat(folder / "chat")
    rows = [{"messages": [*message("user", "Say"), *message("assistant", word)]} for word in WORDS] * 2
    write_jsonl(folder / "chat.jsonl", rows)
    asked = [(f"Say {n} {word}", word) for word in WORDS for n in range(6)]
    pairs = [{"prompt": text, "chosen": word, "rejected": f"{word} {word}"} for text, word in asked]
    write_jsonl(folder / "pairs.jsonl", pairs)
    write_jsonl(folder / "questions.jsonl", [{"prompt": text, "completion": word} for text, word in asked])
    (folder / "token.yaml").write_text(f"hub_token: {OF_YAML}\n")
    np.save("rows.npy", np.load(folder / "tokens.npy"))  # a sweep refuses settings with a token in them
    settings = "settings: {corpus: rows.npy, max_epochs: 2}"
    (folder / "sweep.yaml").write_text(
        f"recipe: fit\noutput_dir: new/sweep\n{settings}\ngrid: {{num_states: [2, 3]}}\n"
    )
    return folder


def run(monkeypatch, words: str) -> None:
    argv = shlex.split(words.replace("IN/", f"in-{TOKEN}/"))
    monkeypatch.setattr(sys, "argv", ["hmm-datasets", *argv])
    assert main(argv) == 0, words


def secrets_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Names of files with the secrets in them, or in their names."""
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for secret in SECRETS:
            if secret.encode() in content or secret in path.name:
                yield str(path.relative_to(folder)), secret


def names(commands: Collection[str]) -> set[str]:
    return {name.partition(" ")[0] for name in commands}


def test_every_command_is_known_to_write_or_not():
    assert names(QUICK) | names(SLOW) | WRITES_NOTHING == {name for group in HEADINGS.values() for name in group}


@pytest.mark.thorough
@pytest.mark.parametrize("commands", [QUICK, pytest.param(QUICK | SLOW, marks=pytest.mark.slow)], ids=["quick", "all"])
def test_what_commands_write_has_no_secret(inputs, tmp_path, monkeypatch, commands):
    for name, words in commands.items():
        if words is None:
            continue
        run(monkeypatch, words)
        if name == "evaluate":
            run(monkeypatch, words.replace("--length 7", "--length 9").replace("new/evaluation", "new/another"))
        assert list(secrets_in(tmp_path / "new")) == [], name


URL, ENDPOINT = "https://joe:my-password-of-7@127.0.0.1:9/x", "https://joe:my-other-word-of-8@127.0.0.1:9"
OF_LINES = (*SECRETS, "my-password-of-7", "my-other-word-of-8", "a-fifth-pass-phrase")
ON_HUB = f"someone/{TOKEN}"  # a name on the Hub, which does not answer
FAULTS = [
    f"{command} {words}"
    for name in (URL, ON_HUB)
    for command, words in {
        "describe": name,
        "sample": f"{name} --output new/x.npy",
        "fit": f"{name} --output_dir new/fit",
        "tokenize": f"--corpus {name} --output_dir new/tokens",
        "plan pretrain": f"--hmm {name}",
        "pretrain": f"--hmm {name} --model IN/tiny.json {STEPS} {FLAG} --output_dir new/run",
        "midtrain": f"--model {name} --streams new/tokens/text {STEPS} {FLAG} --output_dir new/run",
        "sft": f"--model {name} --conversations IN/chat.jsonl {STEPS} {YAML} --output_dir new/run",
        "dpo": f"--model IN/chat --preferences {name} {STEPS} {YAML} --output_dir new/run",
        "grpo": f"--model IN/chat --prompts {name} --rewards exact {STEPS} {FLAG} --output_dir new/run",
        "evaluate": f"{name} --targets IN/mess3 --output_dir new/evaluation",
        "benchmark": f"{name} --process mess3 --output-dir new/benchmark",
        "compare": f"{name} new/another",
        "experiment": f"llm-on-hmms --model {name} --train_tokens 5",
        "push": f"new/none {name}",
        "chat": name,
        "verify": name,
        "watch": name,
        "checkpoint list": name,
        "checkpoint convert": f"{name} new/x",
        "supervise": f"--output-dir new/x --attempts {name} -- true",
        "sweep": name,
        "preflight": f"--timeout {name}",
        "configs copy": name,
    }.items()
] + [
    f"pretrain --hmm mess3 --length 16 --config IN/{name}.yaml --output_dir new/run"
    for name in ("list", "nested", "key")
] + [
    f"pretrain --hmm mess3 --length 16 {STEPS} --hub_token=a-fifth-pass-phrase --output_dir /",
    f"pretrain --hmm mess3 --length 16 {STEPS} --hub_model_id {URL} --push_to_hub true --no --output_dir new/run",
    f"pretrain --hmm mess3 --length 16 {STEPS} --seed a-fifth-pass-phrase {FLAG} --hub-token a-fifth-pass-phrase",
]  # fmt: skip
"""Commands that fail, with a secret in each place that they quote."""


def test_every_command_has_a_fault():
    assert {words.split()[0] for words in FAULTS} >= {
        name for group in HEADINGS.values() for name in group if name != "demo"
    }


@pytest.mark.thorough
def test_no_line_about_a_fault_has_a_secret(inputs, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HF_ENDPOINT", ENDPOINT)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", ENDPOINT)
    (inputs / "list.yaml").write_text("hub_token: [a-fifth-pass-phrase]\n")
    (inputs / "nested.yaml").write_text("env: {HF_TOKEN: a-fifth-pass-phrase}\nmax_steps: a-fifth-pass-phrase\n")
    (inputs / "key.yaml").write_text(f"hub_token: a-fifth-pass-phrase\n'{TOKEN}': 5\n")
    for words in FAULTS:
        argv = shlex.split(words.replace("IN/", f"in-{TOKEN}/"))
        monkeypatch.setattr(sys, "argv", ["hmm-datasets", *argv])
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        try:
            code = main(argv)
        except SystemExit as end:
            code = end.code
        shown = "".join(capfd.readouterr())
        assert code, words
        assert "error: " in shown, words
        assert [secret for secret in OF_LINES if secret in shown] == [], shown
        assert list(secrets_in(tmp_path / "new")) == []


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        pytest.param(
            "Looking in indexes: https://my-token:@repo.example/simple",
            "my-token",
            marks=pytest.mark.outside(
                "https://github.com/pypa/pip/issues/9973",
                "an address whose login is a token and whose password is empty, in what a program prints",
                "no login in an address is printed on stderr",
            ),
        ),
        pytest.param(
            "Command ['pip', '--index-url', 'https://user:password@host:80/simple'] errored",
            "password",
            marks=pytest.mark.outside(
                "https://github.com/python-poetry/poetry/issues/2901",
                "the words of a command in an error, with a password in an address",
                "passwords in addresses are masked, whatever quotes them",
            ),
        ),
        pytest.param(
            "GET https://host/agents?page=1&access_token=super-secret-token&x=1 failed",
            "super-secret-token",
            marks=pytest.mark.outside(
                "https://github.com/nexus-research-lab/nexus/issues/116",
                "a token in the query of an address, in a log",
                "values of secret names in a query are masked, signatures too",
            ),
        ),
        pytest.param(
            "Failed to fetch organization x. (Bearer abc1-def2-ghi3)",
            "abc1-def2-ghi3",
            marks=pytest.mark.outside(
                "https://github.com/TriplyDB/TriplyDB-JS/issues/20",
                "a token that ends with a line break, quoted by the error about it",
                "the header of a request is masked, and the value of a variable without spaces around it",
            ),
        ),
        pytest.param(
            "RuntimeWarning: pass token='with-a-line-break' instead",
            "with-a-line-break",
            marks=pytest.mark.outside(
                "https://github.com/huggingface/datasets/issues/6412",
                "a warning of a library with the value of a token",
                "what libraries write to stderr is masked too",
            ),
        ),
        pytest.param(
            "Failed to execute insanely-fast-whisper --hf-token flag-pass-phrase",
            "flag-pass-phrase",
            marks=pytest.mark.outside(
                "https://github.com/zackees/transcribe-anything/issues/93",
                "a command with its flags in the error of a program that it starts",
                "values of secret flags are masked wherever they stand",
            ),
        ),
    ],
)
def test_lines_that_printed_secrets_elsewhere_have_none_here(line, secret, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "with-a-line-break\n")
    remember_words(["supervise", "--", "run", "--hf-token", "flag-pass-phrase"])
    stream = PlainStream(io.StringIO(), is_for_people=True)
    stream.write(line)
    assert secret not in stream.stream.getvalue()
    assert MASK in stream.stream.getvalue()
