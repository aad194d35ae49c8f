"""Bad input to a recipe: exit code 2, one line on stderr, no incomplete files."""

import json

from hmm_datasets.runtime.rank_heartbeats import FOLDER_NAME

SMALL = ("--global_batch_size", 4, "--per_device_train_batch_size", 2, "--max_steps", 1)


def refused(result) -> str:
    """The single line of the program's error."""
    assert result.returncode == 2, f"exit code {result.returncode}: {result.stderr[-3000:]}"
    assert "Traceback" not in result.stderr, result.stderr[-3000:]
    lines = [line for line in result.stderr.splitlines() if "error: " in line]
    assert len(lines) == 1, result.stderr[-3000:]
    return lines[0]


def test_a_missing_settings_file_is_named(program):
    assert "nowhere.yaml" in refused(program.run("recipes/fit_hmm.py", "--config", "nowhere.yaml"))


def test_a_misspelt_key_is_named_with_the_one_meant(program, hmm_folder, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(f"hmm: {hmm_folder}\noutput_dir: {tmp_path / 'run'}\nlerning_rate: 0.1\n")
    line = refused(program.run("recipes/pretrain.py", "--config", path))
    assert str(path) in line
    assert "lerning_rate" in line
    assert "learning_rate" in line
    assert not (tmp_path / "run").exists()


def test_a_missing_hmm_is_named(program, tmp_path):
    output = tmp_path / "run"
    line = refused(program.run("recipes/pretrain.py", "--hmm", tmp_path / "none", "--output_dir", output, *SMALL))
    assert str(tmp_path / "none") in line
    assert not output.exists()


def test_a_table_that_is_not_a_distribution_is_refused(program, hmm_folder, tmp_path):
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "hmm"
    folder.mkdir()
    tables = load_file(hmm_folder / "model.safetensors")
    tables["transition"][3, 0] += 0.5
    save_file(tables, folder / "model.safetensors")
    (folder / "config.json").write_bytes((hmm_folder / "config.json").read_bytes())
    output = tmp_path / "run"
    line = refused(program.run("recipes/pretrain.py", "--hmm", folder, "--output_dir", output, *SMALL))
    assert "transition[3] sums to 1.5" in line
    assert not output.exists()


def test_an_empty_corpus_is_refused(program, tmp_path):
    corpus = tmp_path / "empty.txt"
    corpus.write_text("")
    output = tmp_path / "run"
    line = refused(program.run("recipes/tokenize_corpus.py", "--corpus", corpus, "--output_dir", output))
    assert str(corpus) in line
    assert not (output / "tokenizer").exists()
    assert not (output / "text").exists()


def test_a_missing_model_is_named(program, hmm_folder, tmp_path):
    output = tmp_path / "out"
    line = refused(
        program.run(
            *(
                "recipes/evaluate_model.py",
                "--model",
                tmp_path / "none",
                "--targets",
                hmm_folder,
                "--output_dir",
                output,
            ),
        )
    )
    assert str(tmp_path / "none") in line
    assert not output.exists()


def test_symbols_outside_the_models_vocabulary_are_refused(program, hmm_folder, tmp_path):
    from transformers import LlamaForCausalLM

    from hmm_datasets.training.model_configs import model_config

    LlamaForCausalLM(model_config("1m", vocab_size=4, max_length=32)).save_pretrained(tmp_path / "model")
    line = refused(
        program.run(
            *("recipes/evaluate_model.py", "--model", tmp_path / "model", "--targets", hmm_folder),
            *("--output_dir", tmp_path / "out", "--length", 8, "--num_sequences", 4),
        )
    )
    assert "the model has 4 tokens, but the data have 11" in line
    assert not (tmp_path / "out").exists()


def test_a_world_size_that_does_not_divide_the_global_batch_is_refused(program, hmm_folder, tmp_path):
    output = tmp_path / "run"
    result = program.launch(
        "cpu2",
        *("recipes/pretrain.py", "--hmm", hmm_folder, "--output_dir", output, "--max_steps", 1),
        *("--global_batch_size", 6, "--per_device_train_batch_size", 2),
    )
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if "error: " in line]
    assert lines == [
        "error: global_batch_size 6 is not a multiple of world size 2 x per_device_train_batch_size 2; "
        "change one of the three, such as --per_device_train_batch_size 1"
    ]
    # The launcher may end the other rank before that has removed its heartbeat.
    assert not [path for path in output.rglob("*") if path.is_file() and path.parent.name != FOLDER_NAME]


def test_a_folder_of_another_run_is_refused_and_kept(program, succeeded, hmm_folder, tmp_path):
    output = tmp_path / "run"
    arguments = ("recipes/pretrain.py", "--hmm", hmm_folder, "--output_dir", output, "--model", "1m", *SMALL)
    succeeded(program.run(*arguments, "--length", 8))
    before = (output / "model.safetensors").read_bytes()
    line = refused(program.run(*arguments, "--length", 9))
    assert "of another run: data.length was 8 and is 9" in line
    assert (output / "model.safetensors").read_bytes() == before
    assert json.loads((output / "run.json").read_text())["data"]["length"] == 8
