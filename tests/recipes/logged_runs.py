"""Runs that log what every rank trains on, and can be killed in the middle of a step, for the tests of order."""

import json

import numpy as np

LENGTH, GLOBAL_BATCH = 24, 12

# Uses the recipe's trainer and settings, and logs what each rank trains on and which rows its data set computes. A
# rank can be killed in the middle of a step.
SCRIPT = """
import json, os, signal
from hmm_datasets.runtime.program import run
from hmm_datasets.training.fields import PretrainFields

def view(name, folder):
    from hmm_datasets import HMMSequences
    from hmm_datasets.data.interleaving import InterleavedRows
    from hmm_datasets.hmm import processes
    from hmm_datasets.text.stream import TokenStream
    from hmm_datasets.data.windows import TokenWindows

    if name == "hmm":
        return HMMSequences(processes.mess3(0.15, 0.6), LENGTH).by_index()
    windows = TokenWindows(TokenStream(folder), LENGTH + 1, seed=5, epochs=50)
    if name == "windows":
        return windows
    return InterleavedRows([windows, HMMSequences(processes.mess3(0.15, 0.6), LENGTH)], [0.5, 0.5])

def main(settings: PretrainFields):
    from transformers import LlamaForCausalLM, set_seed
    from hmm_datasets.training.model_configs import model_config
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainer import Pretrainer

    def log(**row):
        with open(os.environ["LOG"], "a") as file:
            file.write(json.dumps(row) + "\\n")

    class Logged:
        def __init__(self, rows):
            self.rows = rows
        def __len__(self):
            return len(self.rows)
        def __getitems__(self, indices):
            log(computed=list(indices))
            return [self.rows[index] for index in indices]

    class LoggedTrainer(Pretrainer):
        def training_step(self, model, inputs, *rest):
            log(step=self.state.global_step, rank=self.args.process_index, trained=inputs["input_ids"].tolist())
            if os.environ.get("KILL") == f"{self.state.global_step}:{self.args.process_index}":
                os.kill(os.getpid(), signal.SIGKILL)
            return super().training_step(model, inputs, *rest)

    set_seed(0)
    rows = Logged(view(os.environ["SOURCE"], os.environ["TOKENS"]))
    model = LlamaForCausalLM(model_config("1m", vocab_size=600, max_length=LENGTH + 1))
    trainer = LoggedTrainer(model=model, args=settings, train_dataset=rows)
    train_and_save(trainer, settings={}, data={"seed": int(os.environ.get("SEED", 0))})

if __name__ == "__main__":
    run(main)
""".replace("LENGTH", str(LENGTH))


class Runs:
    """An output folder in which one launch after another trains, with a log of what each trained on."""

    def __init__(self, program, folder, source, tokens):
        self.program, self.folder, self.source, self.tokens = program, folder, source, tokens
        self.output = folder / "run"
        folder.mkdir(parents=True, exist_ok=True)
        self.script = folder / "order.py"
        self.script.write_text(SCRIPT)

    def launch(self, max_steps, *, config=None, processes=1, micro_batch=2, workers=0, kill=None, settings=(), seed=0):
        """Continue training, and expect an error if `kill` is set; return the result and the rows of the log."""
        log = self.folder / "log.jsonl"
        log.unlink(missing_ok=True)
        config = config or ("cpu1" if processes == 1 else "cpu2")
        result = self.program.launch(
            *(config, "--num_processes", processes, self.script),
            *("--output_dir", self.output, "--max_steps", max_steps, "--save_steps", 3),
            *("--global_batch_size", GLOBAL_BATCH, "--per_device_train_batch_size", micro_batch),
            *("--dataloader_num_workers", workers, "--logging_steps", 1, "--log_indices", "true", *settings),
            LOG=str(log),
            SOURCE=self.source,
            TOKENS=str(self.tokens),
            KILL=kill or "",
            SEED=str(seed),
        )
        assert (result.returncode != 0) == (kill is not None), result.stderr[-3000:]
        return result, [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def losses(self):
        """The loss of every step, from the history."""
        rows = [json.loads(line) for line in (self.output / "history.jsonl").read_text().splitlines()]
        return {row["step"]: row["loss"] for row in rows if "loss" in row}

    def indices(self):
        """The indices that the run itself logged, over all its starts and ranks, by step from 0."""
        steps = {}
        for path in self.output.glob("indices-*.jsonl"):
            for row in map(json.loads, path.read_text().splitlines()):
                steps.setdefault(row["step"] - 1, []).extend(row["indices"])
        return {step: sorted(indices) for step, indices in sorted(steps.items())}

    def summary(self):
        return json.loads((self.output / "summary.json").read_text())


def rows_of(source, tokens, count):
    """The rows of the data set, read without a trainer."""
    namespace = {}
    exec(SCRIPT.split("def main")[0], namespace)
    view = namespace["view"](source, tokens)
    return [tuple(np.asarray(view[index]["input_ids"]).tolist()) for index in range(count)]


def indices_by_step(log, rows):
    """The indices that each optimizer step trained on, over ranks and accumulation."""
    indices = {}
    for index, row in enumerate(rows):
        indices.setdefault(row, []).append(index)
    steps = {}
    for entry in log:
        if "trained" in entry:
            steps.setdefault(entry["step"], []).extend(map(tuple, entry["trained"]))
    found = {}
    for step, trained in steps.items():
        span = range(GLOBAL_BATCH * step, GLOBAL_BATCH * (step + 1))
        found[step] = sorted(next((i for i in indices[row] if i in span), indices[row][0]) for row in trained)
    return found


def global_batches(first, last):
    return {step: list(range(GLOBAL_BATCH * step, GLOBAL_BATCH * (step + 1))) for step in range(first, last)}
