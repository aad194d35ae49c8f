"""Names that no file can have, links that lead nowhere and folders in place of files end in one line."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.targets import open_target
from hmm_datasets.files import read_json, read_log, read_yaml
from hmm_datasets.foreign.tensors import tensor_names
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.hmm.token_files import read_token_rows
from hmm_datasets.operations.checkpoints.weights import read_weights
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.stream import TokenStream
from hmm_datasets.text.tokenizers.chat_templates import load_tokenizer
from hmm_datasets.training.checkpoints.inspection import list_checkpoints
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.pretrained import load_pretrained

READERS = {
    "jsonl": [load_corpus, open_target, read_log],
    "csv.gz": [load_corpus],
    "parquet": [load_corpus],
    "npz": [read_token_rows],
    "npy": [read_token_rows],
    "json": [read_json, lambda path: model_config(f"./{path}", vocab_size=9, max_length=9)],
    "yaml": [lambda path: read_yaml(Path(path))],
    "safetensors": [tensor_names],
    "gguf": [lambda path: load_pretrained(AutoModelForCausalLM, path)],
    "": [
        *(load_source, TokenStream, load_tokenizer, lambda path: read_weights(Path(path))),
        lambda path: list_checkpoints(f"{path}/run"),
        *(lambda path, kind=kind: load_pretrained(kind, path) for kind in (AutoModelForCausalLM, AutoTokenizer)),
    ],
}


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "loop", "dangling", "folder", "file/x", "sub/" * 1200 + "x"])
def test_a_path_that_cannot_be_read_ends_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for suffix, readers in READERS.items():
        path = f"{name}.{suffix}" if suffix else name
        if name in ("loop", "dangling"):
            Path(path).symlink_to(path if name == "loop" else "nowhere")
        elif name == "folder":
            Path(path).mkdir()
        Path("file").touch()
        for read in readers:
            with pytest.raises(InputError) as caught:
                read(path)
            assert len(str(caught.value)) < 1_000
