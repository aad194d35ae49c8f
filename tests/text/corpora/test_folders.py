"""Folders and files of people: one kind of file is read, all else is named, and no encoding is guessed."""

import csv
import gzip
import itertools
import json

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora import loading
from hmm_datasets.text.corpora.loading import load_corpus

DOCUMENTS = [f"Story {number}.\nIt has two lines." for number in range(8)]
BESIDE = ["notes.md", "LICENSE", "LICENSE.txt", "README.rst", "meta.csv", "metadata.jsonl", "a.png", ".hidden.txt"]
BESIDE += ["generation_config.json", "tokenizer.json", "model.safetensors.index.json", "family.json"]
SUFFIXES = [".txt", ".txt.gz", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"]


def write(path, documents):
    """A file of any of the forms with these documents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, suffix = [{"text": text} for text in documents], path.suffix
    if path.name.endswith(".txt.gz"):
        path.write_bytes(gzip.compress("<|endoftext|>".join(documents).encode()))
    elif suffix == ".txt":
        path.write_text("<|endoftext|>".join(documents))
    elif suffix in (".jsonl", ".ndjson"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == ".json":
        path.write_text(json.dumps(rows))
    elif suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text"], delimiter="," if suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)


def texts(name, **settings) -> list[str]:
    return [row["text"] for row in load_corpus(name, **settings)]


def refused(name, **settings) -> str:
    with pytest.raises(InputError) as caught:
        texts(name, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.outside(
    "https://github.com/huggingface/datasets/issues/5849",
    "a folder of CSV files with an image: only the CSV files are read",
    "files of one kind are read, in any of eight forms, and the others are named",
)
def test_what_stands_beside_the_files_of_a_folder_changes_no_document_and_is_named(suffix, tmp_path, capsys):
    for number, document in enumerate(DOCUMENTS):
        write(tmp_path / ("sub" * (number % 2)) / f"part-{number}{suffix}", [document])
    alone = texts(tmp_path, test_fraction=0.0)
    assert sorted(alone) == DOCUMENTS
    assert "not read" not in capsys.readouterr().err
    splits = [texts(tmp_path, split=split, test_fraction=0.4) for split in ("train", "test")]
    assert sorted(itertools.chain(*splits)) == DOCUMENTS
    for name in BESIDE:
        (tmp_path / name).write_bytes(b"one line\nanother \xff line\n")
        loading._recognized.clear()
        assert texts(tmp_path, test_fraction=0.0) == alone
        assert name in capsys.readouterr().err.partition("not read: ")[2]
        if not name.endswith((".md", ".txt", ".csv")):  # no more than eight are named
            (tmp_path / name).unlink()
    assert [texts(tmp_path, split=split, test_fraction=0.4) for split in ("train", "test")] == splits


@pytest.mark.parametrize(("one", "other"), itertools.combinations([".txt", ".jsonl", ".json", ".csv", ".parquet"], 2))
def test_two_kinds_in_a_folder_are_refused_and_the_pattern_that_the_error_names_reads_one(one, other, tmp_path):
    for number, document in enumerate(DOCUMENTS):
        write(tmp_path / f"part-{number}{one}", [document])
    write(tmp_path / f"other{other}", ["Other."])
    error = refused(tmp_path)
    assert f"has files of several kinds, 8 {one} and 1 {other}; expected one kind" in error
    assert texts(error.partition("as '")[2].removesuffix("'"), test_fraction=0.0) == DOCUMENTS


@pytest.mark.parametrize("name", ["a.arrow", "a.docx", "a.xml", "a.tar", "a.zip", "LICENSE", "metadata.csv", ".a.txt"])
def test_a_folder_without_a_file_that_is_read_is_refused_by_what_it_has(name, tmp_path):
    (tmp_path / name).write_bytes(b"text\n")
    error = refused(tmp_path)
    assert "expected files that end in .txt, " in error
    assert f"found 1 {'.' if name.count('.') else ''}" in error


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("form", ["{split}{suffix}", "{split}/a{suffix}", "data/{split}-00000-of-00001{suffix}"])
def test_names_of_splits_divide_a_folder_and_a_file_in_none_is_named(form, suffix, tmp_path):
    for split, document in zip(("train", "test", "validation"), DOCUMENTS, strict=False):
        write(tmp_path / form.format(split=split, suffix=suffix), [document])
    (tmp_path / "LICENSE").write_text("MIT")
    read = [texts(tmp_path, split=split) for split in ("train", "test", "validation")]
    assert read == [[document] for document in DOCUMENTS[:3]]
    write(tmp_path / f"extra{suffix}", ["Extra."])
    assert f"extra{suffix}: is in no split by its name, but {tmp_path} has files that are named" in refused(tmp_path)


def test_a_folder_of_test_data_alone_is_not_trained_on(tmp_path):
    write(tmp_path / "test.jsonl", DOCUMENTS)
    assert "split='train', but its files have the splits test" in refused(tmp_path)
    assert texts(tmp_path, split="test") == DOCUMENTS


def test_a_repository_whose_readme_names_text_line_by_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(tmp_path / "data" / "a.txt", DOCUMENTS)
    (tmp_path / "data" / "README.md").write_text("---\nconfigs:\n- config_name: x\n  data_files: a.txt\n---\n")
    assert "names text, of which datasets makes each line a document" in refused(tmp_path / "data")


@pytest.mark.parametrize("encoding", ["cp1252", "cp874", "shift_jis", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".jsonl", ".csv"])
@pytest.mark.outside(
    "https://github.com/ml5js/training-charRNN/issues/5",
    "train on a text that is not UTF-8, byte 0x92",
    "refused with the line; the encoding is not guessed, and the remedy asks for it",
)
def test_no_encoding_is_guessed(suffix, encoding, tmp_path):
    text = {"cp874": "ก ข ค", "shift_jis": "日本語"}.get(encoding, "it’s late")
    content = {".jsonl": json.dumps({"text": text}, ensure_ascii=False), ".csv": f"text\n{text}"}.get(suffix, text)
    content = (content + "\n").encode(encoding)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    error = refused(path, test_fraction=0.0)
    assert f"a{suffix}:" in error
    assert "1252" not in error
    if encoding in ("cp1252", "cp874", "shift_jis"):
        assert "convert the file with iconv -f ENCODING -t UTF-8, where ENCODING is the one that" in error


def test_a_nul_character_in_a_text_is_named_with_its_line(tmp_path):
    for name, content in (("a.txt", b"One.\nTwo.\0\0\0\n"), ("a.csv", b"text\n\0\n")):
        (tmp_path / name).write_bytes(content)
        assert f"{name}:2: has a NUL character" in refused(tmp_path / name, test_fraction=0.0)


@pytest.mark.parametrize("line", ['{"text": "A", "text": "B"}', '[{"role": "user", "role": "assistant"}]'])
def test_a_key_that_stands_twice_in_json_is_refused(line, tmp_path):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "A"}}\n{line}\n')
    assert "a.jsonl:2: an object has the key '" in refused(tmp_path / "a.jsonl", test_fraction=0.0)


@pytest.mark.parametrize(("folder", "name"), [("data[1]", "a.jsonl"), ("a*b", "a.jsonl"), ("sp ace", "a b.jsonl")])
def test_signs_of_patterns_in_the_name_of_a_folder_are_none(folder, name, tmp_path):
    write(tmp_path / folder / name, DOCUMENTS)
    assert texts(tmp_path / folder, test_fraction=0.0) == DOCUMENTS


@pytest.mark.parametrize("name", ["__x/a.jsonl", "data/a b-00000-of-00001.jsonl"])
def test_names_that_datasets_refuses_are_refused_in_a_line(name, tmp_path):
    write(tmp_path / name, DOCUMENTS)
    assert "rename files, or name them by a pattern in quotes" in refused(tmp_path)
