"""How far from the truth does quantization take a model, on a process whose exact distribution is known?

    hmm-datasets experiment quantization --config quantization/small.yaml [--formats Q8_0 Q4_0 int8 ...]

What quantization costs is usually measured as the divergence from the model before it, or on text whose optimum nobody
knows. Here Llamas are trained on a process, the weights of all their linear layers are quantized by what users take,
the package `gguf` of llama.cpp and torchao, and the predictions on held-out sequences are compared with the exact
distributions: `KL(exact || model)` in nats per symbol before and after. Beside it stands `KL(float32 || model)`, the
divergence from the model in float32. Standard errors are over sequences.

GGUF's formats are quantized and read again as float32, as everywhere in this package. `int8`, `int8_dynamic` and
`int4` compute with torchao's kernels. `quantization.png` and `report.md` show the result. When started again the
experiment continues where it stopped.
"""

import importlib.util
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

GGUF = ("F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
TORCHAO = ("int8", "int8_dynamic", "int4")


@dataclass
class QuantizationSettings:
    """Settings of the experiment."""

    output_dir: str = setting("outputs/quantization", "Output folder.")
    hmm: str = setting("mess3", "Process with an exact distribution: name, folder or call.")
    models: list[str] = setting(["d1", "d2"], "Sizes or configurations of transformers.")
    formats: list[str] = setting(
        ["F16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"],
        f"Of gguf: {', '.join(GGUF)}; of torchao: {', '.join(TORCHAO)}.",
    )
    length: int = setting(64, "Symbols per sequence.")
    num_sequences: int = setting(1024, "Held-out sequences.")
    train_tokens: int = setting(1_000_000, "Tokens that each model is trained on.")
    seed: int = setting(0, "Seed of the models and of the sequences.")

    def __post_init__(self):
        for name in self.formats:
            if name not in (*GGUF, *TORCHAO):
                raise InputError(f"formats has {name!r}; expected some of {', '.join((*GGUF, *TORCHAO))}")
        for name in ("models", "formats"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty; expected one or more")
        if self.num_sequences < 2:
            raise InputError(f"num_sequences is {self.num_sequences}; expected 2 or more, for a standard error")


def main(settings: QuantizationSettings) -> None:
    """Train, quantize, measure, report."""
    from measure import measure

    from hmm_datasets.operations.stages import run_or_exit

    check_packages(settings.formats)  # before anything is trained
    folder, began = Path(settings.output_dir), time.monotonic()
    run_or_exit([training(settings, model) for model in settings.models])
    results = {model: measure(folder_of(settings, model), settings) for model in settings.models}
    report(settings, folder, results, time.monotonic() - began)


def check_packages(formats: Sequence[str]) -> None:
    """Refuse formats whose package is not installed.

    Raises:
        `InputError`: a package is missing.
    """
    for package, names, install in (("gguf", GGUF, "'hmm-datasets[gguf]'"), ("torchao", TORCHAO, "torchao")):
        if set(formats) & set(names) and importlib.util.find_spec(package) is None:
            raise InputError(f"formats: {package} is not installed; pip install {install}, or leave its formats out")


def folder_of(settings: QuantizationSettings, model: str) -> Path:
    """The folder of a model."""
    return Path(settings.output_dir) / Path(model).stem


def training(settings: QuantizationSettings, model: str) -> tuple[str, str]:
    """Title and command of a training."""
    words: list[object] = ["--hmm", settings.hmm, "--model", model, "--length", settings.length]
    words += ["--train_tokens", settings.train_tokens, "--seed", settings.seed, "--data_seed", settings.seed]
    words += ["--output_dir", folder_of(settings, model)]
    return (
        f"A Llama of {model} on {settings.hmm}",
        f"hmm-datasets pretrain --config quantization/pretrain.yaml {shlex.join(map(str, words))}",
    )


def draw(results: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw what every format adds to the divergence from the exact distributions, and that from float32.

    There is a panel for each model. The axis is linear near 0, since a format may come closer to the truth by chance.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from hmm_datasets.intervals import half_width
    from hmm_datasets.report.plots import PAPER, WIDTH, save_figure

    series = {
        "rise": {"color": "#0072B2", "marker": "o", "label": "KL(exact || quantized) - KL(exact || float32)"},
        "float32": {
            "color": "#D55E00",
            "marker": "s",
            "markerfacecolor": "white",
            "label": "KL(float32 || quantized)",
        },
    }
    with rc_context(PAPER):
        figure = Figure(figsize=(0.95 * WIDTH * len(results), 3.2), layout="constrained")
        panels = figure.subplots(1, len(results), squeeze=False, sharey=True)[0]
        for axes, (model, result) in zip(panels, results.items(), strict=True):
            names = list(result["formats"])
            for key, style in series.items():
                rows = [result["formats"][name][key] for name in names]
                values = [row["mean"] for row in rows]
                errors = [half_width(row["standard_error"], row["num_sequences"]) for row in rows]
                axes.errorbar(range(len(names)), values, yerr=errors, linestyle="", capsize=2, **style)
            exact = result["exact"]["mean"]
            axes.axhline(exact, color="black", linewidth=0.8, linestyle="--", label="KL(exact || float32)")
            axes.axhline(0, color="grey", linewidth=0.6)
            axes.set_title(f"{model}, {result['parameters']:,} parameters")
            axes.set_yscale("symlog", linthresh=1e-6)
            axes.set_xlim(-0.5, len(names) - 0.5)
            axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        panels[0].set_ylabel("nats per symbol")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        save_figure(figure, path)


def report(
    settings: QuantizationSettings, folder: Path, results: Mapping[str, Mapping[str, Any]], seconds: float
) -> None:
    """Write `report.json` and `report.md`, and print the table."""
    from report_page import write_report_page

    from hmm_datasets.report.tables import Table

    header = ["model", "format", "bits", "from the exact distribution", "rise over float32", "from float32"]
    note = (
        f"Divergences in 1e-6 nats per symbol, with standard errors over {settings.num_sequences:,} held-out "
        f"sequences of {settings.length} symbols of {settings.hmm}; {settings.train_tokens:,} tokens of training, one "
        "seed. Bits per weight of the linear layers, with scales. The rise is KL(exact || quantized) - "
        "KL(exact || float32), sequence by sequence."
    )
    table = Table("Divergence before and after quantization", header, rows_of(results), note)
    figures = {"models": results, "seconds": round(seconds, 1)}
    write_report_page(folder, [table], figures, {"quantization.png": partial(draw, results)})


def rows_of(results: Mapping[str, Mapping[str, Any]]) -> Sequence[Sequence[str]]:
    """The rows of the table: for each model float32, and then the formats."""

    def text(figure: Mapping[str, float]) -> str:
        return f"{1e6 * figure['mean']:,.1f} +- {1e6 * figure['standard_error']:.1f}"

    rows = []
    for model, result in results.items():
        rows.append([model, "float32", "32", text(result["exact"]), "", ""])
        for name, figures in result["formats"].items():
            bits = f"{figures['bits']:.3g}"
            rows.append([model, name, bits, *(text(figures[key]) for key in ("exact", "rise", "float32"))])
    return rows


if __name__ == "__main__":
    run(main)
