"""Contract 3: step t trains on examples [t G, (t + 1) G), on any number of processes, and after any resume."""

import json

import pytest

from hmm_datasets.hmm import processes

pytestmark = pytest.mark.launch

LENGTH, GLOBAL_BATCH = 24, 8

# The recipe's own trainer and settings; what each rank trains on is written down, and what its view computes.
SCRIPT = """
import json, os
from hmm_datasets.recipe import run

def main(settings):
    from transformers import LlamaForCausalLM
    from hmm_datasets import HMMSequences
    from hmm_datasets.hmm import processes
    from hmm_datasets.training.models import llama_config
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainers import Pretrainer

    def log(**row):
        with open(os.environ["LOG"], "a") as file:
            file.write(json.dumps(row) + "\\n")

    class LoggedView(HMMSequences):
        def __getitems__(self, indices):
            log(computed=list(indices))
            return super().__getitems__(indices)

    class LoggedTrainer(Pretrainer):
        def training_step(self, model, inputs, *rest):
            log(step=self.state.global_step, trained=inputs["input_ids"][:, 1:].tolist())
            return super().training_step(model, inputs, *rest)

    rows = LoggedView(processes.mess3(), LENGTH)
    model = LlamaForCausalLM(llama_config("1m", vocab_size=rows.vocab_size, max_length=LENGTH + 1))
    trainer = LoggedTrainer(model=model, args=settings, train_dataset=rows)
    train_and_save(trainer, settings={}, data={"seed": 0}, row_length=LENGTH + 1)

if __name__ == "__main__":
    run(main, "PretrainSettings")
""".replace("LENGTH", str(LENGTH))


@pytest.fixture
def train(program, succeeded, tmp_path):
    script = tmp_path / "order.py"
    script.write_text(SCRIPT)

    def train(config, micro_batch, max_steps, workers=0):
        log = tmp_path / f"{config}-{max_steps}.jsonl"
        succeeded(
            program.launch(
                config,
                *(script, "--output_dir", tmp_path / "run", "--max_steps", max_steps, "--save_steps", 3),
                *("--global_batch_size", GLOBAL_BATCH, "--per_device_train_batch_size", micro_batch),
                *("--dataloader_num_workers", workers, "--logging_steps", 1),
                LOG=str(log),
            )
        )
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        return rows, json.loads((tmp_path / "run" / "summary.json").read_text())

    return train


def indices_by_step(rows):
    """The indices each optimizer step trained on, over ranks and accumulation, told by the sequences themselves."""
    place = {tuple(tokens): index for index, tokens in enumerate(processes.mess3().sample(500, LENGTH).tolist())}
    assert len(place) == 500
    steps = {}
    for row in rows:
        if "trained" in row:
            steps.setdefault(row["step"], []).extend(place[tuple(tokens)] for tokens in row["trained"])
    return {step: sorted(indices) for step, indices in steps.items()}


def global_batches(first, last):
    return {step: list(range(GLOBAL_BATCH * step, GLOBAL_BATCH * (step + 1))) for step in range(first, last)}


@pytest.mark.parametrize(("config", "micro_batch", "workers"), [("cpu1", 2, 0), ("cpu2", 2, 0), ("cpu2", 4, 2)])
def test_every_world_size_and_micro_batch_trains_on_the_same_global_batches(train, config, micro_batch, workers):
    rows, summary = train(config, micro_batch, 4, workers)
    assert indices_by_step(rows) == global_batches(0, 4)
    assert summary["tokens"] == 4 * GLOBAL_BATCH * (LENGTH + 1)
    assert summary["world_size"] == (2 if config == "cpu2" else 1)


def test_a_run_resumed_on_another_world_size_goes_on_at_the_next_index_and_computes_none_before(train):
    train("cpu2", 2, 3)
    rows, summary = train("cpu1", 4, 6)
    assert summary["resumed_from"] == "checkpoint-3"
    assert indices_by_step(rows) == global_batches(3, 6)
    assert min(index for row in rows for index in row.get("computed", [1 << 40])) == 3 * GLOBAL_BATCH
    assert summary["tokens"] == 6 * GLOBAL_BATCH * (LENGTH + 1)
