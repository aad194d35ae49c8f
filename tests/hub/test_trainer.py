"""A run with `push_to_hub` pushes the same files as a plain Trainer, under every strategy, and can be resumed."""

import socket
import zipfile
from pathlib import Path

import pytest

STRATEGIES = ("end", "every_save", "checkpoint", "all_checkpoints")
RECORDS = {"run.json", "history.jsonl", "summary.json", "identity.json", "README.md"}

RUN = """
    import json, logging, os, shutil, sys
    from pathlib import Path
    import torch
    from huggingface_hub import HfApi, snapshot_download
    from safetensors.torch import load_file
    from transformers import (
        LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, default_data_collator
    )
    from hmm_datasets.errors import InputError
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.settings import PretrainSettings
    from hmm_datasets.training.trainer import Pretrainer

    os.chdir(sys.argv[1])
    torch.manual_seed(1)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 16, (64, 8))]
    how = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 4, "report_to": "none", "use_cpu": True,
           "disable_tqdm": True, "lr_scheduler_type": "constant"}
    always = {"push_to_hub": True, "hub_always_push": True}

    def model():
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                            num_attention_heads=2, max_position_embeddings=8))

    class Tracker(TrainerCallback):
        # Asks the Hub for a Space when a push begins, as the callback of trackio does; there is none.
        def on_push_begin(self, args, state, control, **kwargs):
            HfApi().space_info("tester/logs")

    def ours(folder, callbacks=(), **settings):
        args = PretrainSettings(folder, global_batch_size=4, **how | settings)
        trainer = Pretrainer(model=model(), args=args, train_dataset=rows, callbacks=list(callbacks))
        return train_and_save(trainer, settings={"data": str(Path.cwd() / "data")}, data={"rows": 1})

    for strategy in ("end", "every_save", "checkpoint", "all_checkpoints"):
        name = f"plain-{strategy}"
        args = TrainingArguments(name, **always, hub_strategy=strategy, hub_model_id=f"tester/{name}", **how)
        trainer = Trainer(model=model(), args=args, train_dataset=rows, data_collator=default_data_collator)
        trainer.train()
        trainer.push_to_hub()
        name = f"ours-{strategy}"
        ours(name, **always, hub_strategy=strategy, hub_model_id=f"tester/{name}", save_total_limit=1)
    name = "ours-only-model"
    ours(name, **always, hub_strategy="checkpoint", hub_model_id=f"tester/{name}", save_only_model=True)

    # A run that goes on from what the Hub has of its first half.
    ours("half", max_steps=2, **always, hub_strategy="checkpoint", hub_model_id="tester/half")
    pulled = Path(snapshot_download("tester/half", allow_patterns="last-checkpoint/*"))
    if (pulled / "last-checkpoint").exists():
        shutil.copytree(pulled / "last-checkpoint", "second/checkpoint-2")
    resumed = ours("second")["resumed_from"]
    one, other = (load_file(f"{folder}/model.safetensors") for folder in ("second", "ours-end"))
    same = all(torch.equal(one[name], other[name]) for name in one)

    Path("failing/.push.of-a-killed-run").mkdir(parents=True)
    try:
        summary = ours("failing", [Tracker()], **always, hub_model_id="tester/failing")
    except Exception as error:
        summary = {"steps": repr(error)}
    try:
        ours("refused", **always, hub_model_id="stranger/x")
    except InputError as error:
        refusal = str(error)
    left = [str(path) for path in Path(".").rglob(".push.*")]
    print(json.dumps({"resumed": resumed, "same": same, "steps": summary["steps"], "left": left,
                      "refusal": refusal}))
"""


@pytest.fixture(scope="module")
def runs(local_hub, tmp_path_factory):
    """What the child found, its folder, and the files of every repository: one process for all claims."""
    folder = tmp_path_factory.mktemp("runs")
    local_hub.order_fault(method="POST", path="tester/failing/commit", status=403, times=99)
    found = local_hub.child(RUN, folder / "home", folder)

    def files(name):
        listing = local_hub.get(f"/api/models/tester/{name}/tree/main?recursive=true")
        return {entry["path"] for entry in listing if entry["type"] == "file"} - {".gitattributes"}

    return found, folder, files


def others(files):
    """Without what only our runs write, only plain ones write, and what is written by neither kind's choice."""
    return {name for name in files if Path(name).name not in RECORDS | {"training_args.bin", "digests.json"}}


pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_puts_the_files_on_the_hub_that_a_plain_trainer_does(runs, local_hub, strategy):
    _, _, files = runs
    plain, ours = files(f"plain-{strategy}"), files(f"ours-{strategy}")
    assert {"model.safetensors", "config.json"} <= plain
    assert others(ours) == others(plain)
    assert {"run.json", "history.jsonl", "summary.json"} <= ours
    assert not [name for name in ours if name.endswith("training_args.bin")]
    parts = {"end": [], "every_save": [""]}.get(strategy, ["", ", checkpoint"])
    during = [f"Training in progress, step {step}{part}" for step in (2, 4) for part in parts]
    assert local_hub.titles(f"tester/ours-{strategy}")[-2::-1] == [*during, "End of training"]
    # A plain Trainer's upload may read the files of the next one, which then finds nothing to commit.
    assert set(local_hub.titles(f"tester/plain-{strategy}")) <= set(local_hub.titles(f"tester/ours-{strategy}"))


def test_what_a_run_pushed_names_neither_host_nor_folder(runs, local_hub):
    _, folder, _ = runs
    words = [socket.gethostname().encode(), str(folder).encode(), local_hub.token.encode()]
    code = """
        import json, sys
        from huggingface_hub import snapshot_download
        print(json.dumps([snapshot_download(f"tester/{name}") for name in sys.argv[1:]]))
    """
    pulled = local_hub.child(code, folder / "other home", "ours-checkpoint", "ours-every_save")
    for path in (path for folder in pulled for path in Path(folder).rglob("*") if path.is_file()):
        content = path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                content = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".pkl"))
        if path.suffix not in (".safetensors", ".png"):
            assert [word for word in words if word in content] == [], path


def test_a_run_resumes_from_the_last_checkpoint_that_the_hub_has(runs):
    found, _, _ = runs
    assert found["resumed"] == "checkpoint-2"
    assert found["same"]


def test_weights_alone_are_pushed_where_weights_alone_are_saved(runs):
    _, _, files = runs
    names = {name for name in files("ours-only-model") if name.startswith("last-checkpoint/")}
    assert "last-checkpoint/model.safetensors" in names
    assert "last-checkpoint/optimizer.pt" not in names


def test_a_run_whose_pushes_and_trackers_fail_ends_well_and_leaves_nothing_behind(runs):
    found, folder, files = runs
    assert found["steps"] == 4
    assert (folder / "failing" / "model.safetensors").exists()
    assert files("failing") == set()
    assert found["left"] == []


def test_a_hub_that_refuses_is_reported_in_one_line_before_training(runs):
    found, folder, _ = runs
    expected = "push_to_hub is set, but the repository stranger/x cannot be created (403 You don't have the rights"
    assert found["refusal"].startswith(expected)
    assert not (folder / "refused" / "history.jsonl").exists()
