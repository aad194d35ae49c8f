"""Comparison of clean and leaky: a table in the terminal, `report.json` and `leaky.png` in the experiment's folder.

    python recipes/experiments/leaky_tokenizer/compare.py --experiment outputs/leaky_tokenizer

It shows the compression of train and held-out text by both tokenizers, the tokens that the leaky tokenizer has because
of the held-out text, and the bits per byte of the models on the held-out documents. Differences are leaky minus clean,
on the same documents. The interval of a seed is over documents, that of the mean over documents and seeds.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

if TYPE_CHECKING:
    from hmm_datasets.paired_differences import Difference


@dataclass
class ComparisonSettings:
    """The experiment to compare."""

    experiment: str = setting(MISSING, "Folder of the runs.")


def main(settings: ComparisonSettings) -> None:
    """Compare tokenizers, then models; print, write, draw."""
    from measure import compare, tokens_from_test
    from transformers import PreTrainedTokenizerFast

    from hmm_datasets.files import read_json, write_json
    from hmm_datasets.text.corpora.loading import load_corpus

    root = Path(settings.experiment)
    tokenizers = [PreTrainedTokenizerFast.from_pretrained(root / name / "tokenizer") for name in ("clean", "leaky")]

    made_of = read_json(root / "clean" / "run.json")["settings"]

    def texts(split: str):
        chosen = {name: made_of[name] for name in ("test_fraction", "max_documents")}
        return load_corpus(made_of["corpus"], split=split, kind="text", **chosen)["text"]

    compression = {split: compare(*tokenizers, texts(split)) for split in ("test", "train")}
    leaked = tokens_from_test(*tokenizers, texts("train"), texts("test"))
    models = {size: compare_models(folders) for size, folders in evaluations(root).items()}
    for split, name in (("test", "held-out"), ("train", "train")):
        print(_compression_table(name, compression[split]), end="\n\n")
    print(_leaked_table(leaked), end="\n\n")
    for size, compared in models.items():
        print(_models_table(size, compared), end="\n\n")
    report = {
        "compression": {split: asdict(compared) for split, compared in compression.items()},
        "tokens_from_test": asdict(leaked),
        "models": models,
        "settings": made_of,
    }
    write_json(root / "report.json", report)
    draw(compression, models, root / "leaky.png")
    print(f"{root}/report.json, leaky.png, models/sweep.csv")


def evaluations(root: Path) -> dict[str, dict[int, dict[str, Path]]]:
    """The folders of the evaluations by size, seed and tokenizer.

    Raises:
        `InputError`: a model is not finished.
    """
    from hmm_datasets.files import read_json

    folders: dict[str, dict[int, dict[str, Path]]] = {}
    for cell in read_json(root / "models" / "sweep.json")["cells"]:
        if cell["state"] != "finished":
            raise InputError(f"{cell['folder']}: the model is not finished; start the experiment again")
        settings = cell["settings"]
        name = Path(settings["tokens"]).parent.name
        folders.setdefault(settings["model"], {}).setdefault(settings["seed"], {})[name] = (
            Path(cell["folder"]) / "run" / "evaluation"
        )
    return folders


def compare_models(folders: Mapping[int, Mapping[str, Path]]) -> dict[str, Any]:
    """Bits per byte of each seed's two models, their difference, and the mean difference over seeds.

    Args:
        folders (`dict`): for each seed the folders of the evaluations of `clean` and `leaky`.

    Returns:
        `dict`: `seeds`, a list with `seed`, `clean`, `leaky` and `difference` (`value`, `low`, `high`); `mean`, the
        same for the losses averaged over seeds.
    """
    import numpy as np

    from hmm_datasets.files import read_json, read_jsonl
    from hmm_datasets.paired_differences import paired_difference

    rows, losses, reference = [], {"clean": [], "leaky": []}, None
    for seed, pair in folders.items():
        comparisons = {}
        for name in losses:
            folder = pair[name]
            documents = read_jsonl(folder / "items" / "text.jsonl")
            losses[name].append(np.array([row["nats"] for row in documents]) / math.log(2))
            comparisons[name] = read_json(folder / "report.json")["text"]["bits_per_byte"]
            sizes = np.array([row["bytes"] for row in documents])
            if reference is not None and not np.array_equal(sizes, reference):
                raise InputError(f"{folder}: its documents differ from those of the other runs; evaluate all again")
            reference = sizes
        difference = paired_difference(losses["clean"][-1], losses["leaky"][-1], sizes)
        rows.append({"seed": seed, **comparisons, "difference": asdict(difference)})
    means = {name: np.mean(values, axis=0) for name, values in losses.items()}
    mean = {name: float(values.sum() / sizes.sum()) for name, values in means.items()}
    over_documents = paired_difference(means["clean"], means["leaky"], sizes)
    mean["difference"] = asdict(with_seeds(over_documents, [row["difference"]["value"] for row in rows]))
    return {"seeds": rows, "mean": mean, "documents": len(sizes), "bytes": int(sizes.sum())}


def with_seeds(over_documents: "Difference", of_seeds: Sequence[float]) -> "Difference":
    """A mean difference over seeds whose interval includes how much the seeds differ.

    The half-widths over documents and over seeds (Student's) are added as squares, as if both causes were independent.

    Args:
        over_documents ([`~hmm_datasets.paired_differences.Difference`]): the mean, with its interval over documents.
        of_seeds (sequence of `float`): the difference of each seed. With one the interval stays as it is.
    """
    from hmm_datasets.intervals import half_width

    if len(of_seeds) < 2 or over_documents.low is None or over_documents.high is None:
        return over_documents
    half = half_width(statistics.stdev(of_seeds) / len(of_seeds) ** 0.5, len(of_seeds))
    value = over_documents.value
    below, above = (math.hypot(value - bound, half) for bound in (over_documents.low, over_documents.high))
    return replace(over_documents, low=value - below, high=value + above)


def _compression_table(name: str, lengths) -> str:
    from hmm_datasets.report.tables import interval_text, text_table

    figures = {
        "bytes per token": "bytes_per_token",
        "tokens per word": "fertility",
        "tokens per document": "tokens_per_document",
        "share of single bytes": "single_byte_share",
    }
    rows = []
    for title, figure in figures.items():
        difference = getattr(lengths, figure)
        values = [getattr(lengths.first, figure), getattr(lengths.second, figure), difference.value]
        rows.append([title, *(f"{value:.4f}" for value in values), interval_text(difference.low, difference.high)])
    header = [f"{name} text", "clean", "leaky", "leaky - clean", f"{lengths.level:.0%} interval"]
    counts = f"{lengths.first.documents:,} documents, {lengths.first.bytes:,} bytes"
    return f"{text_table(header, rows)}\n({counts})"


def _leaked_table(leaked, max_rows: int = 10) -> str:
    from hmm_datasets.report.tables import text_table

    rows = [[repr(token.text), f"{token.in_test:,}", f"{token.in_train:,}"] for token in leaked.from_test[:max_rows]]
    head = (
        f"{leaked.new:,} tokens of the leaky tokenizer are not in the clean one; {leaked.used:,} occur in the "
        f"held-out text, {len(leaked.from_test):,} more often there than in the train text"
    )
    return f"{head}\n{text_table(['token', 'in held-out text', 'in train text'], rows)}" if rows else head


def _models_table(size: str, models: dict[str, Any]) -> str:
    from hmm_datasets.report.tables import text_table

    rows = []
    for row in [*models["seeds"], {"seed": "mean", **models["mean"]}]:
        difference = row["difference"]
        interval = f"{difference['low']:+.4f} .. {difference['high']:+.4f}"
        rows.append(
            [str(row["seed"]), f"{row['clean']:.4f}", f"{row['leaky']:.4f}", f"{difference['value']:+.4f}", interval]
        )
    header = [f"bits per byte of {size}, seed", "clean", "leaky", "leaky - clean", "95% interval"]
    return f"{text_table(header, rows)}\n({models['documents']:,} held-out documents, {models['bytes']:,} bytes)"


def draw(compression: dict[str, Any], models: dict[str, Any], path: Path) -> None:
    """Draw two panels: the effect of leaking on bytes per token, and on bits per byte, each with its interval."""
    from matplotlib.figure import Figure

    from hmm_datasets.report.plots import save_figure

    left = {"train text": compression["train"].bytes_per_token, "held-out text": compression["test"].bytes_per_token}
    left = {name: (interval.value, interval.low, interval.high) for name, interval in left.items()}
    right = {
        f"{size}, {'mean' if row['seed'] == 'mean' else 'seed ' + str(row['seed'])}": tuple(row["difference"].values())
        for size, interval in models.items()
        for row in [*interval["seeds"], {"seed": "mean", **interval["mean"]}]
    }
    figure = Figure(figsize=(9, 0.9 + 0.5 * max(len(left), len(right))), layout="constrained")
    panels = figure.subplots(1, 2)
    titles = ("bytes per token", "bits per byte of held-out text")
    for axes, title, rows in zip(panels, titles, (left, right), strict=True):
        for height, (value, low, high) in enumerate(rows.values()):
            axes.errorbar(value, height, xerr=[[value - low], [high - value]], color="#0072B2", marker="o", capsize=3)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(yticks=range(len(rows)), yticklabels=list(rows), ylim=(len(rows) - 0.5, -0.5))
        axes.set(xlabel=f"{title}, leaky minus clean")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.25, linewidth=0.6)
    save_figure(figure, path)


if __name__ == "__main__":
    run(main)
