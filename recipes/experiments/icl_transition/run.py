"""From uniform to unigram to bigram to optimal: when does a model learn to count in its context?

    hmm-datasets experiment icl-transition [--config icl_transition/doubly_stochastic.yaml] [--hmm CALL ...]

Every row comes from a different Markov chain over three symbols, whose transition rows are drawn from a Dirichlet
distribution with concentration 0.3. So a model cannot learn the statistics of one chain; to predict well, it must
estimate them from the row itself. The optimum is known exactly: it predicts by the counts of what followed each symbol
in the row, plus 0.3. The weaker predictors are known too: the uniform distribution, and the unigram and the bigram of
the context. Such a model stays near the unigram for a while, until attention heads form that look up what followed the
current symbol before; see Edelman, Edelman, Goel, Malach and Tsilivis, "The Evolution of Statistical Induction Heads:
In-Context Learning Markov Chains", 2024.

`hmm` varies the prior of the chains: 50 symbols (`fifty_symbols.yaml`), doubly stochastic tables, whose unigram says
nothing (`doubly_stochastic.yaml`), rows of Zipf's law (`zipf.yaml`), a stationary first symbol (`stationary.yaml`).
The optimum of the last three has no closed form; there the excess is over the oracle, which knows
each chain.

The report in `outputs/icl_transition/evaluation` shows the divergence from each predictor during training, and the
steps at which the model is closest to a predictor and passes it. It takes some minutes on two cores; when started
again it continues where it stopped.

    hmm-datasets experiment icl-transition --models MODEL [MODEL ...]

looks for the same transition inside one context of pretrained models, which are not trained: each reads chains as
text, a letter for each symbol, and its divergence from each predictor is shown by the number of symbols read.
"""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.setting_rules import Void
from hmm_datasets.runtime.settings import setting

BATCH_SIZE = 4
"""With models: sequences of a forward pass."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SEPARATOR = "\n"
"""With models: the text between two symbols."""


@dataclass
class ICLTransitionSettings:
    """Settings of the experiment."""

    voids = (Void("max_steps", "with models"),)

    output_dir: str = setting("outputs/icl_transition", "Output folder.")
    hmm: str = setting("random_chains(3, alpha=0.3)", "The chains: a family of processes, by name, folder or call.")
    length: int = setting(96, "Symbols per sequence.")
    max_steps: int = setting(600, "Optimizer steps.")
    num_sequences: int = setting(1024, "Held-out sequences that the model is measured on.")
    models: list[str] = setting([], "Folders or names of pretrained models to measure instead.")
    seed: int = setting(0, "Seed of the weights and of the sequences.")


def main(settings: ICLTransitionSettings) -> None:
    """Save the chains, train, evaluate; or measure the given models."""
    from hmm_datasets.hmm.loading import load_source
    from hmm_datasets.operations.stages import run_or_exit

    folder = Path(settings.output_dir)
    if settings.models:
        measure(settings)
        return
    load_source(settings.hmm).save_pretrained(folder / "chains")
    run_or_exit(stages(settings))


def measure(settings: ICLTransitionSettings) -> None:
    """Measure the transition inside one context of each model; write a table and a picture."""
    from accelerate import Accelerator
    from in_context import divergences, draw, summarize, table
    from transformers import AutoTokenizer

    from hmm_datasets.evaluation.benchmark.models import load_causal_lm
    from hmm_datasets.evaluation.benchmark.symbols import SymbolTokens
    from hmm_datasets.files import atomic_file, write_json
    from hmm_datasets.hmm.loading import load_source
    from hmm_datasets.training.pretrained import load_pretrained

    process = load_source(settings.hmm)
    if process.num_symbols > len(LETTERS):
        raise InputError(f"hmm has {process.num_symbols} symbols; with models expected at most {len(LETTERS)} letters")
    tokens = process.sample(
        settings.num_sequences, settings.length, seed=settings.seed + 1
    )  # not the stream trained on
    measured, tables = {}, []
    for name in settings.models:
        symbols = SymbolTokens.of(
            load_pretrained(AutoTokenizer, name), list(LETTERS[: process.num_symbols]), SEPARATOR
        )
        model = load_causal_lm(name, Accelerator())
        measured[name] = summarize(divergences(model, symbols, process, tokens, BATCH_SIZE))
        tables.append(table(measured[name], f"Divergence of {name} from each predictor, nats, with 95% intervals"))
        print(tables[-1].text(), flush=True)
    folder = Path(settings.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "in_context.json", {"settings": asdict(settings), "models": measured})
    with atomic_file(folder / "in_context.md") as temporary:
        temporary.write_text("\n\n".join(part.markdown() for part in tables) + "\n", encoding="utf-8")
    draw({Path(name).name: rows for name, rows in measured.items()}, folder / "in_context.png")
    print(f"\n{folder / 'in_context.md'}: the tables; in_context.png: the picture")


def stages(settings: ICLTransitionSettings) -> tuple[tuple[str, str], ...]:
    """Title and command of each stage."""
    folder = Path(settings.output_dir)
    source, model, evaluation = (shlex.quote(str(folder / name)) for name in ("chains", "pretrain", "evaluation"))
    return (
        (
            "A Llama of two layers; every row from a different chain",
            f"hmm-datasets pretrain --launch cpu2 --config icl_transition/pretrain.yaml --hmm {source} "
            f"--length {settings.length} --max_steps {settings.max_steps} --seed {settings.seed} "
            f"--data_seed {settings.seed} --output_dir {model}",
        ),
        (
            "Which predictor was it like, and when?",
            f"hmm-datasets evaluate {model} --launch cpu2 --tasks optimum training "
            f"--num_sequences {settings.num_sequences} --output_dir {evaluation}",
        ),
    )


if __name__ == "__main__":
    run(main)
