import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hmm_datasets import RandomChains, __version__
from hmm_datasets.cli import COMMANDS, HEADINGS, build_parsers, main
from hmm_datasets.files import append_jsonl
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.model import HMM

ROOT = Path(__file__).parents[2]
HMM_OF_TESTS = processes.mess3()


@pytest.fixture
def folder(tmp_path) -> str:
    HMM_OF_TESTS.save_pretrained(tmp_path / "hmm")
    return str(tmp_path / "hmm")


def failing(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.thorough
def test_building_the_parser_imports_nothing_slow():
    script = (
        "import sys; from hmm_datasets.cli import build_parsers; build_parsers()[0];"
        "slow = {'torch', 'transformers', 'datasets', 'numpy', 'numba', 'huggingface_hub', 'accelerate'};"
        "print(sorted(slow & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/pytorch/torchchat/issues/1347",
    "help without importing torch",
    "`--help` of commands, recipes and experiments imports neither torch nor transformers",
)
def test_help_imports_nothing_slow():
    """Which makes it a matter of a tenth of a second."""
    for words in (
        ["--help"],
        ["pretrain", "--help"],
        ["experiment", "icll", "--help"],
        ["experiment"],
        ["watch", "-h"],
    ):
        script = (
            "import contextlib, os, sys; from hmm_datasets.cli import COMMANDS, HEADINGS, build_parsers, main\n"
            f"with contextlib.suppress(SystemExit), contextlib.redirect_stdout(open(os.devnull, 'w')): main({words})\n"
            "slow = {'torch', 'transformers', 'datasets', 'numpy', 'numba', 'huggingface_hub', 'accelerate'}\n"
            "print(sorted(slow & set(sys.modules)))"
        )
        result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == "[]", words


def test_every_command_stands_under_a_heading_on_one_screen(capsys):
    listed = [name for names in HEADINGS.values() for name in names]
    assert len(listed) == len({*listed}) <= 30
    assert {*listed} == build_parsers()[1].keys()
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    assert [line.split()[0] for line in lines if re.match(r"  [a-z]+ ", line)] == listed


@pytest.mark.thorough
def test_every_command_that_a_message_names_exists():
    """Of all strings of the package and the recipes, those in f-strings too."""
    named = set()
    for path in [*(ROOT / "hmm_datasets").rglob("*.py"), *(ROOT / "recipes").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(part.value if is_string(part) else "{}" for part in parts)
            named |= {(name, path.name) for name in re.findall(r"hmm-datasets\s+([a-z][a-z-]*)", text)}
    assert len(named) > 50
    words_of_sentences = {"and", "from", "may"}
    assert {name for name, _ in named} <= build_parsers()[1].keys() | words_of_sentences, named


def is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.thorough
def test_every_help_spells_flags_with_underscores(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([*name.split(), "--help"])
        assert not re.findall(r"--[a-z]+-[a-z-]+", capsys.readouterr().out), name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["pretran"], "pretran: no such command; did you mean pretrain? `hmm-datasets --help` lists all"),
        (["icll", "--x"], "icll: no such command, but an experiment; run hmm-datasets experiment icll"),
        (["--env"], "--env: no such command; `hmm-datasets --help` lists all"),
        (["xyzzy"], "xyzzy: no such command; `hmm-datasets --help` lists all"),
        (
            ["describe", "process:mess3", "--lenght", "3"],
            "describe: unknown argument --lenght; did you mean --length? `describe --help` lists all",
        ),
        (["verify", "a", "b"], "verify: unknown argument b; `verify --help` lists all"),
        (
            ["checkpoint", "list", "a", "--jsn"],
            "checkpoint list: unknown argument --jsn; did you mean --json? `checkpoint list --help` lists all",
        ),
        (["pretrain", "--hm", "x"], "unknown flag --hm; did you mean --hmm?"),
    ],
)
def test_a_misspelt_command_or_flag_is_answered_with_the_nearest(given, said, capsys):
    assert failing(capsys, *given) == f"error: {said}"


def test_help_and_version(capsys):
    for argv, expected in ((["--help"], "checkpoint"), (["--version"], __version__), (["sample", "-h"], "--first")):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 0
        assert expected in capsys.readouterr().out


def test_sample_prints_a_line_a_sequence(folder, capsys):
    assert main(["sample", folder, "--num_sequences", "3", "--length", "7", "--seed", "5", "--first", "2"]) == 0
    rows = np.array([line.split() for line in capsys.readouterr().out.splitlines()], dtype=int)
    np.testing.assert_array_equal(rows, HMM_OF_TESTS.sample(3, 7, seed=5, first=2))


@pytest.mark.parametrize("suffix", [".npy", ".txt"])
def test_sample_writes_files_in_chunks(folder, tmp_path, suffix, monkeypatch, capsys):
    monkeypatch.setattr("hmm_datasets.commands.process._CHUNK_TOKENS", 20)
    path = tmp_path / f"tokens{suffix}"
    assert main(["sample", folder, "--num_sequences", "11", "--length", "6", "--output", str(path)]) == 0
    if suffix == ".npy":
        tokens = np.load(path)
        assert tokens.dtype == np.uint8
    else:
        tokens = np.loadtxt(path, dtype=int)
    np.testing.assert_array_equal(tokens, HMM_OF_TESTS.sample(11, 6))
    assert HMM_OF_TESTS.fingerprint() in capsys.readouterr().out
    assert os.listdir(tmp_path).count(path.name) == 1
    assert len(os.listdir(tmp_path)) == 2  # nothing temporary is left


@pytest.mark.thorough
def test_sample_of_large_alphabets_takes_two_bytes_a_token(tmp_path):
    hmm = HMM(transition=[[1.0]], emission=np.full((1, 300), 1 / 300))
    hmm.save_pretrained(tmp_path / "wide")
    main(["sample", str(tmp_path / "wide"), "--length", "50", "--output", str(tmp_path / "t.npy")])
    written = np.load(tmp_path / "t.npy")
    assert written.dtype == np.dtype("<u2")
    np.testing.assert_array_equal(written, hmm.sample(1, 50))


def test_sample_of_nothing_is_an_empty_file(folder, tmp_path):
    main(["sample", folder, "--num_sequences", "0", "--output", str(tmp_path / "t.npy")])
    assert np.load(tmp_path / "t.npy").shape == (0, 64)


@pytest.mark.thorough
def test_sample_tells_bad_input_and_leaves_nothing(folder, tmp_path, capsys):
    output = ["--output", str(tmp_path / "t.npy")]
    assert "neither a folder nor" in failing(capsys, "sample", str(tmp_path / "no" / "such" / "hmm"))
    assert "seed is -1" in failing(capsys, "sample", folder, "--seed", "-1", *output)
    assert "--first is -1; expected" in failing(capsys, "sample", folder, "--first", "-1", *output)
    assert "--length is -3" in failing(capsys, "sample", folder, "--length", "-3", *output)
    assert "ends in .npy or .txt" in failing(capsys, "sample", folder, "--output", str(tmp_path / "t.csv"))
    assert os.listdir(tmp_path) == ["hmm"]


@pytest.mark.thorough
def test_a_family_is_sampled_and_described_as_an_hmm_is(tmp_path, capsys):
    """Of chains whose rows are drawn from a Dirichlet distribution the optimum is known, by position."""
    family, folder = RandomChains(3, alpha=1.0), str(tmp_path / "chains")
    family.save_pretrained(folder)
    assert main(["sample", folder, "--num_sequences", "5", "--length", "6", "--first", "2"]) == 0
    printed = np.loadtxt(capsys.readouterr().out.splitlines(), dtype=int)
    np.testing.assert_array_equal(printed, family.sample(5, 6, 0, 2))
    assert main(["describe", folder, "--length", "8", "--num_sequences", "300", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    means = {name: values["mean"] for name, values in found["cross_entropy"].items()}
    assert means["oracle"] < means["bayes"] < means["bigram"] < means["uniform"] == pytest.approx(np.log(3))
    assert main(["describe", folder, "--length", "8", "--num_sequences", "300"]) == 0
    assert "with a new HMM for every sequence; fingerprint" in capsys.readouterr().out
    assert main(["describe", folder, "golden_mean"]) == 0
    assert "by position" in capsys.readouterr().out


@pytest.mark.thorough
def test_sample_into_a_closed_pipe_ends_quietly(folder):
    command = [sys.executable, "-m", "hmm_datasets.cli", "sample", folder, "--num_sequences", "20000"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=500) == 141


@pytest.mark.thorough
def test_entropy_rate_says_whether_it_is_exact(tmp_path, folder, capsys):
    processes.golden_mean().save_pretrained(tmp_path / "exact")
    assert main(["describe", str(tmp_path / "exact"), folder]) == 0
    exact, estimated = capsys.readouterr().out.splitlines()[2:4]
    assert exact.endswith("  0.462098, exact")
    expected = HMM_OF_TESTS.entropy_rate()
    assert f" +- {expected.standard_error:.1e}, in " in estimated


def test_plan_tells_a_settings_file_that_is_not_utf8(tmp_path, capsys):
    (tmp_path / "a.yaml").write_bytes(b"hmm: caf\xe9\n")
    told = failing(capsys, "plan", "pretrain", "--config", str(tmp_path / "a.yaml"))
    assert f"{tmp_path / 'a.yaml'}: not text in UTF-8: byte 8 is 0xe9, in line 1; save the file with" in told


def test_push_tells_bad_input(tmp_path, capsys):
    assert "nowhere" in failing(capsys, "push", str(tmp_path / "nowhere"), "me/it")


def test_watch_shows_a_run_and_fails_on_nan(tmp_path, capsys):
    path = tmp_path / "history.jsonl"
    for step in range(1, 5):
        append_jsonl(path, {"step": step, "time": 10.0 * step, "loss": 2.0, "max_steps": 4})
    assert main(["watch", str(tmp_path)]) == 0
    assert "4 of 4 (100.0%)" in capsys.readouterr().out
    assert main(["watch", str(path), "--follow"]) == 0
    append_jsonl(path, {"step": 5, "time": 50.0, "loss": float("nan"), "max_steps": 9})
    assert main(["watch", str(path)]) == 1
    assert "nan at step 5" in capsys.readouterr().out
    assert "no such file or folder" in failing(capsys, "watch", str(tmp_path / "nowhere"))
    assert "--every is 0; expected more than 0" in failing(capsys, "watch", str(path), "--follow", "--every", "0")


def test_preflight_prints_a_table_and_fails_where_a_check_does(tmp_path, capsys, monkeypatch):
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    assert main(["preflight", str(tmp_path), "--min_disk_gib", "1e9"]) == 1
    out = capsys.readouterr().out
    assert "disk: " in out
    assert "1e+09 needed; free some, or choose another output_dir" in out
    assert "unknown flag --learning_rate" in failing(capsys, "preflight", "--learning_rate", "1")


@pytest.mark.parametrize("words", [["push", "--config", "push.yaml"], ["checkpoint", "convert", "--too", "hf"]])
def test_an_unknown_flag_is_named_before_what_is_missing(words, capsys):
    flag = next(word for word in words if word.startswith("--"))
    assert f"error: unknown flag {flag}" in failing(capsys, *words)


def test_corpora_are_listed_with_size_and_licence(capsys):
    assert main(["describe"]) == 0
    told = capsys.readouterr().out
    assert "HuggingFaceFW/fineweb-edu" in told
    assert "9,672,101" in told
    assert "tinystories: licence: CDLA-Sharing-1.0" in told
    assert any(line.startswith("mess3") for line in told.splitlines())
    assert main(["describe", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["corpora"]
    assert {row["name"] for row in rows} >= {"tinystories", "smoltalk", "ultrachat", "lima"}


@pytest.mark.thorough
def test_plan_tells_what_a_settings_file_asks_for_and_takes_the_recipes_flags(folder, tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(f"hmm: {folder}\nlength: 9\nmodel: d1\ntrain_tokens: 1000\nglobal_batch_size: 8\n")
    command = ["plan", "pretrain", "--config", str(path), "--per_device_train_batch_size", "2"]
    assert main([*command, "--num_processes", "2"]) == 0
    told = capsys.readouterr().out
    assert "2 micro-batch x 2 accumulation x 2 ranks = 8 rows" in told
    assert "zero3" in told
    assert main([*command, "--max_steps", "7", "--train_tokens", "None", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 7 * 8 * 10
    assert failing(capsys, "plan", "pretrain", "--config", str(path), "--train_token", "3") == (
        "error: unknown flag --train_token; did you mean --train_tokens?"
    )


def test_only_plan_takes_flags_it_does_not_know(folder, capsys):
    assert "describe: unknown argument --max_steps" in failing(capsys, "describe", folder, "--max_steps", "7")


def test_flags_are_spelt_with_hyphens_or_underscores(folder, capsys):
    for flags in (["--num_sequences", "2"], ["--num_sequences", "2"], ["--num_sequences=2"]):
        assert main(["sample", folder, *flags, "--length=3"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.outside(
    "https://github.com/invoke-ai/InvokeAI/pull/4216",
    "flags that a program does not know, ignored in silence or named",
    "a flag that has gone is refused by its name, before anything is done",
)
@pytest.mark.parametrize(
    "words",
    [
        ("describe", "mess3", "--sequences", "tokens.npy"),
        ("sample", "mess3", "--columns", "states"),
        ("evaluate", "run", "--activations", "hidden_states"),
        ("watch", "run", "--stacks"),
        ("supervise", "--pause_after", "3", "--", "true"),
        ("push", "run", "me/run", "--tag", "v1"),
        ("--env",),
    ],
)
def test_a_flag_that_has_gone_is_refused_by_its_name(words, capsys):
    flag = next(word for word in words if word.startswith("--"))
    assert flag in failing(capsys, *words)
