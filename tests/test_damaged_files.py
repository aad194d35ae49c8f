"""Single bits of files are flipped at random places: whatever is read is refused in one line, or is what was written.

Files that a reader does not need, such as the tokenizer beside an HMM, may change.
"""

import random
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.paired_runs import ReportFolder
from hmm_datasets.files import read_json, write_digests, write_json, write_jsonl, written_together
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import HMMMixture, RandomChains
from hmm_datasets.hmm.families.mixture import ProcessMixture
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.fitting.state import load_state
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.structured.markov import MarkovChain
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.hub.parquet import write_split
from hmm_datasets.report.evaluation_tables import read_report
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.stream import TokenStream, write_tokens
from hmm_datasets.text.tokenizers.words import SPLITS, WordCorpus, build_word_corpus

FLIPS = 36  # of each file
TEXTS = ["The cat sat. The dog ran. A cat ran. The dog sat on a mat."] * 3 + ["The mat sat. A dog sat."]


def as_process(process):
    def build(folder: Path):
        process.save_pretrained(folder)
        return lambda: (load_source(folder).fingerprint(), getattr(load_source(folder), "vocabulary", None))

    return build


def hmm_with_names() -> HMM:
    return HMM(**processes.random(3, 8, seed=1).tables(), vocabulary=[f"word{number}" for number in range(8)])


def tilted(folder: Path):
    TiltedHMM(hmm_with_names(), np.linspace(0, 1, 8), 0.5, 6).save_pretrained(folder)
    return lambda: ((found := TiltedHMM.from_pretrained(folder)).fingerprint(), found.hmm.vocabulary)


def fit(folder: Path):
    tokens = processes.random(3, 4, alpha=0.4, seed=7).sample(20, 10, seed=1).astype(int)
    settings = FitSettings(num_states=2, max_epochs=1, batch_size=7, update_every=2, save_every=1)
    fit_hmm(tokens, settings, checkpoint_dir=folder.parent / "fit", show_progress=False, vocabulary="abcd")
    (folder.parent / "fit" / "epoch-1").rename(folder)
    identity = read_json(folder / "identity.json")

    def read():
        found = load_state(folder, identity)
        tables = {name: table.tolist() for name, table in found.statistics.tables.items()}
        return found.hmm.fingerprint(), found.hmm.vocabulary, found.epoch, found.updates, found.history, tables

    return read


def words(folder: Path):
    build_word_corpus(TEXTS, k=8, test_fraction=0.3).save(folder)

    def read():
        found = WordCorpus.load(folder)
        sentences = [sentence.tolist() for which in SPLITS for sentence in getattr(found, which)]
        return found.vocabulary, found.word_counts, found.num_words, found.test_fraction, sentences

    return read


def stream(folder: Path):
    settings = {"vocab_size": 9, "eos_id": 0, "tokenizer_hash": "x", "corpus": "c", "shard_tokens": 100}
    write_tokens([[number % 7 + 1] * (number % 9 + 2) for number in range(40)], folder, **settings)

    def read():
        found = TokenStream(folder, verify=False)
        for problem in found.problems():
            raise InputError(problem)
        return found.index, found.read(0, found.index.num_tokens).tolist()

    return read


def evaluation(folder: Path):
    with written_together(folder) as temporary:
        (temporary / "items").mkdir()
        write_jsonl(temporary / "items" / "text.jsonl", [{"document": n, "nats": n + 0.5} for n in range(9)])
        write_json(temporary / "report.json", {"model": {"name": "m"}, "text": {"bits_per_byte": 1.25}})
        write_digests(temporary, into=folder)
    return lambda: ((report := read_report(folder)), ReportFolder("a", folder, report).items("text"))


def parquet(folder: Path):
    rows = pa.Table.from_pylist(
        [{"text": " ".join(random.Random(n).choices(TEXTS[0].split(), k=9))} for n in range(99)]
    )
    folder.mkdir(parents=True)
    write_split(folder, "train", [rows], datasets.Features.from_arrow_schema(rows.schema))
    (folder / "data" / "train-00000-of-00001.parquet").rename(folder / "rows.parquet")
    return lambda: [row["text"] for row in load_corpus(str(folder / "rows.parquet"), kind="text", streaming=True)]


def pushed_parquet(folder: Path):
    parquet(folder)
    return lambda: [row["text"] for row in load_corpus(str(folder), kind="text", streaming=True)]


CHAIN = MarkovChain(np.random.default_rng(0).dirichlet(np.ones(2), (2, 2)))
KINDS = {
    "an HMM": as_process(hmm_with_names()),
    "a chain": as_process(CHAIN),
    "a mixture of processes": as_process(ProcessMixture([CHAIN, processes.even()], [0.5, 0.5])),
    "a family": as_process(RandomChains(5, alpha=1.0)),
    "a mixture of HMMs": as_process(HMMMixture((processes.even(), processes.golden_mean(0.3)), (0.5, 0.5))),
    "a tilted HMM": tilted,
    "a fit": fit,
    "words": words,
    "a token stream": stream,
    "an evaluation": evaluation,
    "a Parquet file": parquet,
    "a folder of Parquet files": pushed_parquet,
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_refused_in_one_line_or_changes_nothing(kind, tmp_path):
    datasets.disable_progress_bars()
    read = KINDS[kind](tmp_path / "folder")
    written, refused = read(), 0
    for path in sorted(path for path in (tmp_path / "folder").rglob("*") if path.is_file()):
        content, places = path.read_bytes(), random.Random(path.name)
        for _ in range(FLIPS):
            damaged, place = bytearray(content), places.randrange(len(content))
            damaged[place] ^= 1 << places.randrange(8)
            path.write_bytes(damaged)
            where = f"{path.name}, byte {place}: {bytes(damaged[max(place - 20, 0) : place + 10])!r}"
            try:
                found, error = read(), ""
            except InputError as raised:
                found, error = written, str(raised)
            assert found == written, where
            assert "\n" not in error, where
            refused += error != ""
        path.write_bytes(content)
    assert refused >= FLIPS // 2


@pytest.mark.thorough
def test_folders_from_before_there_were_digests_are_read(tmp_path):
    for kind, build in KINDS.items():
        read = build(tmp_path / kind / "folder")
        written = read()
        for path in (tmp_path / kind).rglob("digests.json"):
            path.unlink()
        assert read() == written, kind
