"""The data set folder of an HMM or family: plain `datasets` reads it, and it holds what the process says."""

import numpy as np
import pytest
from datasets import load_dataset
from huggingface_hub import DatasetCard
from pyarrow import parquet

from hmm_datasets import HMM, load_source
from hmm_datasets.data.sequences import TEST_FIRST
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.entropy import made_to_agree
from hmm_datasets.hmm.families import PermutedSymbols, RandomChains
from hmm_datasets.hub.kinds.process import write_hmm_dataset
from hmm_datasets.report.predictor_losses import predictors_table
from hmm_datasets.report.process_description import describe_process

NAMED = HMM(
    start=[0.5, 0.5],
    transition=[[0.9, 0.1], [0.3, 0.7]],
    emission=[[0.6, 0.3, 0.1], [0.0, 0.2, 0.8]],
    vocabulary=("sun", "rain", "snow"),
)
SOURCES = {
    "edges": processes.mess3(0.15, 0.6),
    "named": NAMED,
    "chains": RandomChains(4, alpha=1.0),
    "permuted": PermutedSymbols(NAMED),
}
SIZES = {"num_sequences": 300, "num_test_sequences": 20, "length": 12, "seed": 5}


@pytest.fixture(scope="module", params=SOURCES)
def written(request, tmp_path_factory):
    source, folder = SOURCES[request.param], tmp_path_factory.mktemp("hmm") / "data"
    return source, write_hmm_dataset(source, folder, **SIZES, licence="cc0-1.0", show_progress=False)


@pytest.mark.thorough
def test_plain_datasets_reads_the_rows_that_the_builder_streams(written, tmp_path):
    source, folder = written
    plain = load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert {name: split.num_rows for name, split in plain.items()} == {"train": 300, "test": 20}
    for name, first in (("train", 0), ("test", TEST_FIRST)):
        tokens = source.sample(plain[name].num_rows, 12, seed=5, first=first)
        np.testing.assert_array_equal(np.array(plain[name]["input_ids"][:])[:, 1:], tokens)
        assert {row[0] for row in plain[name]["input_ids"]} == {source.num_symbols}
    oracle = load_dataset(str(folder), "oracle", cache_dir=str(tmp_path / "cache"))
    for name in ("train", "test"):
        stream = load_dataset(
            "hmm",
            data_dir=str(folder),
            length=12,
            seed=5,
            columns=oracle[name].column_names,
            num_test_sequences=20,
            split=name,
            streaming=True,
            cache_dir=str(tmp_path / "cache"),
        )
        assert oracle[name].features == stream.features
        assert list(oracle[name]) == list(stream.take(oracle[name].num_rows))
    assert load_source(folder).fingerprint() == source.fingerprint()


@pytest.mark.thorough
def test_the_card_loads_the_configs_and_tells_the_floor(written):
    source, folder = written
    card = DatasetCard.load(folder / "README.md")
    assert card.data.license == "cc0-1.0"
    assert [config["config_name"] for config in card.data.configs] == ["default", "oracle"]
    assert source.fingerprint() in card.text
    if isinstance(source, HMM):
        rate, bounds = made_to_agree(source.entropy_rate(), source.entropy_rate_bounds(length=512))
        assert f"{rate.value:.5f}" in card.text
        assert f"{bounds.lower:.5f} with the first state known, {bounds.upper:.5f} without" in card.text
    assert predictors_table(describe_process(source, length=12, seed=5)).splitlines()[-2] in card.text
    assert (folder / "optimal_loss.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_parquet_is_written_for_the_viewer_and_twice_alike(tmp_path):
    folders = [
        write_hmm_dataset(processes.mess3(0.15, 0.6), tmp_path / name, **SIZES, name="x", show_progress=False)
        for name in "ab"
    ]
    files = [sorted(path.relative_to(folder) for path in folder.rglob("*.parquet")) for folder in folders]
    assert files[0] == files[1]
    for name in files[0]:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
        metadata = parquet.ParquetFile(folders[0] / name).metadata
        assert metadata.row_group(0).column(0).has_offset_index
    more = write_hmm_dataset(
        processes.mess3(0.15, 0.6),
        tmp_path / "c",
        **SIZES | {"num_sequences": 9000},
        max_shard_bytes=60_000,
        show_progress=False,
    )
    assert len(list(more.glob("data/train-*.parquet"))) == 3
    assert load_dataset(str(more), split="train", cache_dir=str(tmp_path / "cache")).num_rows == 9000


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"num_sequences": 0}, "num_sequences is 0; expected an integer in"),
        ({"length": 0}, "length is 0; expected an integer in"),
        ({"seed": -1}, r"seed is -1; expected an integer in \[0, 2\*\*64\)"),
    ],
)
def test_numbers_out_of_range_are_named_and_nothing_is_written(tmp_path, settings, complaint):
    with pytest.raises(InputError, match=complaint):
        write_hmm_dataset(NAMED, tmp_path / "data", **settings)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(InputError, match="exists already; choose another folder"):
        write_hmm_dataset(NAMED, tmp_path)
