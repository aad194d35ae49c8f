"""Tables of measurements, and their text for the terminal; `page` renders the same tables as HTML."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

from ..display import format_number

PREDICTORS = {
    "oracle": "oracle (knows each row's HMM)",
    "bayes": "Bayes-optimal",
    "model": "model",
    "process_bigram": "bigram of the process",
    "process_unigram": "unigram of the process",
    "bigram": "bigram, in context",
    "unigram": "unigram, in context",
    "uniform": "uniform",
}
"""Titles of the predictors in tables and plots, best first."""

SHARES = {
    "right": "right, word for word",
    "ended": "end their turn",
    "spoke_for_others": "speak for someone else",
    "repeated": "repeat themselves",
    "empty": "are empty",
}
"""What is counted of a chat model's answers, with titles."""

_ERROR = "standard_error"
OPTIMAL_LOSSES = {"bayes": "optimal loss", "oracle": "lower bound"}
"""Titles of the predictors from which a gap is measured."""

NO_ERROR = "one sequence has no standard error"
"""Stands where a standard error would, since none can be estimated from a single sequence."""

_FORMULA = ("=", "+", "-", "@", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four in full width

ROUNDING = 1e-6
"""Nats per token: a smaller difference of losses is none, since models round their logits to about 1e-7."""


@dataclass(frozen=True)
class Table:
    """The content of a table.

    Args:
        title (`str`): text above the table; may be empty.
        header (sequence of `str`): names of the columns.
        rows (sequence of sequences of `str`): the cells.
        note (`str`, *optional*): text below the table.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def text(self) -> str:
        """The table for the terminal."""
        return "\n".join(filter(None, [self.title, text_table(self.header, self.rows), self.note]))

    def markdown(self) -> str:
        """The table for a card."""
        cells = [[" ".join(cell.split("\n")).replace("|", "\\|") for cell in row] for row in (self.header, *self.rows)]
        lines = [f"| {' | '.join(row)} |" for row in cells]
        lines.insert(1, "|---|" + "---:|" * (len(self.header) - 1))
        return "\n\n".join(filter(None, [self.title, "\n".join(lines), self.note]))


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV. A cell that a spreadsheet would take for a formula begins with an apostrophe; numbers stay numbers.

    ```python
    >>> print(csv_text([["name", "gain"], ["=A1+A2", -0.5], ["-x", "-1e-3"]]), end="")
    name,gain
    '=A1+A2,-0.5
    '-x,-1e-3

    ```
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_without_formula(str(cell)) for cell in row] for row in rows)
    return text.getvalue()


def _without_formula(cell: str) -> str:
    try:
        float(cell)
    except ValueError:
        return f"'{cell}" if cell.lstrip().startswith(_FORMULA) else cell
    return cell


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,)) -> str:
    """Format a table as text, the columns `left` (by default the first) aligned to the left, the others to the right.

    ```python
    >>> print(text_table(["name", "nats"], [["a", "1.0"], ["bc", "10.0"]]))
    name  nats
    ----  ----
    a      1.0
    bc    10.0

    ```
    """
    # Not a table of rich, which cuts cells to the width of a console: these go into logs, files and pages too.
    cells = [list(header), *(list(map(str, row)) for row in rows)]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padding = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        pairs = enumerate(zip(row, padding, strict=True))
        return "  ".join(cell + space if column in left else space + cell for column, (cell, space) in pairs).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * w for w in widths), *map(line, cells[1:])])


def figure_text(value: float | None, form: str = ".4f") -> str:
    """A formatted number, or a dash for None and NaN, such as the error of an infinite loss or of one sequence.

    What is rounded to zero has no minus; see [`~hmm_datasets.display.format_number`].
    """
    return "-" if value is None or math.isnan(value) else format_number(value, form)


def error_text(error: float | None) -> str:
    """A standard error to stand behind its number, or nothing if there is none."""
    return "" if error is None or math.isnan(error) else f" +- {error:.4f}"


def sequences_text(measured: Mapping[str, Any], unit: str = "") -> str:
    """How many sequences of which length were measured, and that one has no standard error."""
    count, length = measured["num_sequences"], measured["length"]
    if count == 1:
        return f"1 held-out sequence of {length:,}{unit}; {NO_ERROR}"
    return f"{count:,} held-out sequences of {length:,}{unit}"


def finite_error(error: float | None) -> float:
    """A standard error, or 0 where there is none, as of an infinite loss, which is above every finite one."""
    return error if error is not None and math.isfinite(error) else 0.0


def interval_text(low: float | None, high: float | None, form: str = ".4f") -> str:
    """A formatted interval, or a dash if a bound is None."""
    return "-" if low is None or high is None else f"{figure_text(low, form)} .. {figure_text(high, form)}"


def predictor_titles(names: Iterable[str]) -> dict[str, str]:
    """The model and predictors among `names`, in the order of [`PREDICTORS`], with their titles."""
    names = set(names)
    orders = sorted((int(name.removesuffix("-gram")) for name in names if name.endswith("-gram")), reverse=True)
    titles = {}
    for name, title in PREDICTORS.items():
        if name == "bigram":
            titles |= {f"{order}-gram": f"{order}-gram, in context" for order in orders}
        titles[name] = title
    return {name: title for name, title in titles.items() if name in names}


def optimum_table(measured: Mapping[str, Any], title: str = "") -> Table:
    """Cross-entropy and KL of the model and the predictors, and the loss of the last token if it was measured."""
    last = measured.get("final_token")
    rows = []
    for name, row_title in predictor_titles(measured["cross_entropy"]).items():
        figures = [(measured["cross_entropy"][name], "cross_entropy"), (measured["kl"].get(name), "kl")]
        if last is not None:
            figures.append((last.get(name), "cross_entropy"))
        cells = [
            "" if figure is None else figure_text(figure[key]) for figure, value in figures for key in (value, _ERROR)
        ]
        rows.append([row_title, *cells])
    header = ["predictor", "nats/token", "+-", "KL(predictor || model)", "+-"]
    header += [] if last is None else ["last token, nats", "+-"]
    gap, best = measured["bayes_gap"], OPTIMAL_LOSSES[measured["floor"]]
    notes = [
        f"excess over the {best}: {gap['bayes_gap']:z.4f}{error_text(gap[_ERROR])} nats per token "
        f"({sequences_text(measured)})"
    ]
    if gap[_ERROR] is not None and gap["bayes_gap"] < -3 * finite_error(gap[_ERROR]) - ROUNDING:
        notes.append(f"BELOW the {best} by more than three standard errors: the rows are not of this distribution")
    return Table(title, header, rows, "\n".join(notes))
