"""The benchmark as a task of inspect-ai, which reports nats per symbol above the optimum.

    inspect eval hmm_datasets/hmm_benchmark --model hf/USER/MODEL
    inspect eval hmm_datasets/hmm_benchmark --model symbols/PATH

The scores are those of `hmm-datasets benchmark`, since the same functions compute them. Inspect's log-probabilities
of a prompt (`GenerateConfig.prompt_logprobs`) come only from servers such as vLLM; its provider `hf` has none
(`inspect_ai/model/_providers/hf.py`, 0.3.285). But that provider holds a transformers model and its tokenizer, with
which the solver here reads the sequences. For models of the track `ids`, which have no tokenizer, there is the
provider `symbols`. See https://inspect.aisi.org.uk/extensions.html and https://inspect.aisi.org.uk/scorers.html.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, ModelAPI, ModelOutput, get_model, modelapi
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, grouped, mean, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from ...errors import InputError
from .held_out import NUM_SEQUENCES, HeldOut, open_benchmark
from .models import load_causal_lm
from .processes import chosen_processes
from .tracks import optimal_nats, predictions_of

_EXCESS = "nats_above_optimum"


@task
def hmm_benchmark(
    data: str | None = None,
    process: str | Sequence[str] | None = None,
    num_sequences: int = NUM_SEQUENCES,
    batch_size: int = 32,
) -> Task:
    """The benchmark, on the track `text` for models with a tokenizer and `ids` for others.

    Args:
        data (`str`, *optional*): folder or Hub repository of the data set; by default it is computed.
        process (`str` or list of `str`, *optional*): names of processes; all by default.
        num_sequences (`int`, *optional*, defaults to 256): sequences of each process.
        batch_size (`int`, *optional*, defaults to 32): sequences in one forward pass.
    """
    names = [process] if isinstance(process, str) else process
    benchmark = open_benchmark(data, processes=names, num_sequences=num_sequences)
    samples = [
        Sample(input=text, id=f"{held_out.name}-{index}", metadata={"process": held_out.name, "index": index})
        for held_out in benchmark.processes
        for index, text in enumerate(held_out.texts())
    ]
    return Task(
        dataset=MemoryDataset(samples, name="hmm_benchmark"),
        solver=read_sequences(num_sequences, batch_size),
        scorer=above_optimum(),
        metadata={"dataset_id": benchmark.dataset_id, "revision": benchmark.revision},
    )


@solver
def read_sequences(num_sequences: int, batch_size: int) -> Solver:
    """Store by how much the model's loss on the sample is above the optimum, in nats per symbol.

    All sequences of a process are read in batches when the first of them is asked for.
    """
    from accelerate import Accelerator

    excess: dict[str, np.ndarray] = {}

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        name = state.metadata["process"]
        if name not in excess:
            api = get_model().api
            if not hasattr(api, "model") or not hasattr(api, "tokenizer"):
                raise InputError(
                    f"{state.model}: its provider does not give log-probabilities of a text; use --model hf/MODEL, or "
                    "symbols/MODEL for a model without a tokenizer"
                )
            held_out = HeldOut(name, chosen_processes([name])[name], num_sequences)
            accelerator = Accelerator(cpu=api.model.device.type == "cpu")
            nats = predictions_of(held_out, api.model.eval(), api.tokenizer, accelerator, batch_size=batch_size).nats
            excess[name] = nats - optimal_nats(held_out, "ids" if api.tokenizer is None else "text")
        state.store.set(_EXCESS, float(excess[name][state.metadata["index"]]))
        state.output = ModelOutput(model=str(state.model))
        return state

    return solve


@metric
def excess() -> Metric:
    """The mean over processes, in nats per symbol; 0 is the optimum."""

    # inspect-ai passes samples with their metadata only to functions with this annotation.
    def mean_over_processes(scores: list[SampleScore]) -> float:
        groups = _by_process(scores).values()
        return float(np.mean([np.mean(values) for values in groups])) if groups else math.nan

    return mean_over_processes


@metric
def standard_error() -> Metric:
    """The standard error of [`excess`] over sequences; the processes are fixed."""

    def error(scores: list[SampleScore]) -> float:
        groups = _by_process(scores).values()
        if not groups or any(len(values) < 2 for values in groups):
            return math.nan
        return math.sqrt(sum(np.var(values, ddof=1) / len(values) for values in groups)) / len(groups)

    return error


@scorer(metrics=[excess(), standard_error(), grouped(mean(), "process", all=False)])
def above_optimum() -> Scorer:
    """The model's loss on a sequence minus that of the exact HMM, in nats per symbol."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=state.store.get(_EXCESS))

    return score


@modelapi(name="symbols")
class SymbolsAPI(ModelAPI):
    """A transformers model whose tokens are the symbols, such as one trained with this package."""

    def __init__(self, model_name: str, base_url: str | None = None, api_key: str | None = None,
                 config: GenerateConfig = GenerateConfig(), **model_args: Any):  # noqa: B008  # fmt: skip
        from accelerate import Accelerator

        super().__init__(model_name, base_url, api_key, [], config)
        self.model = load_causal_lm(model_name, Accelerator())
        self.tokenizer = None

    async def generate(self, *args: Any, **kwargs: Any) -> ModelOutput:
        raise InputError(f"{self.model_name}: a model of symbols writes no text; run it on hmm_benchmark")


def _by_process(scores: Sequence[SampleScore]) -> dict[str, list[float]]:
    by_process: dict[str, list[float]] = defaultdict(list)
    for score in scores:
        by_process[(score.sample_metadata or {})["process"]].append(score.score.as_float())
    return by_process
