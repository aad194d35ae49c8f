"""While a command runs, a name on the Hub means one commit, whatever is pushed to its repository meanwhile."""

import pytest

pytestmark = pytest.mark.thorough

CODE = """
    import json, sys
    from pathlib import Path
    from huggingface_hub import HfApi
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from hmm_datasets import HMM, processes
    from hmm_datasets.files import read_json
    from hmm_datasets.hmm.tokenizer import write_tokenizer
    from hmm_datasets.hub.download import commit_of, download, model_file
    from hmm_datasets.runtime.once import one_command
    from hmm_datasets.training.pretrained import load_pretrained

    root, api, name = Path(sys.argv[1]), HfApi(), "tester/changing"
    api.create_repo(name)
    commits = []

    def push(number):
        folder = root / str(number)
        config = LlamaConfig(vocab_size=4, hidden_size=8, intermediate_size=8 * number, num_hidden_layers=1,
                             num_attention_heads=1)
        model = LlamaForCausalLM(config)
        model.lm_head.weight.data.fill_(number)
        model.save_pretrained(folder)
        write_tokenizer(folder, ["a", "b", "c"][:number], number, bos=True)
        (folder / "run.json").write_text(json.dumps({"number": number}))
        processes.golden_mean(number / 10).save_pretrained(folder / "hmm")
        commits.append(api.upload_folder(repo_id=name, folder_path=folder).oid)

    def read():
        record = read_json(model_file(name, "run.json"))["number"]
        if len(commits) == 1:
            push(2)  # between the first file and the others
        model = load_pretrained(AutoModelForCausalLM, name)
        hmm = HMM.from_pretrained(download(f"hf://{name}", ["hmm/*"]) / "hmm")
        return [
            record,
            load_pretrained(AutoConfig, name).intermediate_size // 8,
            int(model.lm_head.weight[0, 0]),
            len(load_pretrained(AutoTokenizer, name)) - 1,
            round(10 * float(hmm.transition[0, 0])),
            commits.index(commit_of(name)) + 1,
        ]

    push(1)
    found = {}
    with one_command():
        found["during"] = read()
        with one_command():
            found["inner"] = read()
    found["after"] = read()
    with one_command():
        name = f"{name}@{commits[0]}"
        found["of a commit"] = read()
    print(json.dumps(found))
"""


@pytest.mark.outside(
    "https://github.com/huggingface/diffusers/pull/14340",
    "files that are fetched one by one come from one commit, even if the repository is updated in between",
    "a command resolves each revision once, and all files that it reads are of that commit",
)
@pytest.mark.outside(
    "https://github.com/huggingface/lerobot/pull/4191",
    "configuration, weights and processor of one commit although a branch moves while they are loaded",
    "they are of the commit that was read first, the record and the card's parent too",
)
def test_all_files_are_those_of_the_commit_that_was_read_first(local_hub, tmp_path):
    found = local_hub.child(CODE, tmp_path / "home", tmp_path)
    assert found == {"during": [1] * 6, "inner": [1] * 6, "after": [2] * 6, "of a commit": [1] * 6}
