"""Which architectures recall, and which infer a language from its strings? Recall by width, and random automata.

    hmm-datasets experiment architectures --config architectures/small.yaml [--architectures llama gru] [--seeds 0 1]

- `recall`: multi-query associative recall (Arora et al., "Zoology: measuring and improving recall in efficient
  language models", arXiv 2312.04927). Pairs of a key and a value, then keys again: the accuracy of the values that are
  recalled, by the width of the model. The paper finds that attention recalls at any width, and that models without
  attention need a width that grows with the number of pairs. As in the paper only recalled values are labels.
- `automata`: every row has strings of a random automaton of its own (Akyürek et al., "In-context language learning:
  architectures and algorithms", arXiv 2401.12973). The accuracy is the share of positions whose likeliest token the
  automaton allows, and the excess is the loss above that of a predictor which knows the automaton. The paper finds
  transformers ahead of recurrent models.

All models are measured on held-out rows. `result.md` has the numbers, with standard errors over seeds, and
`architectures.png` shows them. When started again the experiment continues with what is missing.
"""

import time
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

TASKS = ["recall", "automata"]
"""What models are trained on."""
LAYERS = 2
"""Layers of every model."""


@dataclass(frozen=True)
class Size:
    """What is trained on, and how long: of recall, and of automata.

    Attributes:
        batch_size (`int`): rows per optimizer step.
        lengths, widths, steps, learning_rates (`dict`): of each task the tokens per row, the widths of its models, the
            optimizer steps and the peak learning rate.
        num_keys, num_pairs (`int`): keys, as many values, and pairs in a row of the recall task.
        num_states, alphabet (`tuple`): least and largest number of states of automata, and of letters of each.
        num_letters (`int`): letters that alphabets are drawn from.
        stop (`float`): probability that a string ends after a letter.
    """

    batch_size: int
    lengths: dict[str, int]
    widths: dict[str, list[int]]
    steps: dict[str, int]
    learning_rates: dict[str, float]
    num_keys: int
    num_pairs: int
    num_states: tuple[int, int]
    alphabet: tuple[int, int]
    num_letters: int
    stop: float


SIZES = {
    "small": Size(
        batch_size=64,
        lengths={"recall": 24, "automata": 64},
        widths={"recall": [16, 32, 64, 128], "automata": [64]},
        steps={"recall": 1600, "automata": 1000},
        learning_rates={"recall": 3e-3, "automata": 5e-3},
        num_keys=8,
        num_pairs=6,
        num_states=(4, 6),
        alphabet=(4, 8),
        num_letters=8,
        stop=0.05,
    ),
    # The vocabulary of 8,192 and the widths of the paper on recall, and automata of the sizes of the paper on
    # languages, in our reading of both; steps, batch and learning rates are ours.
    "full": Size(
        batch_size=256,
        lengths={"recall": 64, "automata": 512},
        widths={"recall": [64, 128, 256, 512], "automata": [64, 256]},
        steps={"recall": 50_000, "automata": 20_000},
        learning_rates={"recall": 1e-3, "automata": 1e-3},
        num_keys=4096,
        num_pairs=16,
        num_states=(4, 12),
        alphabet=(4, 18),
        num_letters=18,
        stop=0.04,
    ),
}


@dataclass
class ArchitectureSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    architectures: list[str] = setting(["llama", "lstm", "gru"], "Some of llama, lstm, gru, mamba.")
    seeds: list[int] = setting([0], "Seeds of models and rows.")
    size: str = setting("small", "Size of tasks and models: small, or full for those of the papers.")
    steps: int | None = setting(None, "Optimizer steps of each model; by default those of the size.")
    num_sequences: int = setting(512, "Held-out rows that models are measured on.")

    def __post_init__(self):
        if self.size not in SIZES:
            raise InputError(f"size is {self.size!r}; expected {' or '.join(SIZES)}")

    @property
    def of_size(self) -> Size:
        """What the size stands for."""
        return SIZES[self.size]

    def steps_of(self, task: str) -> int:
        """Optimizer steps on a task."""
        return self.of_size.steps[task] if self.steps is None else self.steps


def main(settings: ArchitectureSettings) -> None:
    """Train and measure every model, report, draw."""
    began = time.monotonic()
    trials = [tried(settings, trial) for trial in trials_of(settings)]
    report(settings, trials, time.monotonic() - began)


def source_of(settings: ArchitectureSettings, task: str):
    """The process of a task."""
    from hmm_datasets.hmm.families.automata import RandomAutomata
    from hmm_datasets.hmm.families.episodic_tasks import AssociativeRecall

    size = settings.of_size
    if task == "recall":
        return AssociativeRecall(size.num_keys, size.num_keys, size.num_pairs)
    return RandomAutomata(size.num_states, size.num_letters, alphabet=size.alphabet, stop=size.stop)


def trials_of(settings: ArchitectureSettings) -> list[dict[str, Any]]:
    """What determines each model and its measurement."""
    size = settings.of_size
    shared = {"layers": LAYERS, "batch_size": size.batch_size, "num_sequences": settings.num_sequences}
    return [
        {"task": task, "architecture": architecture, "width": width, "seed": seed, "length": size.lengths[task]}
        | {"steps": settings.steps_of(task), "learning_rate": size.learning_rates[task]}
        | {"source": source_of(settings, task).fingerprint(), **shared}
        for task in TASKS
        for architecture in settings.architectures
        for width in size.widths[task]
        for seed in settings.seeds
    ]


def tried(settings: ArchitectureSettings, trial: dict[str, Any]) -> dict[str, Any]:
    """A trial with what was measured, from its file if it has one."""
    from small_runs import finished_trial

    name = "{task}-{architecture}-{width}-{seed}".format(**trial)
    folder = Path(settings.output_dir)
    source = source_of(settings, trial["task"])
    path = folder / "trials" / f"{name}.json"
    return finished_trial(path, trial, lambda: measured(source, trial, folder / "models" / name))


def measured(source: Any, trial: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What is measured of the model of a trial, trained first if it is not yet, and its number of parameters."""
    from architectures import architecture_config
    from small_runs import SmallRun, trained_model

    sizes = {"vocab_size": source.num_symbols + 1, "length": trial["length"] + 1, "bos_token_id": source.num_symbols}
    config = architecture_config(trial["architecture"], width=trial["width"], layers=trial["layers"], **sizes)
    recalls = trial["task"] == "recall"
    model = trained_model(folder, config, source, SmallRun.of(trial, only_scored=recalls))
    figures = recall_accuracy(model, source, trial) if recalls else automata_figures(model, source, trial)
    print(f"{folder.name}: accuracy {figures['accuracy']:.3f}", flush=True)
    return {"parameters": model.num_parameters(), **figures}


def recall_accuracy(model, task, trial: dict[str, Any]) -> dict[str, Any]:
    """Share of recalled values that are the likeliest token."""
    from entropy_errors import task_log_probs

    log_probs, episodes = task_log_probs(model, task, trial["num_sequences"])
    recalled = episodes[:, task.scored(task.episode_length)]
    return {"accuracy": float((log_probs.argmax(-1).numpy() == recalled).mean())}


def automata_figures(model, family, trial: dict[str, Any]) -> dict[str, Any]:
    """Accuracy and excess over the oracle of a model and of n-grams counted in the row."""
    import numpy as np
    import torch

    from hmm_datasets.data.sequences import TEST_FIRST
    from hmm_datasets.hmm.analysis.predictors import ngram

    tokens = family.sample(trial["num_sequences"], trial["length"], seed=0, first=TEST_FIRST)
    tokens = torch.from_numpy(tokens.astype(np.int64))
    oracle = family.oracle_next_token_probs(tokens, seed=0, first=TEST_FIRST)[:, :-1]
    rows = torch.nn.functional.pad(tokens, (1, 0), value=family.num_symbols).to(model.device)
    with torch.inference_mode():
        logits = torch.cat([model(input_ids=part, use_cache=False).logits for part in rows.split(128)])
    probs = logits[:, :-1, :-1].double().softmax(-1).cpu()
    accuracy, excess, by_token = scores(probs, oracle, tokens)
    grams = [scores(ngram(tokens, family.num_symbols, order)[:, :-1], oracle, tokens)[:2] for order in (1, 2, 3)]
    by_token = [float(f"{share:.5g}") for share in by_token]
    return {"accuracy": accuracy, "excess": excess, "excess_by_token": by_token, "ngrams": grams}


def scores(probs, oracle, tokens) -> tuple[float, float, Any]:
    """Share of positions whose likeliest token is possible, and nats per token above the oracle, in all and by token.

    Args:
        found, oracle (`torch.Tensor` of shape `(N, L, E)`): distributions before each token.
        tokens (`torch.Tensor` of shape `(N, L)`): the tokens.

    ```python
    >>> import torch
    >>> oracle = torch.tensor([[[0.5, 0.5, 0.0]]])
    >>> scores(torch.tensor([[[0.25, 0.25, 0.5]]]), oracle, torch.tensor([[1]]))[:2]
    (0.0, 0.6931471824645996)

    ```
    """
    possible = oracle.gather(-1, probs.argmax(-1, keepdim=True)) > 0
    ratio = (oracle.gather(-1, tokens[..., None]) / probs.gather(-1, tokens[..., None])).log()[..., 0]
    return possible.double().mean().item(), ratio.mean().item(), ratio.mean(0).numpy()


def findings(settings: ArchitectureSettings, trials: list[dict[str, Any]]) -> list:
    """One finding for each number of each task, architecture and width, with the standard error over seeds.

    Then what a guess and counts in the row would have.
    """
    from published import Finding

    from hmm_datasets.statistics import clustered_mean

    entries = []
    kinds = dict.fromkeys((trial["task"], trial["architecture"], trial["width"]) for trial in trials)
    for task, name, width in kinds:
        chosen = [
            trial for trial in trials if (trial["task"], trial["architecture"], trial["width"]) == (task, name, width)
        ]
        for figure, unit in (("accuracy", ""), ("excess", " over the oracle (nats per token)")):
            if figure not in chosen[0]:
                continue
            mean, error, *_ = clustered_mean([[trial[figure]] for trial in chosen])
            rows = chosen[0]["steps"] * chosen[0]["batch_size"]
            size = f"{chosen[0]['parameters']:,} parameters, {rows:,} rows"
            label = f"{task}, {name} of width {width}: {figure}{unit}"
            entries.append(Finding(label, mean, error, difference=size))
    guess = "a guess among the values of the row"
    return [
        *entries,
        Finding(f"recall, {guess}: accuracy", 1 / settings.of_size.num_pairs),
        *automata_baselines(settings),
    ]


def automata_baselines(settings: ArchitectureSettings) -> list:
    """The accuracy of a token drawn at random, and of n-grams that are counted in the row."""
    import numpy as np
    import torch
    from published import Finding

    from hmm_datasets.data.sequences import TEST_FIRST
    from hmm_datasets.hmm.analysis.predictors import ngram

    family = source_of(settings, "automata")
    tokens = family.sample(settings.num_sequences, settings.of_size.lengths["automata"], seed=0, first=TEST_FIRST)
    tokens = torch.from_numpy(tokens.astype(np.int64))
    oracle = family.oracle_next_token_probs(tokens, seed=0, first=TEST_FIRST)[:, :-1]
    entries = [Finding("automata, a token at random: accuracy", float((oracle > 0).double().mean()))]
    for order, name in ((1, "unigram"), (2, "bigram"), (3, "trigram")):
        probs = ngram(tokens, family.num_symbols, order)[:, :-1]
        entries.append(Finding(f"automata, {name} of the row: accuracy", scores(probs, oracle, tokens)[0]))
    return entries


def report(settings: ArchitectureSettings, trials: list[dict[str, Any]], seconds: float) -> None:
    """Write the result and draw `architectures.png`."""
    from architecture_panels import draw_panels
    from published import Paper, write_result

    size = settings.of_size
    protocol = (
        f"{LAYERS} layers; the same width and steps for every architecture, not the same number of "
        f"parameters; {len(settings.seeds)} seeds. Recall: {size.num_keys} keys and values, {size.num_pairs} "
        f"pairs, {settings.steps_of('recall'):,} steps of {size.batch_size} rows. Automata: {size.num_states[0]} to "
        f"{size.num_states[1]} states, {size.num_letters} letters, {size.lengths['automata']} tokens, "
        f"{settings.steps_of('automata'):,} steps. The papers state their results as curves by width and by number of "
        "strings, so that no published number is beside ours."
    )
    write_result(
        settings.output_dir,
        Paper("Zoology, and In-context language learning", "2312.04927 and 2401.12973", "recall, and random automata"),
        findings(settings, trials),
        protocol=protocol,
        tokens=sum(trial["steps"] * trial["batch_size"] * (trial["length"] + 1) for trial in trials),
        seconds=max(seconds, sum(trial["seconds"] for trial in trials)),
        pictures={"architectures.png": lambda path: draw_panels(panels_of(settings, trials), path)},
    )


def panels_of(settings: ArchitectureSettings, trials: list[dict[str, Any]]) -> list:
    """Accuracy of recall by width, and the excess on automata by token."""
    import numpy as np
    from architecture_panels import ArchitecturePanel

    size = settings.of_size

    def curves(task: str, values) -> dict[str, np.ndarray]:
        of = {
            name: [trial for trial in trials if (trial["task"], trial["architecture"]) == (task, name)]
            for name in settings.architectures
        }
        return {name: np.array([values(chosen, seed) for seed in settings.seeds]) for name, chosen in of.items()}

    by_width = curves("recall", lambda chosen, seed: [trial["accuracy"] for trial in chosen if trial["seed"] == seed])
    title = f"recall of {size.num_pairs} pairs"
    axes = {
        "x_label": "width",
        "y_label": "accuracy",
        "log_x": True,
        "levels": {"guess a value of the row": 1 / size.num_pairs},
    }
    recall = ArchitecturePanel(title, size.widths["recall"], by_width, **axes)
    widest = max(size.widths["automata"])
    smooth = np.ones(8) / 8

    def excess(chosen, seed):
        (trial,) = [trial for trial in chosen if (trial["seed"], trial["width"]) == (seed, widest)]
        return np.convolve(trial["excess_by_token"], smooth, "valid")

    by_token = curves("automata", excess)
    x = np.arange(size.lengths["automata"] - 7) + 4.5
    labels = {"x_label": "token (means of 8)", "y_label": "excess over the oracle\n(nats per token)"}
    automata = ArchitecturePanel(f"random automata, width {widest}", x, by_token, **labels)
    return [recall, automata]


if __name__ == "__main__":
    run(main)
