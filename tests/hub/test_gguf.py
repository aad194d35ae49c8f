"""A GGUF file in a repository of the Hub is named `USER/REPO:FILE.gguf`, with a revision at the end."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.text.tokenizers.bpe import train_bpe

pytest.importorskip("gguf")
from tiny_gguf import save_gguf


@pytest.mark.thorough
def test_a_file_is_loaded_by_the_name_of_its_repository_and_recorded_with_its_commit(local_hub, tmp_path):
    tokenizer = train_bpe(["Who is it? It is Tom."] * 9, 270, show_progress=False)
    config = LlamaConfig(
        vocab_size=270, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0
    )  # fmt: skip
    torch.manual_seed(0)
    save_gguf(LlamaForCausalLM(config), tokenizer, tmp_path / "tiny.gguf")
    code = """
        import json, sys
        from huggingface_hub import HfApi
        from transformers import AutoModelForCausalLM
        from hmm_datasets import InputError
        from hmm_datasets.hub.download import commit_of, model_file
        from hmm_datasets.training.pretrained import load_pretrained, tokenizer_of
        from hmm_datasets.training.lineage import base_model, stages_of
        HfApi().create_repo("tester/tiny")
        for name in ("a.gguf", "b.gguf"):
            HfApi().upload_file(path_or_fileobj=sys.argv[1], path_in_repo=name, repo_id="tester/tiny")
        HfApi().create_branch("tester/tiny", branch="v1")
        HfApi().delete_file("a.gguf", "tester/tiny")
        shapes = [
            list(load_pretrained(AutoModelForCausalLM, name).lm_head.weight.shape)
            for name in (sys.argv[1], "tester/tiny:b.gguf", "tester/tiny:a.gguf@v1")
        ]
        try:
            load_pretrained(AutoModelForCausalLM, "tester/tiny:a.gguf")
        except InputError as error:
            shapes.append(str(error))
        name = "tester/tiny:a.gguf@v1"
        commit = HfApi().repo_info("tester/tiny", revision="v1").sha
        base = base_model(name)
        same = commit == commit_of(name) == base.commit
        stages = [vars(stage) for stage in stages_of(name)]
        print(json.dumps([shapes, same, base.weights, stages, tokenizer_of(name).encode("It is Tom.")]))
    """
    shapes, same_commit, weights, stages, tokens = local_hub.child(code, tmp_path / "home", tmp_path / "tiny.gguf")
    assert shapes[:3] == [[270, 32]] * 3
    assert shapes[3].startswith("hf://tester/tiny/a.gguf: cannot be read from the Hub")
    assert same_commit
    assert list(weights) == ["a.gguf"]
    assert stages == [{"stage": "training of tester/tiny:a.gguf@v1", "data": None, "tokens": None}]
    assert tokens == tokenizer.encode("It is Tom.")
