"""Contract 3: step t trains on examples [t G, (t + 1) G), on any number of processes, after any kill and resume."""

import json
import signal
import subprocess

import numpy as np
import pytest

pytestmark = pytest.mark.launch

LENGTH, GLOBAL_BATCH = 24, 12

# The recipe's own trainer and settings; what each rank trains on is written down, and what its view computes. A rank
# can be told to be killed in the middle of a step.
SCRIPT = """
import json, os, signal
from hmm_datasets.recipe import run

def view(name, folder):
    from hmm_datasets import HMMSequences
    from hmm_datasets.data.mixtures import Mixture
    from hmm_datasets.hmm import processes
    from hmm_datasets.text.shards import TokenStream
    from hmm_datasets.text.windows import TokenWindows

    if name == "hmm":
        return HMMSequences(processes.mess3(), LENGTH)
    windows = TokenWindows(TokenStream(folder), LENGTH + 1, seed=5, epochs=50)
    return windows if name == "windows" else Mixture([windows, HMMSequences(processes.mess3(), LENGTH)], [0.5, 0.5])

def main(settings):
    from transformers import LlamaForCausalLM, set_seed
    from hmm_datasets.training.models import llama_config
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainers import Pretrainer

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
    model = LlamaForCausalLM(llama_config("1m", vocab_size=600, max_length=LENGTH + 1))
    trainer = LoggedTrainer(model=model, args=settings, train_dataset=rows)
    train_and_save(trainer, settings={}, data={"seed": int(os.environ.get("SEED", 0))}, row_length=LENGTH + 1)

if __name__ == "__main__":
    run(main, "PretrainSettings")
""".replace("LENGTH", str(LENGTH))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """36 windows and a bit, so three steps an epoch: every window unlike the others."""
    from hmm_datasets.text.shards import write_tokens

    folder = tmp_path_factory.mktemp("tokens") / "stream"
    numbers = np.random.default_rng(0).integers(0, 598, 36 * (LENGTH + 1) + 7)
    write_tokens([numbers], folder, vocab_size=600, eos_id=599, tokenizer_hash="none", corpus="numbers")
    return folder


class Runs:
    """One output folder, trained in by one launch after another; a log of what each trained on."""

    def __init__(self, program, folder, source, tokens):
        self.program, self.folder, self.source, self.tokens = program, folder, source, tokens
        self.output = folder / "run"
        self.script = folder / "order.py"
        self.script.write_text(SCRIPT)

    def launch(self, max_steps, *, processes=1, micro_batch=2, workers=0, kill=None, settings=(), seed=0):
        """Train on; return the result and the rows of the log."""
        log = self.folder / "log.jsonl"
        log.unlink(missing_ok=True)
        config = ("cpu1",) if processes == 1 else ("cpu2", "--num_processes", processes)
        result = self.program.launch(
            *(*config, self.script, "--output_dir", self.output, "--max_steps", max_steps, "--save_steps", 3),
            *("--global_batch_size", GLOBAL_BATCH, "--per_device_train_batch_size", micro_batch),
            *("--dataloader_num_workers", workers, "--logging_steps", 1, *settings),
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

    def summary(self):
        return json.loads((self.output / "summary.json").read_text())


@pytest.fixture
def runs(program, tmp_path, tokens):
    def make(source, name="a"):
        (tmp_path / name).mkdir()
        return Runs(program, tmp_path / name, source, tokens)

    return make


def rows_of(source, tokens, count):
    """What the view holds, had apart from any trainer."""
    namespace = {}
    exec(SCRIPT.split("def main")[0], namespace)
    view = namespace["view"](source, tokens)
    return [tuple(np.asarray(view[index]["input_ids"]).tolist()) for index in range(count)]


def indices_by_step(log, rows):
    """The indices each optimizer step trained on, over ranks and accumulation; an index after an index it repeats."""
    places = {}
    for index, row in enumerate(rows):
        places.setdefault(row, []).append(index)
    steps = {}
    for entry in log:
        if "trained" in entry:
            steps.setdefault(entry["step"], []).extend(map(tuple, entry["trained"]))
    found = {}
    for step, trained in steps.items():
        span = range(GLOBAL_BATCH * step, GLOBAL_BATCH * (step + 1))
        found[step] = sorted(next((i for i in places[row] if i in span), places[row][0]) for row in trained)
    return found


def global_batches(first, last):
    return {step: list(range(GLOBAL_BATCH * step, GLOBAL_BATCH * (step + 1))) for step in range(first, last)}


@pytest.fixture(scope="module")
def undisturbed(program, tmp_path_factory, tokens):
    """Nine steps on two processes, never disturbed."""
    run = Runs(program, tmp_path_factory.mktemp("undisturbed"), "hmm", tokens)
    run.launch(9, processes=2)
    return run


@pytest.mark.parametrize("source", ["hmm", "windows", "mixture"])
def test_killed_and_resumed_on_other_processes_a_run_trains_on_what_an_undisturbed_one_does(
    source, runs, tokens, undisturbed
):
    """Killed, and on again with another world size, micro-batch and number of workers; windows cross epochs."""
    rows = rows_of(source, tokens, 12 * GLOBAL_BATCH)
    run = runs(source)
    chain = {
        "hmm": [(1, 4, 0, "4:0"), (4, 3, 0, None)],
        "windows": [(2, 3, 2, "5:1"), (1, 12, 0, None)],
        "mixture": [(3, 4, 0, "7:0"), (2, 2, 2, None)],
    }[source]
    start = 0
    for processes, micro_batch, workers, kill in chain:
        _, log = run.launch(9, processes=processes, micro_batch=micro_batch, workers=workers, kill=kill)
        found = indices_by_step(log, rows)
        stopped = 9 if kill is None else int(kill.split(":")[0])
        whole = {step: indices for step, indices in found.items() if step < stopped}
        assert whole == global_batches(start, stopped), "none twice, none missing"
        computed = min(index for row in log for index in row.get("computed", [1 << 40]))
        assert computed == start * GLOBAL_BATCH, "none of the rows before is computed"
        start = stopped // 3 * 3
        names = sorted(path.name for path in run.output.glob("checkpoint-*"))
        assert names == [f"checkpoint-{step}" for step in range(3, start + 1, 3)]
    assert run.summary()["tokens"] == 9 * GLOBAL_BATCH * (LENGTH + 1)
    if source == "hmm":
        assert run.losses() == pytest.approx(undisturbed.losses(), abs=2e-5)


def test_on_the_same_processes_a_killed_and_resumed_run_is_the_same_to_the_bit(runs, undisturbed):
    run = runs("hmm")
    run.launch(9, processes=2, kill="7:1")
    result, _ = run.launch(9, processes=2, settings=("--learning_rate", 0.5), kill="refused")
    assert "identity.json: of another run: settings.learning_rate was 0.001 and is 0.5" in result.stderr
    run.launch(9, processes=2)
    assert run.losses() == undisturbed.losses()
    weights = [(one.output / "model.safetensors").read_bytes() for one in (run, undisturbed)]
    assert weights[0] == weights[1]
    # Plain data parallelism: every rank holds and optimizes all.
    total = run.summary()["parameters"]["total"]
    assert [(held["parameters"], held["optimized"]) for held in run.summary()["holdings"]] == [(total, total)] * 2


def test_a_signal_to_one_rank_stops_all_with_a_checkpoint_of_the_same_step(runs, tokens):
    run = runs("hmm")
    rows = rows_of("hmm", tokens, 400 * GLOBAL_BATCH)
    log = run.folder / "log.jsonl"
    wait = f"until [ $(cat {log} 2>/dev/null | wc -l) -gt 10 ]; do sleep 0.1; done"
    killer = subprocess.Popen(f"{wait}; pkill -{signal.SIGTERM.value} -n -f {run.script}", shell=True)
    result, log = run.launch(400, processes=2, settings=("--save_steps", 1000))
    killer.wait(10)
    (checkpoint,) = run.output.glob("checkpoint-*")
    step = int(checkpoint.name.split("-")[1])
    assert 0 < step < 400
    assert f"step {step:,}: saving and stopping" in result.stdout + result.stderr
    assert indices_by_step(log, rows) == global_batches(0, step)
    assert not (run.output / "model.safetensors").exists()
    _, log = run.launch(step + 2, processes=2)
    assert indices_by_step(log, rows) == global_batches(step, step + 2)
