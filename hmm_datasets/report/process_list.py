"""The table of processes that can be named: call, sizes, entropy rate, source."""

import inspect
import re
from collections.abc import Sequence
from typing import Any

from ..hmm.loading import load_source
from ..hmm.names import PREFIX, constructor, constructor_names, example_of, is_process_name, signature_of
from .entropy_rates import rate_text
from .process_description import process_facts
from .tables import text_table

_CITED = re.compile(r"\(([^()]*(?:\([^()]*\))?[^()]*\b(?:1[89]|20)\d\d\b[^()]*|[^()]*\b(?:figure|section)\b[^()]*)\)")


def process_rows(calls: Sequence[str] = (), *, rates: bool = True) -> list[dict[str, Any]]:
    """What there is to know of processes, one `dict` for each, ready for JSON.

    Args:
        calls (sequence of `str`, *optional*): which ones, such as `"mess3(x=0.05)"`, a folder or a name on the Hub; by
            default each that can be named, with its defaults or an example of its arguments.
        rates (`bool`, *optional*, defaults to `True`): whether to compute entropy rates, which takes 20 s for all.

    Returns:
        list of `dict`: `name`, `signature` and `call`; `source`, what the documentation of the constructor cites, None
        if nothing; and [`~hmm_datasets.report.process_description.process_facts`], whose `summary` is that of the
        documentation for a process with a name.

    Raises:
        `InputError`: a call names no process.

    ```python
    >>> [row] = process_rows(["golden_mean"])
    >>> row["num_states"], round(row["entropy_rate"]["value"], 4), row["source"]
    (2, 0.4621, 'a subshift of finite type; Crutchfield and Feldman 2003')

    ```
    """
    examples = [PREFIX + call for call in map(example_of, constructor_names()) if call]
    return [_row(call, rates) for call in calls or examples]


def _row(name_or_path: str, rates: bool) -> dict[str, Any]:
    call = name_or_path.removeprefix(PREFIX)
    facts = process_facts(load_source(name_or_path), rate=rates)
    if not is_process_name(name_or_path):
        return {"name": call, "signature": call, "call": call, "source": None, **facts}
    name = call.partition("(")[0].strip()
    documentation = inspect.getdoc(constructor(name)) or ""
    facts["summary"] = " ".join(documentation.split("\n\n")[0].split())
    cited = _CITED.search(" ".join(documentation.split()))
    signature = signature_of(name, constructor(name))
    return {"name": name, "signature": signature, "call": call, "source": cited and cited[1], **facts}


def process_table(rows: Sequence[dict[str, Any]], width: int = 100) -> str:
    """[`process_rows`]'s result as a table for the terminal, with what was computed of each: the entropy rate in nats
    per token, see [`~hmm_datasets.report.entropy_rates.rate_text`], or else what the process is.

    Args:
        rows (list of `dict`): see [`process_rows`].
        width (`int`, *optional*, defaults to 100): columns of the terminal.
    """
    rates = "entropy_rate" in rows[0]
    cells = [
        [
            _shortened(row["call"] if "(" in row["call"] else row["signature"], 36),
            "-" if row["num_states"] is None else f"{row['num_states']:,}",
            f"{row['num_symbols']:,}",
            rate_text(row["entropy_rate"]) if rates else row["summary"].replace("`", ""),
        ]
        for row in rows
    ]
    header = ["process", "states", "symbols", "entropy rate, nats per token" if rates else "what it is"]
    if not rates:  # a number that is cut would be another one
        taken = sum(max(len(line[column]) for line in [header, *cells]) + 2 for column in range(3))
        cells = [[*others, _shortened(last, max(width - taken, 20))] for *others, last in cells]
    note = "Give one as NAME(ARGUMENTS) wherever a process is named; `hmm-datasets describe NAME` describes it."
    return f"{text_table(header, cells, left=(0, 3))}\n{note}"


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3].rstrip(' ,;')}..."
