"""Writing token streams: refused input, the state after an error, and resuming after one."""

import errno
import os
import re
import resource

import numpy as np
import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.text.stream import INDEX_NAME, TokenStream, write_tokens
from hmm_datasets.text.stream.writer import writing

EOS = 9


def write(folder, documents, **changes):
    settings = {"vocab_size": 10, "eos_id": EOS, "tokenizer_hash": "none", "corpus": "test"}
    return write_tokens(documents, folder, **settings | changes)


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def contents(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def numbers(count: int):
    """Documents of three tokens, long enough to fill batches: two to a shard of 100,000."""
    return [np.full(50_000, number % 9) for number in range(count)]


def broken_after(documents, error):
    yield from documents
    raise error


SHARD = 100_000


# What a stream is made of


def test_eos_ends_every_document_once_whether_or_not_it_was_there(tmp_path):
    index = write(tmp_path / "a", [[1, 2, 3], [4, EOS], np.array([5], dtype=np.uint16), (6,), np.array([7, EOS])])
    stream = TokenStream(tmp_path / "a")
    assert stream.read(0, 11).tolist() == [1, 2, 3, EOS, 4, EOS, 5, EOS, 6, EOS, 7][:11]
    assert (index.num_documents, index.num_tokens, index.num_empty) == (5, 12, 0)


def test_empty_documents_are_left_out_counted_and_reported_once(tmp_path, caplog):
    index = write(tmp_path / "a", [[], [1], [EOS], [], [2], []], shard_tokens=1)
    assert TokenStream(tmp_path / "a").read(0, 4).tolist() == [1, EOS, 2, EOS]
    assert (index.num_documents, index.num_empty) == (2, 4)
    assert [shard.num_empty for shard in index.shards] == [1, 2]
    assert [record.getMessage() for record in caplog.records] == ["test: left out 4 empty documents"]


@pytest.mark.thorough
def test_how_documents_come_in_batches_changes_nothing(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    documents = [random.integers(0, 9, size=size) for size in random.integers(0, 50, size=300)]
    written = []
    for batch_tokens in (1, 100, 1 << 16):
        monkeypatch.setattr("hmm_datasets.text.stream.writer._BATCH_TOKENS", batch_tokens)
        write(tmp_path / str(batch_tokens), documents, shard_tokens=333)
        written.append(contents(tmp_path / str(batch_tokens)))
    assert written[0] == written[1] == written[2]


def test_bytes_are_counted_by_token(tmp_path):
    index = write(tmp_path / "a", [[1, 2], [2], [1]], token_bytes=[0, 10, 20, *[90] * 6, 0], shard_tokens=4)
    assert (index.num_bytes, [shard.num_bytes for shard in index.shards]) == (60, [50, 10])
    assert write(tmp_path / "b", [[1]]).num_bytes is None
    assert "token_bytes has the shape (3,), expected (10,)" in message(
        write, tmp_path / "c", [[1]], token_bytes=[1] * 3
    )


# Refused


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        ([[1], [2, 10, 3]], "document 1: token 10 at position 1 is outside the vocabulary of 10"),
        ([[1], [2], [-1]], "document 2: token -1 at position 0 is outside the vocabulary of 10"),
        ([[], [2], [3, 1, EOS, 2]], "document 2: EOS (9) at position 2, which is not the end"),
        ([[1, EOS, EOS]], "document 0: EOS (9) at position 1, which is not the end"),
        ([[1.5]], "document 0: token ids have type float64; expected integers; document 0: token ids[0] is 1.5"),
        ([[[1]]], "document 0: expected a list of token ids, found int64 (1, 1)"),
        ([], "test: no documents to write"),
        ([[], [EOS]], "test: no documents to write, all 2 read are empty"),
    ],
)
def test_impossible_documents_are_refused_and_nothing_is_left(tmp_path, documents, told):
    assert told in message(write, tmp_path / "a", documents)
    assert list(tmp_path.iterdir()) == []


def test_impossible_settings_are_refused(tmp_path):
    assert "eos_id=10 and vocab_size=10" in message(write, tmp_path / "a", [[1]], eos_id=10)
    assert "eos_id=-1" in message(write, tmp_path / "a", [[1]], eos_id=-1)
    assert "shard_tokens=0: expected at least 1" in message(write, tmp_path / "a", [[1]], shard_tokens=0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_only_if_it_is_a_token_stream_and_only_with_overwrite(tmp_path):
    write(tmp_path / "a", [[1, 2]])
    assert "overwrite=True" in message(write, tmp_path / "a", [[1]])
    write(tmp_path / "a", [[1]], overwrite=True)
    assert TokenStream(tmp_path / "a").num_tokens == 2
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").write_text("weeks of work")
    assert "contains something else" in message(write, tmp_path / "run", [[1]], overwrite=True)
    (tmp_path / "b.unfinished").mkdir()
    (tmp_path / "b.unfinished" / "checkpoint").write_text("weeks of work")
    assert "checkpoint: is not part of a token stream; move it away" in message(write, tmp_path / "b", [[1]])
    (tmp_path / "c.unfinished").write_text("weeks of work")
    assert "c.unfinished: is a file; choose another folder" in message(write, tmp_path / "c", [[1]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b.unfinished", "c.unfinished", "run"]
    assert (tmp_path / "run" / "checkpoint").exists()
    assert (tmp_path / "b.unfinished" / "checkpoint").exists()


def test_a_finished_stream_is_not_written_into_unless_that_is_asked_for(tmp_path):
    write(tmp_path / "a", numbers(3))
    before = contents(tmp_path / "a")
    with pytest.raises(InputError, match="overwrite"), writing(tmp_path / "a", TokenStream(tmp_path / "a").index):
        raise AssertionError
    assert contents(tmp_path / "a") == before


def test_two_writers_do_not_mix(tmp_path):
    def documents():
        yield [1]
        assert re.search(
            r"a.unfinished: process \d+ on .* has been writing there", message(write, tmp_path / "a", [[2]])
        )
        yield [3]

    write(tmp_path / "a", documents())
    assert TokenStream(tmp_path / "a").read(0, 4).tolist() == [1, EOS, 3, EOS]


# Errors in the middle


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (InputError("document 5: half a surrogate pair"), InputError, "document 5: half a surrogate pair; "),
        (OSError(errno.EIO, "Input/output error", "corpus.txt"), InputError, "Input/output error: 'corpus.txt'; "),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), InputError, "can't decode byte 0xff"),
        (RuntimeError("a library broke"), RuntimeError, "a library broke"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_an_error_keeps_what_was_finished_and_says_how_to_resume(tmp_path, error, kind, told):
    write(tmp_path / "undisturbed", numbers(9), shard_tokens=SHARD)
    with pytest.raises(kind) as caught:
        write(tmp_path / "a", broken_after(numbers(5), error), shard_tokens=SHARD)
    unfinished = tmp_path / "a.unfinished"
    text = str(caught.value) if kind is InputError else "; ".join([str(caught.value), *caught.value.__notes__])
    assert told in text
    assert f"4 documents in 2 shards are kept in {unfinished}; correct the error and run the same command" in text
    assert "\n" not in text
    assert sorted(contents(unfinished)) == [
        *sorted(f"0000{n}.ds{end}" for n in (0, 1) for end in ("", ".index")),
        INDEX_NAME,
    ]
    for path in (tmp_path / "a", unfinished):
        assert "unfinished" in (told := message(TokenStream, path))
        assert told.endswith("run the same command again")
    write(tmp_path / "a", numbers(9), shard_tokens=SHARD)
    assert contents(tmp_path / "a") == contents(tmp_path / "undisturbed")
    assert not unfinished.exists()


def test_an_error_before_the_first_shard_is_whole_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a", broken_after(numbers(1), KeyboardInterrupt()), shard_tokens=SHARD)
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_the_old_stream_whole(tmp_path):
    write(tmp_path / "a", [[1, 2, 3]])
    before = contents(tmp_path / "a")
    message(write, tmp_path / "a", broken_after(numbers(5), OSError("broken")), overwrite=True, shard_tokens=SHARD)
    assert contents(tmp_path / "a") == before
    write(tmp_path / "a", numbers(6), overwrite=True, shard_tokens=SHARD)
    assert TokenStream(tmp_path / "a").num_documents == 6
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# Going on


@pytest.fixture
def interrupted(tmp_path):
    """Four documents of six in two shards, the seventh read never."""
    message(write, tmp_path / "a", broken_after(numbers(5), OSError("broken")), shard_tokens=SHARD)
    return tmp_path / "a"


def test_a_resumed_run_reads_only_what_it_lacks(interrupted):
    asked = []

    def documents(first):
        asked.append(first)
        return iter(numbers(6)[first:])

    index = write(interrupted, documents, shard_tokens=SHARD)
    assert asked == [3]  # the last it has is read again, and compared
    assert index.num_documents == 6


def test_a_run_whose_documents_end_with_eos_resumes_as_one_whose_documents_do_not(interrupted):
    index = write(interrupted, [[*document, EOS] for document in numbers(6)], shard_tokens=SHARD)
    assert index.num_documents == 6


def test_a_resumed_run_counts_documents_from_the_first(interrupted):
    told = message(write, interrupted, [*numbers(5), [1, 77]], shard_tokens=SHARD)
    assert "document 5: token 77 at position 1 is outside the vocabulary" in told
    told = message(write, interrupted, [*numbers(5), [1.5]], shard_tokens=SHARD)
    assert "document 5: token ids have type float64; expected integers" in told


def test_documents_left_out_are_counted_once_however_often_a_run_is_interrupted(tmp_path, caplog):
    documents = [np.zeros(0, dtype=int) if number % 3 == 1 else np.full(70_000, number) for number in range(9)]
    write(tmp_path / "undisturbed", [*documents, []], shard_tokens=SHARD)
    assert TokenStream(tmp_path / "undisturbed").index.num_empty == 4
    for stop in (5, 7, 8):
        message(write, tmp_path / "a", broken_after(documents[:stop], OSError("broken")), shard_tokens=SHARD)
    write(tmp_path / "a", [*documents, []], shard_tokens=SHARD)
    assert contents(tmp_path / "a") == contents(tmp_path / "undisturbed")
    assert [record.getMessage() for record in caplog.records] == ["test: left out 4 empty documents"] * 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"corpus": "other"}, "stream.corpus was 'test' and is 'other'"),
        ({"tokenizer_hash": "other"}, "stream.tokenizer_hash was 'none' and is 'other'"),
        ({"vocab_size": 11}, "stream.vocab_size was 10 and is 11"),
        ({"eos_id": 0}, "stream.eos_id was 9 and is 0"),
        ({"shard_tokens": 7}, "stream.shard_tokens was 100000 and is 7"),
    ],
)
def test_a_run_with_other_settings_does_not_resume(interrupted, changes, told):
    before = contents(interrupted.with_name("a.unfinished"))
    text = message(write, interrupted, numbers(6), **{"shard_tokens": SHARD} | changes)
    assert f"of another run: {told}; start that run again to finish it, or delete the folder" in text
    assert contents(interrupted.with_name("a.unfinished")) == before


def test_a_source_that_changed_is_refused(interrupted):
    documents = numbers(6)
    documents[3] = documents[3][:-1]
    assert "document 3: has different tokens now, but the unfinished run in" in message(
        write, interrupted, documents, shard_tokens=SHARD
    )
    assert "document 3: is missing now, but the unfinished run in" in message(
        write, interrupted, documents[:3], shard_tokens=SHARD
    )
    assert write(interrupted, numbers(6), shard_tokens=SHARD).num_documents == 6


def test_a_truncated_shard_is_reported(interrupted):
    shard = interrupted.with_name("a.unfinished") / "00001.ds"
    shard.write_bytes(shard.read_bytes()[:-2])
    text = message(write, interrupted, numbers(6), shard_tokens=SHARD)
    assert f"{shard}: 200002 bytes, but {INDEX_NAME} says 200004 bytes" in text
    assert text.endswith(f"or delete {shard.parent} to start over")


# No room


def test_a_limit_on_files_ends_in_one_line_and_the_run_resumes_later(tmp_path):
    write(tmp_path / "undisturbed", numbers(9), shard_tokens=SHARD)
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def documents(first):
        for number in range(first, 9):
            if number == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
            yield numbers(9)[number]

    try:
        text = message(write, tmp_path / "a", documents, shard_tokens=SHARD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"{tmp_path / 'a'}: no room left on the disk: it needs up to 200.0 kB for each shard, " in text
    assert "(files may have 150.0 kB at most: raise it by ulimit -f unlimited); make room and " in text
    assert "4 documents in 2 shards are kept" in text
    write(tmp_path / "a", numbers(9), shard_tokens=SHARD)
    assert contents(tmp_path / "a") == contents(tmp_path / "undisturbed")


def test_a_full_disk_ends_in_one_line_and_the_run_resumes_when_there_is_space(tmp_path, small_disk):
    disk = small_disk("500k")
    text = message(write, disk / "a", numbers(9), shard_tokens=SHARD)
    assert f"{disk / 'a'}: no room left on the disk: it needs up to 200.0 kB for each shard, " in text
    assert "are free; make room and start the same command again; 4 documents in 2 shards are kept" in text
    assert os.listdir(disk) == ["a.unfinished"]
    assert not [name for name in os.listdir(disk / "a.unfinished") if name.endswith(".part")]
    small_disk("2m")
    write(disk / "a", numbers(9), shard_tokens=SHARD)
    write(tmp_path / "undisturbed", numbers(9), shard_tokens=SHARD)
    assert contents(disk / "a") == contents(tmp_path / "undisturbed")
