"""Bayesian wind tunnels: how far is a model's uncertainty from the posterior's, at the trained length and beyond it?

    hmm-datasets experiment wind-tunnels --config wind_tunnels/small.yaml [--architectures llama gru] [--seeds 0 1]

Agarwal, Dalal and Misra, "The Bayesian geometry of transformer attention", arXiv 2512.22471. The error is the absolute
difference between the entropy of a prediction and that of the exact posterior, in bits, averaged over held-out
sequences and positions. Models are trained on two tasks, on which nothing can be learned by heart:

- `bijection`: pairs `x, f(x)` of a new bijection of 20 symbols in every row. The outputs not seen yet are equally
  likely. Models trained on all pairs are measured on all pairs; those trained on fewer, also beyond.
- `hmm`: the rows of a random HMM with 5 states and 5 symbols as vectors, then 20 of its symbols. After each, the model
  gives the distribution of the state, which the forward recursion knows. It is measured on more symbols too.

`result.md` has the errors beside the published ones, with standard errors over seeds, and `entropy_errors.png` shows
them by position. When started again the experiment continues with what is missing.
"""

import time
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

NUM_VALUES = 20
"""Symbols of a bijection."""
TRAINED_PAIRS = [20, 10]
"""Pairs per row that models are trained on."""
TRAINED_SYMBOLS = 20
"""Symbols of an HMM that models are trained on."""
MEASURED_SYMBOLS = [20, 30, 50]
"""Symbols of an HMM that models are measured on."""
BATCH_SIZE = 64
"""Rows per optimizer step."""
SIZES = {
    "small": {
        "bijection": {"layers": 1, "width": 64, "steps": 800, "learning_rate": 1e-2},
        "hmm": {"layers": 2, "width": 64, "steps": 800, "learning_rate": 3e-3},
    },
    "full": {
        "bijection": {"layers": 6, "width": 192, "steps": 20_000, "learning_rate": 1e-3},
        "hmm": {"layers": 9, "width": 256, "steps": 100_000, "learning_rate": 3e-4},
    },
}
"""Models of each task and their training. Layers and widths of `full` are those of the paper's transformers; its steps
and batches are not known to us, and those here are ours."""
FIRST_VERSION = "v1, by a summary"
LATER = "another note, version unstated"
PUBLISHED = {
    ("bijection", "llama", 20, 20): ("0.003", FIRST_VERSION),
    ("hmm", "llama", 20, 20): ("7.5e-5, or 0.049", f"{FIRST_VERSION}; {LATER}"),
    ("hmm", "llama", 20, 50): ("0.0288", FIRST_VERSION),
    ("hmm", "mamba", 20, 20): ("0.024", LATER),
    ("hmm", "lstm", 20, 20): ("0.411", LATER),
}
"""Published entropy errors in bits with their source, read at second hand, by task, architecture, and number of
pairs or symbols trained on and measured. A multilayer perceptron has 1.85 on bijections and 0.41 on HMMs."""


@dataclass
class WindTunnelSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    tasks: list[str] = setting(["bijection", "hmm"], "bijection, hmm.")
    architectures: list[str] = setting(["llama", "lstm"], "Some of llama, lstm, gru, mamba.")
    seeds: list[int] = setting([0, 1], "Seeds of models and sequences.")
    size: str = setting("small", "Size of the models: small, or full for those of the paper.")
    steps: int | None = setting(None, "Optimizer steps of each model; by default those of the size.")
    num_sequences: int = setting(2000, "Held-out rows that models are measured on.")

    def __post_init__(self):
        for task in self.tasks:
            if task not in ("bijection", "hmm"):
                raise InputError(f"tasks has {task!r}; expected some of bijection, hmm")
        if self.size not in SIZES:
            raise InputError(f"size is {self.size!r}; expected {' or '.join(SIZES)}")

    def models_of(self, task: str) -> dict[str, Any]:
        """Layers, width, steps and learning rate of the models of a task."""
        return SIZES[self.size][task] | ({} if self.steps is None else {"steps": self.steps})


def main(settings: WindTunnelSettings) -> None:
    """Train and measure every model, report, draw."""
    began = time.monotonic()
    trials = [tried(settings, trial) for trial in trials_of(settings)]
    report(settings, trials, time.monotonic() - began)


def trials_of(settings: WindTunnelSettings) -> list[dict[str, Any]]:
    """What determines each model and its measurement."""
    shared = {"batch_size": BATCH_SIZE, "num_sequences": settings.num_sequences}
    lengths = [("bijection", pairs, NUM_VALUES) for pairs in TRAINED_PAIRS]
    lengths += [("hmm", TRAINED_SYMBOLS, max(MEASURED_SYMBOLS))]
    return [
        {"task": task, "architecture": architecture, "seed": seed, "trained": trained, "measured": measured}
        | settings.models_of(task)
        | shared
        | {"num_values": NUM_VALUES if task == "bijection" else 5}
        for task, trained, measured in lengths
        if task in settings.tasks
        for architecture in settings.architectures
        for seed in settings.seeds
    ]


def tried(settings: WindTunnelSettings, trial: dict[str, Any]) -> dict[str, Any]:
    """A trial with its errors by position, from its file if it has one."""
    from small_runs import finished_trial

    name = "{task}-{trained}-{architecture}-{seed}".format(**trial)
    folder = Path(settings.output_dir)

    def measure() -> dict[str, Any]:
        errors_of = bijection_errors if trial["task"] == "bijection" else filter_errors
        errors, parameters = errors_of(trial, folder / "models" / name)
        rounded = {key: [float(f"{number:.6g}") for number in getattr(errors, key)] for key in vars(errors)}
        print(f"{name}: {mean_to(rounded, trial['trained']):.4f} bits at the trained length", flush=True)
        return {"parameters": parameters, **rounded}

    return finished_trial(folder / "trials" / f"{name}.json", trial, measure)


def bijection_errors(trial: dict[str, Any], folder: Path):
    """Errors before each output of all pairs, and the number of parameters."""
    import torch
    from architectures import architecture_config
    from entropy_errors import entropy_errors, task_log_probs
    from small_runs import SmallRun, trained_model

    from hmm_datasets.hmm.families.episodic_tasks import Bijection

    values, trained = trial["num_values"], trial["trained"]
    sizes = {"vocab_size": 2 * values + 1, "length": 2 * values + 1, "bos_token_id": 2 * values}
    config = architecture_config(trial["architecture"], width=trial["width"], layers=trial["layers"], **sizes)
    model = trained_model(folder, config, Bijection(values, trained), SmallRun.of(trial, length=2 * trained))
    whole = Bijection(values, trial["measured"])
    log_probs, episodes = task_log_probs(model, whole, trial["num_sequences"])
    exact = torch.from_numpy(whole.next_token_probs(episodes)[:, :-1][:, whole.scored(whole.episode_length)])
    return entropy_errors(log_probs[..., :-1], exact), model.num_parameters()


def filter_errors(trial: dict[str, Any], folder: Path):
    """Errors after each symbol of the HMMs, and the number of parameters."""
    import torch
    from architectures import architecture_config
    from entropy_errors import entropy_errors
    from measure import told_sequences, train_filter

    length = trial["measured"] + 2 * trial["num_values"]
    sizes = {"vocab_size": trial["num_values"], "length": length}
    config = architecture_config(trial["architecture"], width=trial["width"], layers=trial["layers"], **sizes)
    budget = {key: trial[key] for key in ("steps", "batch_size", "learning_rate", "seed")}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = train_filter(config, trial["trained"], **budget, device=device)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "weights.pt")
    # The held-out sequences are those of another seed, the same for all models.
    batch = told_sequences(trial["num_sequences"], trial["measured"], seed=1 << 40)
    with torch.inference_mode():
        tables = (batch.transition, batch.emission, batch.tokens)
        parts = zip(*(tensor.to(device).split(500) for tensor in tables), strict=True)
        log_probs = torch.cat([model(*part) for part in parts]).cpu()
    return entropy_errors(log_probs, batch.beliefs), sum(tensor.numel() for tensor in model.parameters())


def mean_to(trial: dict[str, Any], length: int, which: str = "of_each") -> float:
    """The mean of a trial's errors over the first `length` positions, in bits.

    ```python
    >>> mean_to({"of_each": [0.1, 0.3, 0.8]}, 2)
    0.2

    ```
    """
    return sum(trial[which][:length]) / length


def lengths_of(settings: WindTunnelSettings) -> list[tuple[str, int, int]]:
    """Task, trained length and measured length of every number that is reported."""
    pairs = [("bijection", trained, trained) for trained in TRAINED_PAIRS]
    pairs += [("bijection", trained, NUM_VALUES) for trained in TRAINED_PAIRS if trained < NUM_VALUES]
    pairs += [("hmm", TRAINED_SYMBOLS, length) for length in MEASURED_SYMBOLS]
    return [trial for trial in pairs if trial[0] in settings.tasks]


def findings(settings: WindTunnelSettings, trials: list[dict[str, Any]]) -> list:
    """One finding for each task, architecture and length, with the standard error over seeds."""
    import numpy as np
    from published import Finding

    from hmm_datasets.statistics import clustered_mean

    entries = []
    for task, trained, length in lengths_of(settings):
        for name in settings.architectures:
            chosen = [
                trial
                for trial in trials
                if (trial["task"], trial["trained"], trial["architecture"]) == (task, trained, name)
            ]
            mean, error, *_ = clustered_mean([[mean_to(trial, length)] for trial in chosen])
            means = np.mean([mean_to(trial, length, "of_means") for trial in chosen])
            unit = "pairs" if task == "bijection" else "symbols"
            note = (
                f"{chosen[0]['parameters']:,} parameters, {trial_rows(chosen[0]):,} rows; "
                f"{means:.3g} if entropies are averaged first"
            )
            published, where = PUBLISHED.get((task, name, trained, length), (None, ""))
            entries.append(
                Finding(
                    f"{task}, {name}, trained on {trained} {unit}, {length} {unit} (bits)",
                    mean,
                    standard_error=error,
                    published=published,
                    where=where,
                    difference=note,
                )
            )
    return entries


def trial_rows(trial: dict[str, Any]) -> int:
    """Rows that a trial's model was trained on."""
    return trial["steps"] * trial["batch_size"]


def report(settings: WindTunnelSettings, trials: list[dict[str, Any]], seconds: float) -> None:
    """Draw `entropy_errors.png` and write the result."""
    import numpy as np
    from architecture_panels import ArchitecturePanel, draw_panels
    from published import Paper, write_result

    panels, tokens = [], 0
    kinds = {(task, trained) for task, trained, _ in lengths_of(settings)}
    for task, trained in sorted(kinds, key=lambda kind: (kind[0], -kind[1])):
        chosen = [trial for trial in trials if (trial["task"], trial["trained"]) == (task, trained)]
        per_row = 2 * trained + 1 if task == "bijection" else trained + 10
        tokens += sum(trial_rows(trial) * per_row for trial in chosen)
        length = len(chosen[0]["of_each"])
        curves = {
            name: np.array([trial["of_each"] for trial in chosen if trial["architecture"] == name])
            for name in settings.architectures
        }
        panels.append(
            ArchitecturePanel(
                f"bijection, {trained} pairs trained" if task == "bijection" else "HMM given in the prompt",
                np.arange(1, length + 1),
                curves,
                x_label="pair" if task == "bijection" else "symbol",
                y_label="entropy error (bits)",
                log_y=True,
                trained=trained if trained < length else None,
            )
        )
    bijections, hmms = settings.models_of("bijection"), settings.models_of("hmm")
    protocol = (
        f"Mean over held-out rows ({settings.num_sequences:,}) and positions of the absolute difference of entropies; "
        f"standard errors over {len(settings.seeds)} seeds. Bijections: layers {bijections['layers']}, width "
        f"{bijections['width']}, {bijections['steps']:,} steps of {BATCH_SIZE} rows. HMMs: layers {hmms['layers']}, "
        f"width {hmms['width']}, {hmms['steps']:,} steps. The same layers, width and "
        "steps for every architecture, not the same number of parameters."
    )
    title = "The Bayesian geometry of transformer attention"
    write_result(
        settings.output_dir,
        Paper(title, "2512.22471", "entropy errors of bijections and of HMMs"),
        findings(settings, trials),
        protocol=protocol,
        tokens=tokens,
        seconds=max(seconds, sum(trial["seconds"] for trial in trials)),
        pictures={"entropy_errors.png": partial(draw_panels, panels)},
    )


if __name__ == "__main__":
    run(main)
