"""What does a tokenizer cost? The exact optimum of models that read tokens, and small models beside it.

    hmm-datasets experiment token-price --config token_price/small.yaml [--states 0 --processes mess3 ...]

On text nobody can say whether one tokenizer is worse than another, or only its model. Sequences of an HMM are cut by
byte pair encoding of several sizes, each trained on one text (clean), and on half of it and the test text (leaky).
The loss of the best predictor of tokens is computed exactly, with all tokens before it and in windows that begin
within the text. Small Llamas of equal compute read windows of tokens. So what a model loses beyond the entropy rate of
the process, in bits per symbol, has two parts: what the best predictor loses by its window, and what the model loses
beside that.

The processes are an HMM fitted to the characters of stories, and those that are named; of a family it is the HMM of
its first sequence. `report.md` in the output folder has the tables, `token_price.png` shows both parts, and
`windows.png` what windows cost, beside the loss of unigram models of tokens (Rajaraman et al., arXiv:2404.08335). When
started again the experiment continues.
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

if TYPE_CHECKING:
    from sources import Source
    from texts import Texts

WIDTH, LAYERS = 64, 2
"""Of the Llamas."""
BATCH_SIZE = 32
LEARNING_RATE = 4e-3


@dataclass
class TokenPriceSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    states: int = setting(
        500, "Hidden states of an HMM that is fitted to the characters of stories; 0 for none.", least=0
    )
    processes: list[str] = setting(["dyck(4, kinds=2)"], "HMMs, chains or families: names, folders or calls.")
    vocab_sizes: list[int] = setting([64, 256, 1024], "Numbers of tokens, beside the symbols alone.")
    window: int = setting(128, "Tokens per window of the models.", least=2)
    steps: int = setting(600, "Optimizer steps on symbols; on tokens as many as take the same compute.", least=1)
    seeds: list[int] = setting([0], "Seeds; a model for each tokenizer and seed.")

    def __post_init__(self):
        for name in ("vocab_sizes", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values) or min(values) < 0:
                raise InputError(f"{name} is {values}; expected different numbers, 0 or more")
        if not self.processes and self.states == 0:
            raise InputError("processes is empty and states 0; expected a process, or the states of a fit")


def main(settings: TokenPriceSettings) -> None:
    """Compute what is exact, train the models, report."""
    from report import write_report
    from sources import ALPHABET, named_source, story_source
    from texts import WINDOWS

    from hmm_datasets.runtime.progress import progress_bar

    if settings.window not in WINDOWS:
        raise InputError(f"window is {settings.window}; expected one of {', '.join(map(str, WINDOWS))}")
    folder = Path(settings.output_dir)
    sources = [named_source(name) for name in settings.processes]
    fewest = min(settings.vocab_sizes)
    symbols = {repr(source.hmm): source.hmm.num_symbols for source in sources}
    for source, number in (symbols | ({"the stories": len(ALPHABET)} if settings.states else {})).items():
        if fewest <= number:
            raise InputError(f"vocab_sizes has {fewest}; expected more than the symbols of {source}, {number}")
    if settings.states:
        sources.insert(0, story_source(folder / "stories", settings.states))
    parts = len(sources) * (1 + 2 * len(settings.vocab_sizes)) * (1 + len(settings.seeds))
    with progress_bar(parts, " parts", desc="token-price") as bar:
        results = [result for source in sources for result in measured(settings, folder / source.folder, source, bar)]
    write_report(folder, results, vars(settings))


def measured(settings: TokenPriceSettings, folder: Path, source: "Source", bar: Any) -> Iterator[dict[str, Any]]:
    """For each tokenizer of a process what is exact, and the losses of its models."""
    from small_runs import finished_trial
    from texts import LENGTH, ROWS, SKIPPED, Texts, exact_losses

    hmm, sizes = source.hmm, sorted(settings.vocab_sizes)
    drawn = {"process": hmm.fingerprint(), "text": [ROWS, LENGTH, SKIPPED]}
    rate = finished_trial(folder / "rate.json", drawn, lambda: {"entropy_rate": hmm.entropy_rate().value})
    for kind, size in [("symbols", hmm.num_symbols), *((kind, size) for size in sizes for kind in ("clean", "leaky"))]:
        place = folder / f"{kind}-{size}"
        trial, texts = {**drawn, "tokenizer": kind, "vocab_size": size}, Texts.of(hmm, kind, size)
        exact = finished_trial(place / "exact.json", trial, partial(exact_losses, texts, source.order))
        bar.update(1)
        models = []
        for seed in settings.seeds:
            models.append(trained(settings, place, texts, trial, seed))
            bar.update(1)
        yield {
            "source": source.name,
            "order": source.order,
            "symbols": hmm.num_symbols,
            **rate,
            **exact,
            "models": models,
        }


def trained(
    settings: TokenPriceSettings, place: Path, texts: "Texts", trial: dict[str, Any], seed: int
) -> dict[str, Any]:
    """What a model of tokens loses on each row of the test text; from its file, if it was trained before."""
    from architectures import architecture_config
    from small_runs import SmallRun, finished_trial, trained_model
    from texts import WindowsWithin, model_losses

    from hmm_datasets.training.model_configs import new_model
    from hmm_datasets.training.plan.flops import flops_per_token

    def config(symbols: int) -> Any:
        sizes = {"vocab_size": symbols + 1, "length": settings.window + 1, "bos_token_id": symbols}
        return architecture_config("llama", **sizes, width=WIDTH, layers=LAYERS)

    def cost(symbols: int) -> int:
        return flops_per_token(new_model(config(symbols)), settings.window + 1)

    size = texts.process.num_symbols
    steps = max(1, round(settings.steps * cost(texts.process.process.num_symbols) / cost(size)))
    small = SmallRun(settings.window, steps, BATCH_SIZE, LEARNING_RATE, seed=seed)

    def measure() -> dict[str, Any]:
        model = trained_model(place / f"seed-{seed}", config(size), WindowsWithin(texts.process), small)
        return model_losses(model, texts, settings.window)

    described = {**trial, "seed": seed, "steps": steps, "window": settings.window, "learning_rate": LEARNING_RATE}
    return finished_trial(place / f"seed-{seed}.json", described, measure)


if __name__ == "__main__":
    run(main)
