"""Small models trained on sequences of a process in this Python process, and measured along the way.

An experiment with many models that train for seconds each would take longer to start a program for each of them than
to train it. [`trained_model`] trains one and saves it as `hmm-datasets pretrain` does, [`measured_run`] measures it
along the way; what is finished is not done again.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import recurrent  # noqa: F401, so that LSTMs and GRUs are loaded too
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    TrainerCallback,
    default_data_collator,
    set_seed,
)

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, write_json
from hmm_datasets.hmm.process import Process
from hmm_datasets.training.model_configs import new_model
from hmm_datasets.training.pretrained import load_pretrained
from hmm_datasets.training.run import SUMMARY_NAME, train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer

MEASURED_NAME = "measured.json"

Measure = Callable[[PreTrainedModel], dict[str, Any]]


@dataclass(frozen=True)
class SmallRun:
    """How a small model is trained: AdamW (0.9, 0.99) with gradients clipped at norm 1 and no weight decay, a linear
    warm-up over a tenth of the steps and a cosine to zero. Step `t` trains on sequences `[t G, (t + 1) G)` of the
    stream `seed`.

    Args:
        length (`int`): symbols per sequence, after a beginning token.
        steps (`int`): optimizer steps.
        batch_size (`int`): `G`, sequences per step.
        learning_rate (`float`): the peak.
        seed (`int`, *optional*, defaults to 0): seed of the initial weights and of the stream of sequences.
        optimizer (`str`, *optional*, defaults to `"adamw"`): of the hidden matrices, `"adamw"` or `"muon"`.
        only_scored (`bool`, *optional*, defaults to `False`): labels are the scored tokens of a task alone.
    """

    length: int
    steps: int
    batch_size: int
    learning_rate: float
    seed: int = 0
    optimizer: str = "adamw"
    only_scored: bool = False

    @classmethod
    def of(cls, settings: Any, **others: Any) -> "SmallRun":
        """The run that the attributes or keys of these names in `settings`, and `others`, describe."""
        values = settings if isinstance(settings, Mapping) else vars(settings)
        return cls(**({name: values[name] for name in cls.__dataclass_fields__ if name in values} | others))

    @property
    def tokens(self) -> int:
        """Tokens trained on, with the beginning tokens."""
        return self.steps * self.batch_size * (self.length + 1)


def trained_model(
    folder: str | os.PathLike,
    config: PreTrainedConfig,
    source: Process,
    run: SmallRun,
    *,
    callbacks: Sequence[TrainerCallback] = (),
    described: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """The model in `folder`, trained there on sequences of a process if it is not finished yet.

    Args:
        folder (path): folder of the run.
        config ([`~transformers.PreTrainedConfig`]): the model, which begins rows with the token `E`.
        source ([`~hmm_datasets.hmm.process.Process`]): what it is trained on.
        run ([`SmallRun`]): how it is trained.
        callbacks (sequence of [`~transformers.TrainerCallback`], *optional*): are called along the way.
        described (mapping, *optional*): anything else that the folder depends on.

    Raises:
        `InputError`: the folder has a run with other settings, or the run was interrupted.
    """
    # What `train_and_save` would compare is a part of the data, so that a change of any of these is refused.
    data = {"source": source.fingerprint(), "model": deepcopy(config.to_dict()), **asdict(run), **(described or {})}
    config = deepcopy(config)  # training writes into it
    set_seed(run.seed)
    args = PretrainSettings(
        output_dir=str(folder),
        max_steps=run.steps,
        global_batch_size=run.batch_size,
        per_device_train_batch_size=run.batch_size,
        learning_rate=run.learning_rate,
        optimizer=run.optimizer,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, run.steps // 10),
        adam_beta2=0.99,
        weight_decay=0.0,
        max_grad_norm=1.0,
        save_strategy="no",
        logging_steps=max(1, -(-run.steps // 8)),  # too few for plots, which take as long as some runs
        report_to="none",
        disable_tqdm=True,
        on_spike="ignore",
        seed=run.seed,
        bf16=False,  # too small to gain from it
    )
    rows = HMMSequences(source, run.length, seed=run.seed, only_scored=run.only_scored)
    trainer = Pretrainer(
        model=new_model(config),
        args=args,
        train_dataset=rows,
        data_collator=default_data_collator,
        callbacks=list(callbacks),
    )
    train_and_save(trainer, settings={}, data=data)
    if not (Path(folder) / SUMMARY_NAME).is_file():
        raise InputError(f"{folder}: stopped before its end; the same command continues")
    return load_pretrained(AutoModelForCausalLM, str(folder)).eval()


def finished_trial(path: Path, trial: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A trial with what was measured, from its file if that has one with the same description.

    Args:
        path (`Path`): the trial's JSON file.
        trial (`dict`): what determines its result.
        measure (callable): trains and measures; returns figures that JSON can hold.

    Returns:
        `dict`: `trial`, its figures, and the `seconds` that they took.
    """
    recorded = read_json(path) if path.exists() else {}
    if {key: recorded.get(key) for key in trial} == trial:
        print(f"{path}: already done", flush=True)
        return recorded
    began = time.monotonic()
    figures = measure()
    result = {**trial, **figures, "seconds": round(time.monotonic() - began, 1)}
    write_json(path, result)
    return result


def log_spaced_steps(steps: int, per_doubling: int = 1) -> list[int]:
    """0, 1, and so on up to `steps`, evenly spaced on a logarithmic axis.

    ```python
    >>> log_spaced_steps(20)
    [0, 1, 2, 4, 8, 16, 20]

    ```
    """
    powers = 2 ** np.arange(0, np.log2(max(steps, 1)) + 1e-9, 1 / per_doubling)
    return sorted({0, steps, *(number for number in np.rint(powers).astype(int).tolist() if number <= steps)})


def measured_run(
    folder: str | os.PathLike,
    config: PreTrainedConfig,
    source: Process,
    run: SmallRun,
    measure: Measure,
    at: Sequence[int],
    **described: Any,
) -> dict[str, Any]:
    """Train a model as [`trained_model`] does, and measure it before training and after some of the steps.

    Args:
        folder (path): folder of the model; has `measured.json` when it is finished.
        config ([`~transformers.PreTrainedConfig`]): the model.
        source ([`~hmm_datasets.hmm.process.Process`]): what it is trained on.
        run ([`SmallRun`]): how it is trained.
        measure (callable): takes the model, and returns what is kept of it, ready for JSON.
        at (sequence of `int`): optimizer steps after which it is called.
        described: anything else that measurements depend on; with another value the folder is refused.

    Returns:
        `dict`: `rows`, each with `step` and what `measure` returned; `tokens`, `seconds`, `parameters`.
    """
    along = Measurements(Path(folder) / MEASURED_NAME, measure, at)
    model = trained_model(folder, config, source, run, callbacks=[along], described={"at": list(at), **described})
    summary = read_json(Path(folder) / SUMMARY_NAME)
    rows = read_json(Path(folder) / MEASURED_NAME)["rows"]
    return {"rows": rows, "tokens": run.tokens, "parameters": model.num_parameters(), "seconds": summary["seconds"]}


class Measurements(TrainerCallback):
    """Writes to a file what `measure(model)` says before training and after the steps `at`."""

    def __init__(self, path: Path, measure: Measure, at: Sequence[int]):
        self._path, self._measure, self._at = path, measure, frozenset(at)
        self._rows: list[dict[str, Any]] = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Before the first step."""
        self._add(model, 0)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """After a step."""
        self._add(model, state.global_step)

    def _add(self, model: Any, step: int) -> None:
        if step in self._at:
            was_training = model.training
            model.eval()
            self._rows.append({"step": step, **self._measure(model)})
            model.train(was_training)
            write_json(self._path, {"rows": self._rows})
