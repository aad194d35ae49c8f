"""Recipes as subcommands: flags of the launcher and of the recipe, and shipped files."""

import contextlib
import importlib.machinery
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import psutil
import pytest

from hmm_datasets.cli import build_parsers, main
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes
from hmm_datasets.operations.experiments import experiment_names, gallery, read_experiment
from hmm_datasets.operations.launching import (
    _read_launch,
    command_of,
    declared_kinds,
    launch_config,
    launch_configs,
    launch_of,
    recipe_command,
    recipe_names,
    recipe_settings,
    split_command,
)
from hmm_datasets.operations.stage_inputs import read_command
from hmm_datasets.runtime.command_line import parse_settings, setting_names
from hmm_datasets.runtime.environment import FIRST_START, host
from hmm_datasets.runtime.shipped import EXPERIMENTS, copy_shipped, list_shipped, local_or_shipped, shipped

ROOT = Path(__file__).resolve().parents[2]


def failing(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.fixture
def tokens(tmp_path, monkeypatch) -> Path:
    np.save(tmp_path / "tokens.npy", processes.mess3(0.15, 0.6).sample(40, 16))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tokens.npy"


def test_every_recipe_is_a_command_and_every_command_a_recipe():
    """Beside the `run.py` of an experiment are parts that other files of it start or import, or a program's own."""
    folder = ROOT / "recipes"
    scripts = {*folder.glob("*.py"), *folder.rglob("run.py")}
    assert {folder / recipe_command(name).script for name in recipe_names()} == scripts
    alone = {folder / "torchtitan/write_job.py", folder / "common/story_questions.py"}  # which writes a bundled corpus
    for part in {*folder.rglob("*.py")} - scripts - alone:
        users = folder.rglob("*.py") if part.parent.name == "common" else part.parent.glob("*.py")
        others = "".join(path.read_text(encoding="utf-8") for path in users if path != part)
        assert f"from {part.stem} import" in others or part.name in others, part


def test_no_recipe_hides_a_library():
    """Python puts the folder of a script first on the path, so a recipe hides a library of its name."""
    ours = [ROOT / "recipes", ROOT / "tests"]
    paths = [entry for entry in sys.path if not any(Path(entry or ".").resolve().is_relative_to(one) for one in ours)]
    for path in (ROOT / "recipes").rglob("*.py"):
        assert importlib.machinery.PathFinder.find_spec(path.stem, paths) is None, path
        assert path.stem not in sys.stdlib_module_names, path


def test_the_launcher_takes_its_own_flags_and_the_recipe_all_others():
    given = ["--num_processes", "2", "--learning_rate", "-1e-3", "--mixed_precision=bf16", "--multi_gpu"]
    given += ["--gradient-accumulation-steps", "4", "--weights", "0.5", "-0.5", "--config", "a.yaml", "--debug", "x"]
    given += ["--num-machines", "3", "--config_file", "b.yaml", "a word", "--num_proc", "7", "-m", "y"]
    launched = _read_launch("ddp", given, "run.py")
    assert (launched.num_processes, launched.mixed_precision, launched.multi_gpu) == (2, "bf16", True)
    assert (launched.num_machines, launched.config_file) == (3, str(launch_config("ddp")))
    assert (launched.training_script, launched.module, launched.gradient_accumulation_steps) == ("run.py", None, None)
    assert launched.training_script_args == given[2:4] + given[6:15] + given[17:]


def test_no_precision_given_to_the_launcher_is_float32_for_the_recipe():
    given = ["--launch", "ddp", "--max_steps", "3"]
    for said in (["--mixed_precision", "no"], ["--mixed-precision=no"]):
        for name in ("pretrain", "recipes/pretrain.py"):
            _, recipe = launch_of(name, [*given, *said])
            assert recipe == ["--max_steps", "3", "--bf16", "false"]
    for said in ([], ["--mixed_precision", "bf16"]):
        assert launch_of("pretrain", [*given, *said])[1] == ["--max_steps", "3"]
    assert launch_of("evaluate", ["--launch", "ddp", "--mixed_precision", "no"])[1] == []


def test_no_setting_of_a_recipe_is_taken_for_the_launchers():
    from hmm_datasets.evaluation.settings import EvaluationSettings
    from hmm_datasets.hmm.fitting.settings import FitSettings
    from hmm_datasets.training.model_configs import ModelSettings
    from hmm_datasets.training.settings import DPOSettings, GRPOSettings, PretrainSettings, SFTSettings
    from hmm_datasets.training.sources import DataSettings, MixtureSettings

    kinds = (PretrainSettings, SFTSettings, ModelSettings, DataSettings, MixtureSettings, EvaluationSettings)
    for kind in (*kinds, FitSettings, DPOSettings, GRPOSettings):
        flags = [f"--{field.name}" for field in fields(kind)]
        flags += [f"--{field.name.replace('_', '-')}" for field in fields(kind)]
        words = [word for flag in flags for word in (flag, "1")]
        assert _read_launch("ddp", words, "run.py").training_script_args == words


def test_bad_launches_are_reported_in_one_line(tokens, capsys):
    fit = ("fit", str(tokens), "--num_states", "3", "--output_dir", "run")
    assert "--launch nope: neither a YAML file nor one of cpu1, cpu2" in failing(capsys, *fit, "--launch", "nope")
    assert "argument --launch: expected one argument" in failing(capsys, *fit, "--launch")
    assert "--num_processes is a flag of the launcher; add --launch" in failing(capsys, *fit, "--num_processes", "2")
    assert "--launch cpu2: argument --num_processes" in failing(capsys, *fit, "--launch=cpu2", "--num_processes", "x")
    assert "demo runs in one process" in failing(capsys, "demo", "--launch", "cpu2")
    assert os.listdir(tokens.parent) == [tokens.name]


def test_an_empty_launch_means_none_for_every_recipe(tokens, capsys):
    assert (
        main(["fit", str(tokens), "--num_states", "3", "--max_epochs", "1", "--output_dir", "a", "--launch", ""]) == 0
    )
    said = failing(capsys, "experiment", "belief-geometry", "--launch", "", "--output_dir", "b", "--unknown", "x")
    assert said == "error: unknown flag --unknown; --help lists all"
    assert launch_of("belief-geometry", ["--launch=", "--output_dir", "b"]) == (None, ["--output_dir", "b"])
    assert launch_of("pretrain", ["--launch", "", "--hmm", "x"]) == (None, ["--hmm", "x"])


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/33990",
    "flags with hyphens for settings with underscores",
    "both spellings are understood; every help has underscores",
)
def test_a_misspelt_flag_is_answered_with_the_one_meant_and_both_spellings_are_known(tokens, capsys):
    fit = ("fit", str(tokens), "--output_dir", "run", "--num_states", "3")
    assert failing(capsys, *fit, "--max_epoch", "2") == "error: unknown flag --max_epoch; did you mean --max_epochs?"
    assert failing(capsys, *fit, "--max-epoch", "2") == "error: unknown flag --max_epoch; did you mean --max_epochs?"
    assert main([*fit, "--max-epochs", "1"]) == main([*fit, "--max_epochs", "2"]) == 0


def test_help_of_a_recipe_names_the_launchers_flags_and_its_own(capsys):
    assert main(["fit", "--help"]) == 0
    said = capsys.readouterr().out
    for expected in ("--launch CONFIG", "multi_node_zero2", "--num_processes", "--num_states", "--vocabulary_size"):
        assert expected in said


def test_a_program_that_reads_its_arguments_itself_describes_them(tmp_path, capsys):
    script = tmp_path / "own.py"
    script.write_text("import argparse\nargparse.ArgumentParser(description='reads by itself').parse_args()\n")
    for name, said in (
        ("demo", "Run the demo in outputs/demo"),
        (str(script), "reads by itself"),
    ):
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
        shown = capsys.readouterr().out
        assert said in shown
        assert len(shown.splitlines()) <= 60


@pytest.mark.thorough
def test_the_help_of_every_recipe_and_experiment_names_its_settings_on_one_screen(capsys):
    for name in recipe_names():
        declared = declared_kinds(ROOT / "recipes" / recipe_command(name).script)
        if name == "demo":
            assert not declared, "it describes its arguments itself; see the test above"
            continue
        assert setting_names(declared) <= setting_names(recipe_settings(name))
        assert main([*command_of(name), "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 60, name
        assert all(any(f"--{setting}" in line for line in lines) for setting in setting_names(declared)), name


def test_all_settings_are_described_too_and_those_of_a_script_of_the_user(tmp_path, capsys):
    assert main(["midtrain", "--help-all"]) == 0
    said = capsys.readouterr().out
    assert all(f"  --{name} " in said for name in ("streams", "global_batch_size", "gradient_checkpointing", "bf16"))
    script = tmp_path / "mine.py"
    script.write_text(
        '"""Count."""\nfrom dataclasses import dataclass\nfrom hmm_datasets.runtime.program import run\n'
        "@dataclass\nclass Mine:\n    number: int = 3\n"
        "def main(settings: Mine): ...\n"
        'if __name__ == "__main__":\n    run(main)\n'
    )
    assert main([str(script), "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Count.")
    assert "  --number [3]" in said


@pytest.mark.parametrize("name", ["ddp", "zero1", "zero2", "zero3", "fsdp2", "multi_node", "multi_node_zero2"])
def test_every_configuration_starts_on_several_machines_through_torchs_rendezvous(name):
    """pdsh and a host file, the default of accelerate for DeepSpeed, are on few clusters."""
    from accelerate.commands.launch import _validate_launch_command
    from accelerate.utils.launch import prepare_multi_gpu_env

    flags = ["--num_machines", "2", "--num_processes", "8", "--machine_rank", "1", "--main_process_ip", "10.0.0.1"]
    given = _read_launch(name, [*flags, "--main_process_port", "29511"], "run.py")
    given, *_ = _validate_launch_command(given)
    assert given.use_deepspeed == ("zero" in name)
    if given.use_deepspeed:
        assert given.deepspeed_multinode_launcher == "standard"
    prepare_multi_gpu_env(given)
    assert (given.nnodes, given.node_rank, given.nproc_per_node) == ("2", 1, "4")
    assert (given.rdzv_backend, given.rdzv_endpoint) == ("static", "10.0.0.1:29511")


def test_a_script_is_started_like_a_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("import sys; print(sys.argv)")
    assert main(["own.py", "--flag", "1"]) == 0
    assert capsys.readouterr().out == f"['{tmp_path / 'own.py'}', '--flag', '1']\n"
    assert failing(capsys, "nowhere.py").startswith("error: nowhere.py: no such script; `hmm-datasets configs` lists")
    assert failing(capsys, "recipes/tokenize_corpus.py", "--launch", "cpu2").startswith(
        "error: --launch cpu2: recipes/tokenize_corpus.py runs"
    )
    assert failing(capsys, "recipes/pretrain.py", "--hm", "x") == "error: unknown flag --hm; did you mean --hmm?"


def test_settings_are_read_from_here_or_else_as_shipped(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert local_or_shipped("demo/sft.yaml", "recipes") == shipped("recipes/demo/sft.yaml")
    assert local_or_shipped("recipes/demo/sft.yaml") == shipped("recipes/demo/sft.yaml")
    assert local_or_shipped("nowhere.yaml", "recipes") == Path("nowhere.yaml")
    assert copy_shipped("demo/sft.yaml") == Path("demo/sft.yaml")
    assert local_or_shipped("demo/sft.yaml", "recipes") == Path("demo/sft.yaml")
    line = failing(capsys, "pretrain", "--config", "demo/pretrain_hmm.yaml", "--hm", "x")
    assert line == "error: unknown flag --hm; did you mean --hmm?"


def test_the_shipped_file_that_is_read_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["pretrain", "--config", "demo/pretrain_hmm.yaml", "--output_dir", "run"])
    lines = capsys.readouterr().err.splitlines()
    assert f"--config demo/pretrain_hmm.yaml: no such file here; using the shipped {shipped()}" in lines[0]
    assert "outputs/demo/hmm/hmm" in lines[-1]


@pytest.mark.thorough
def test_shipped_files_are_listed_and_copied_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["configs"]) == 0
    said = capsys.readouterr().out
    for expected in ("belief-geometry", "demo/pretrain_hmm.yaml", "pretrain.py", "  fsdp2\n", "zero3.json"):
        assert expected in said
    assert main(["configs", "copy", "zero3"]) == 0
    assert (tmp_path / "zero3.yaml").read_bytes() == (ROOT / "accelerate_configs" / "zero3.yaml").read_bytes()
    assert main(["configs", "copy", "demo", "mine"]) == 0
    assert (tmp_path / "mine" / "sft.yaml").is_file()
    assert main(["configs", "copy", "pretrain.py", "mine"]) == 0
    assert (tmp_path / "mine" / "pretrain.py").is_file()
    assert "zero3.yaml exists; remove it, or name another" in failing(capsys, "configs", "copy", "zero3")
    assert "../README.md: no shipped file has that name" in failing(capsys, "configs", "copy", "../README.md")
    for folder, names in list_shipped().items():
        assert names, folder
        for name in names:
            assert copy_shipped(f"{folder}/{name}", tmp_path / "all" / folder / name).is_file()


def test_launch_configurations_are_found_by_name_or_as_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in launch_configs():
        assert launch_config(name) == shipped(f"accelerate_configs/{name}.yaml")
    (tmp_path / "ddp").mkdir()  # a folder, such as a run's
    assert launch_config("ddp").is_file()
    (tmp_path / "mine.yaml").write_text("num_processes: 1\n")
    assert launch_config("mine.yaml") == Path("mine.yaml")
    with pytest.raises(InputError, match="neither a YAML file nor one of"):
        launch_config("mine")


@pytest.mark.thorough
def test_evaluate_runs_under_accelerate_beside_the_library_of_that_name(launch, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, bos_token_id=3
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    processes.mess3(0.15, 0.6).save_pretrained(tmp_path / "hmm")
    launcher = ("accelerate.commands.accelerate_cli", "launch", "--config_file", ROOT / "accelerate_configs/cpu2.yaml")
    recipe = (ROOT / "recipes" / "evaluate_model.py", "--model", tmp_path / "model", "--targets", tmp_path / "hmm")
    few = ("--tasks", "optimum", "--num_sequences", 16, "--length", 8, "--output_dir", tmp_path / "report")
    result = launch(*launcher, *recipe, *few)
    assert result.returncode == 0, result.stderr
    assert read_json(tmp_path / "report" / "report.json")["optimum"]["bayes_gap"]["bayes_gap"] > 0


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/pytorch/pytorch/issues/120601",
    "--r=16 for a script that torchrun starts, which took it for --rdzv-backend, --role or --redirects: ambiguous",
    "with `--launch`, no flag of the launcher is abbreviated, and all others reach the recipe as they were written",
)
@pytest.mark.outside(
    "https://github.com/huggingface/accelerate/issues/996",
    "accelerate launch to end with an error if a rank does, where it ended with 0",
    "`--launch` ends with the exit code of the rank that failed first, of one rank and of several",
)
@pytest.mark.parametrize("config", ["cpu1", "cpu2"])
def test_a_script_gets_the_flags_that_resemble_the_launchers_and_its_exit_code_is_passed_on(config, launch, tmp_path):
    words = ["--r=16", "--num_proc", "2", "--ro", "a", "-t", "3"]
    (tmp_path / "own.py").write_text(
        "import os, sys\nfrom pathlib import Path\nrank = os.environ.get('RANK', '0')\n"
        "Path(sys.argv[0]).with_name(f'rank{rank}').write_text(' '.join(sys.argv[1:]))\n"
        "started, ranks = Path(sys.argv[0]).parent, int(os.environ.get('WORLD_SIZE', '1'))\n"
        "while rank == '0' and len([*started.glob('rank*')]) < ranks:  # the launcher would end the others\n"
        "    pass\n"
        "sys.exit(3 if rank == '0' else 0)\n"
    )
    result = launch("hmm_datasets.cli", tmp_path / "own.py", *words[:3], "--launch", config, *words[3:])
    assert result.returncode == 3, result.stderr
    texts = [path.read_text() for path in tmp_path.glob("rank*")]
    assert texts == [" ".join(words)] * int(config[-1])


@pytest.mark.thorough
@pytest.mark.parametrize(("config", "code"), [("cpu1", 0), ("cpu2", 128 + signal.SIGTERM)])
def test_a_signal_to_the_launcher_ends_its_ranks(config, code, tokens, child_environment):
    """The fit saves and ends with 0, which is passed on; torch's launcher of several ranks has a code of its own."""
    command = [sys.executable, "-m", "hmm_datasets.cli", "fit", str(tokens), "--num_states", "90", "--launch", config]
    command += ["--max_epochs", "1000000", "--tolerance", "0", "--output_dir", str(tokens.parent / "run")]
    with (
        subprocess.Popen(command, env=child_environment, stderr=subprocess.DEVNULL) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)  # a failure must not wait for a fit of a million epochs
        limit = time.monotonic() + 500
        while not (tokens.parent / "run" / "fit").exists():
            assert time.monotonic() < limit
            assert process.poll() is None
            time.sleep(0.1)
        ranks = psutil.Process(process.pid).children(recursive=True)
        noted = [rank.environ().get(FIRST_START, "") for rank in ranks]
        assert any(one.startswith(f"{host()} {process.pid} ") for one in noted), (
            "time limits count from the launcher's start"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=500) == code
    assert ranks
    assert not [rank for rank in ranks if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE]


def test_every_experiment_is_in_the_gallery_with_its_paper_time_and_picture(capsys):
    folders = {path.name for path in shipped(EXPERIMENTS).iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert {one.name.replace("-", "_") for one in gallery()} == folders
    assert main(["experiment"]) == 0
    said = capsys.readouterr().out
    picture = shipped(EXPERIMENTS) / "four_phases" / "four_phases.png"
    assert (
        "four-phases: Retrieval or inference in mixtures of Markov chains\n"
        "    paper: Park et al. 2025 (https://arxiv.org/abs/2412.01003)\n"
        f"    time on two cores: 3.3 minutes, on one of them\n    picture: {picture}\n"
    ) in said


def test_readmes_of_experiments_say_how_they_are_started_and_lead_somewhere():
    for one in gallery():
        path = shipped(EXPERIMENTS) / one.name.replace("-", "_") / "README.md"
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        assert f"\nhmm-datasets experiment {one.name}" in text, path
        for link in re.findall(r"\]\(([^)#]+)[)#]", text):
            assert link.startswith("https://") or (path.parent / link).is_file(), (path, link)
        for line in re.findall(r"^hmm-datasets (.+)$", text, flags=re.MULTILINE):
            started = split_command(shlex.split(line))
            if started is not None:
                read_command(*started)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# other\n\nWhat.\n\n- Paper: none\n- Time on two cores: one\n",
        "# an-experiment\n\nWhat.\n\n- Paper: none\n",
    ],
)
def test_a_readme_that_does_not_say_what_the_gallery_shows_is_refused(text, tmp_path):
    path = tmp_path / "an_experiment" / "README.md"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InputError, match="does not begin with `# an-experiment`, one line of what it shows"):
        read_experiment(path)


def test_a_picture_that_was_left_out_of_the_package_is_none_and_the_repository_has_all(tmp_path):
    path = tmp_path / "one" / "README.md"
    path.parent.mkdir()
    path.write_text("# one\n\nWhat.\n\n- Paper: none\n- Time on two cores: one\n\n![A picture](a.png)\n")
    assert read_experiment(path).picture is None
    shown = [
        readme.parent / name
        for readme in (ROOT / "recipes").rglob("README.md")
        for name in re.findall(r"!\[[^]]*\]\(([^)]+\.png)\)", readme.read_text(encoding="utf-8"))
    ]
    assert len(shown) > 20
    assert not [picture for picture in shown if not picture.is_file()]


def test_names_of_experiments_are_no_other_commands():
    assert not {*experiment_names()} & {*build_parsers()[1]}


def test_an_unknown_experiment_is_answered_with_the_nearest(capsys):
    said = failing(capsys, "experiment", "four_phase")
    assert said == (
        "error: experiment four_phase: no such experiment; did you mean four-phases? "
        "`hmm-datasets experiment` lists all"
    )
    assert "experiment pretrain: no such experiment" in failing(capsys, "experiment", "pretrain")


def test_the_first_argument_of_an_experiment_is_its_first_setting():
    """As `belief-geometry FOLDER` and `llm-on-hmms MODEL` had it."""
    for name in experiment_names():
        (kind,) = recipe_settings(name)
        assert recipe_command(name).first == f"--{fields(kind)[0].name}", name
    assert launch_of("llm-on-hmms", ["MODEL", "--length", "9"]) == (None, ["--model", "MODEL", "--length", "9"])
    assert launch_of("belief-geometry", ["out"]) == (None, ["--output_dir", "out"])


def test_files_of_experiments_are_found_without_their_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new = shipped(EXPERIMENTS)
    for name in (
        "nonergodic/small.yaml",
        "recipes/nonergodic/small.yaml",
        "recipes/experiments/nonergodic/small.yaml",
    ):
        assert local_or_shipped(name, "recipes") == new / "nonergodic" / "small.yaml"
    assert local_or_shipped("recipes/known_optimum/llama.json") == new / "known_optimum" / "llama.json"
    assert local_or_shipped("recipes/belief_geometry/run.py", "recipes") == new / "belief_geometry" / "run.py"
    assert launch_of("recipes/belief_geometry/run.py", ["out"]) == (None, ["--output_dir", "out"])
    assert copy_shipped("nonergodic") == Path("nonergodic")
    assert local_or_shipped("nonergodic/small.yaml", "recipes") == Path("nonergodic/small.yaml")


@pytest.mark.outside(
    "https://github.com/deepspeedai/DeepSpeed/issues/4156",
    "a DeepSpeed file that a launch configuration names by a relative path, from another folder",
    "found beside the configuration or among the shipped ones; else one line that names file and folder",
)
def test_the_deepspeed_file_of_a_configuration_is_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine" / "configs").mkdir(parents=True)
    (tmp_path / "mine" / "ds").mkdir()
    (tmp_path / "mine" / "ds" / "own.json").write_text("{}")
    text = shipped("accelerate_configs/zero2.yaml").read_text()
    own = tmp_path / "mine" / "configs" / "own.yaml"
    monkeypatch.chdir(tmp_path / "elsewhere")
    for named, found in (("ds/own.json", tmp_path / "mine/ds/own.json"), ("../ds/own.json", None)):
        own.write_text(text.replace("ds_configs/zero2.json", named))
        given = _read_launch(str(own), [], "run.py")
        assert Path(given.deepspeed_config_file).samefile(found or tmp_path / "mine/ds/own.json")
    given = _read_launch(str(shipped("accelerate_configs/zero2.yaml").resolve()), [], "run.py")
    assert Path(given.deepspeed_config_file).samefile(shipped("ds_configs/zero2.json"))
    own.write_text(text.replace("ds_configs/zero2.json", "ds/none.json"))
    with pytest.raises(
        InputError,
        match=r"own\.yaml: deepspeed_config_file: ds/none\.json: no such file in .*elsewhere, .*mine/configs, ",
    ):
        _read_launch(str(own), [], "run.py")
    # What `accelerate launch --config_file` passes to the processes that it starts.
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", "ds_configs/zero2.json")
    parse_settings(_Nothing, arguments=[])
    assert Path(os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"]).samefile(shipped("ds_configs/zero2.json"))
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", "ds/none.json")
    with pytest.raises(InputError, match=r"ds/none\.json: no such file in .*elsewhere; write its whole path"):
        parse_settings(_Nothing, arguments=[])


@dataclass
class _Nothing:
    """No settings."""
