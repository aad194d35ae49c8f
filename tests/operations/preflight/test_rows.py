"""The first rows of a rank are those that the recipe's trainer would give it."""

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.operations.preflight.rows import first_rows


@pytest.fixture
def flags(tmp_path):
    processes.mess3(0.15, 0.6).save_pretrained(tmp_path / "mess3")
    return ["--hmm", str(tmp_path / "mess3"), "--output_dir", str(tmp_path / "run"), "--model", "1m"]


@pytest.mark.launch
def test_one_process_reads_the_first_micro_batches_of_the_run(flags, tmp_path):
    batches = ["--global_batch_size", "6", "--per_device_train_batch_size", "3"]
    check, found = first_rows("demo/pretrain_hmm.yaml", [*flags, *batches], 1)
    assert check.ok, check.detail
    assert found["rows"] == [0, 1, 2, 3, 4, 5]
    assert not (tmp_path / "run").exists()
    _, other = first_rows("demo/pretrain_hmm.yaml", [*flags, *batches, "--stream_seed", "1"], 1)
    assert other["rows"] == found["rows"]
    assert other["own"] != found["own"]
    assert other["data"] != found["data"]


def test_settings_that_the_recipe_refuses_are_refused(flags):
    with pytest.raises(InputError, match="unknown flag --no_such_flag"):
        first_rows("demo/pretrain_hmm.yaml", [*flags, "--no_such_flag", "1"], 1)


def test_rows_of_other_recipes_are_not_read():
    check, found = first_rows("demo/sft.yaml", (), 1)
    assert check.ok
    assert check.detail.startswith("not read: demo/sft.yaml has conversations")
    assert found == {}
