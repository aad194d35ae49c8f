"""An evaluation as sentences and tables, for the terminal and for the HTML page."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..display import counted
from ..errors import InputError
from ..files import (
    DIGESTS_NAME,
    check_digests,
    read_json,
    restored,
)
from ..intervals import half_width
from .tables import (
    ROUNDING,
    SHARES,
    Table,
    error_text,
    figure_text,
    interval_text,
    optimum_table,
    predictor_titles,
    sequences_text,
)

Report = Mapping[str, Any]


_SAME_R2 = 0.005  # a smaller difference of R² is none
_PROBE = {"r2": "R²", "rmse": "RMSE"}
_UNTRAINED = {"untrained_r2": "untrained R²", "untrained_rmse": "RMSE"}
_OF_MARKOV = {"probe_r2": "R² of the probe for them", "probe_rmse": "RMSE"}


def evaluation_text(report: Report) -> str:
    """The summary and the tables of a report."""
    parts = [
        f"{report['model']['name']} ({report['model']['parameters']:,} parameters)\n" + "\n".join(summary(report))
    ]
    parts += [table.text() for tables in evaluation_tables(report).values() for table in tables]
    if "completions" in report:
        parts.append(_completions_text(report["completions"]))
    return "\n\n".join(parts)


def evaluation_tables(report: Report) -> dict[str, list[Table]]:
    """The tables of each task in a report, except completions, which are not shown as a table."""
    return {task: tables(report[task]) for task, (_, tables) in _tasks().items() if task in report and tables}


def summary(report: Report) -> list[str]:
    """A sentence for each task, the distance from the optimum first.

    Args:
        report (`dict`): the content of `report.json`.
    """
    return [sentence(report[task]) for task, (sentence, _) in _tasks().items() if task in report]


def _tasks() -> dict[str, tuple[Callable[[Report], str], Callable[[Report], list[Table]] | None]]:
    """The sentence and the tables of each task."""
    return {
        "optimum": (_optimum_sentence, _optimum),
        "training": (_training_sentence, _training),
        "beliefs": (_beliefs_sentence, _beliefs),
        "text": (_text_sentence, _text),
        "core": (_core_sentence, _core),
        "chat": (_chat_sentence, _chat),
        "completions": (_completions_sentence, None),
    }


def _optimum_sentence(optimum: Report) -> str:
    gap, error = optimum["bayes_gap"]["bayes_gap"], optimum["bayes_gap"]["standard_error"]
    half = half_width(error, optimum["num_sequences"])
    low, high = (None, None) if half is None else (gap - half, gap + half)
    known = _interval(low, high)
    best = {
        "bayes": "the optimal loss",
        "oracle": "the oracle that knows the HMM of each sequence, so at most that far above the optimal loss",
    }[optimum["floor"]]
    within = "" if half is None or gap > max(half, ROUNDING) else " Chance may explain that."
    if math.isinf(gap):
        return (
            f"The model excludes symbols that occur, so that its loss is infinitely far above {best}, on "
            f"{sequences_text(optimum, ' symbols')}."
        )
    return (
        f"The model is {gap:z.4f}{error_text(error)} nats per token{known} above {best}, on "
        f"{sequences_text(optimum, ' symbols')}.{within}"
    )


def _training_sentence(training: Report) -> str:
    titles = predictor_titles(training["predictors"])
    passed = [
        f"{titles[name]} at step {phase['passed_step']:,}"
        for name, phase in sorted(training["predictors"].items(), key=lambda pair: pair[1]["passed_step"] or 0)
        if phase["passed_step"] is not None
    ]
    if not passed:
        return "During training the model's loss did not fall below that of any predictor."
    return f"During training the model's loss fell below that of: {'; '.join(passed)}."


def _beliefs_sentence(beliefs: Report) -> str:
    probe = beliefs["layers"]["all"]
    controls = {"the same probe of an untrained model": probe.get("untrained_r2")}
    controls["the same probe for shuffled beliefs"] = probe.get("shuffled_r2")
    shorter = beliefs.get("markov", {}).items()  # of Markov order k, as of a model that remembers the last symbols
    controls |= {f"beliefs given the last {order} symbols alone": row["r2"] for order, row in shorter}
    known = {name: value for name, value in controls.items() if value is not None}
    r2 = probe["r2"]
    if r2 is None or not known:
        return f"A linear probe of all layers has a held-out R² of {figure_text(r2)} for the belief."
    best = max(known, key=known.__getitem__)
    said = f"A linear probe of all layers has a held-out R² of {figure_text(r2)} for the belief"
    if known[best] >= r2 - _SAME_R2:
        worse = "as much as it" if known[best] <= r2 + _SAME_R2 else "more"
        have = "has" if "probe" in best else "have"
        probe = f"{best} {have} {figure_text(known[best])}, {worse}"
        return f"{said}, but {probe}: the model need not have the belief."
    return f"{said}; the best control, {best}, has {figure_text(known[best])}."


def _interval(low: float | None, high: float | None, level: float = 0.95) -> str:
    """An interval to stand behind its number, or nothing where none can be estimated."""
    return "" if low is None or high is None else f" ({level:.0%} interval {interval_text(low, high)})"


def _text_sentence(text: Report) -> str:
    known = _interval(text["bits_per_byte_low"], text["bits_per_byte_high"], text["level"])
    return (
        f"On held-out text the model needs {text['bits_per_byte']:z.4f} bits per byte{known} over {_documents(text)}; "
        f"its perplexity per token is {figure_text(text['perplexity'], '.2f')}."
    )


def _documents(text: Report) -> str:
    return "1 document" if text["num_documents"] == 1 else f"{text['num_documents']:,} documents"


def _core_sentence(core: Report) -> str:
    warning = "" if core["complete"] else " The score of a subset can only be compared with that of the same subset."
    return (
        f"{core['name']}: {core['score']:.4f}{_interval(core['low'], core['high'])}, "
        f"{core['baselines']} baselines.{warning}{_cut_prompts(core)}"
    )


def _cut_prompts(core: Report) -> str:
    """A sentence about prompts that were too long for the model; nothing if all were read whole."""
    cut = core.get("prompts_cut", 0)  # absent in reports of earlier versions
    if not cut:
        return ""
    return (
        f" {cut:,} of {core['prompts']:,} prompts were longer than the {core['max_length']:,} tokens that the model "
        f"takes (the longest has {core['longest_prompt']:,}) and lost their beginning, so they were scored with fewer "
        "solved examples than the table says."
    )


def _chat_sentence(chat: Report) -> str:
    right, ended = chat["shares"]["right"]["share"], chat["shares"]["ended"]["share"]
    return (
        f"On held-out conversations the loss of the assistant's words is {chat['loss']:z.4f} nats per token"
        f"{_interval(chat['loss_low'], chat['loss_high'])}; of {chat['questions']:,} greedy answers "
        f"{figure_text(right, '.1%')} are right and {figure_text(ended, '.1%')} end their turn."
    )


def _completions_sentence(completions: Report) -> str:
    return f"The model completes {completions['facts_correct']:,} of {completions['facts']:,} facts correctly."


def _figures_table(title: str, columns: Mapping[str, str], rows: Mapping[str, Report], note: str = "") -> list[Table]:
    """A table of numbers, with a row for each name; none without rows.

    Args:
        columns (mapping): key and title of each column; the first is that of the names.
    """
    _, *keys = columns
    cells = [[name, *(figure_text(row.get(key)) for key in keys)] for name, row in rows.items()]
    return [Table(title, list(columns.values()), cells, note)] if cells else []


def _optimum(optimum: Report) -> list[Table]:
    tables = [optimum_table(optimum, "Loss of the model and of the predictors of the distribution")]
    for name, figures in optimum.get("metrics", {}).items():
        rows = {figure: {"value": value} for figure, value in figures.items() if isinstance(value, int | float)}
        tables += _figures_table(f"Metric {name}", {"name": "figure", "value": "value"}, rows)
    return tables


def _training(training: Report) -> list[Table]:
    rows = []
    titles = predictor_titles(training["predictors"])
    for name, title in reversed(titles.items()):
        figures = training["predictors"][name]
        passed = "never" if figures["passed_step"] is None else f"{figures['passed_step']:,}"
        rows.append([title, f"{figures['closest_step']:,}", figure_text(figures["closest_kl"]), passed])
    phases = "; ".join(
        f"{titles[phase['predictor']]} ({phase['first_step']:,} to {phase['last_step']:,})"
        for phase in training["phases"]
    )
    header = ["predictor", "closest at step", "KL there", "passed at step"]
    note = (
        f"nearest predictor by step: {phases}\n{counted(len(training['rows']), 'evaluation')}, from {training['from']}"
    )
    return [Table("Learning phases", header, rows, note), *_beliefs_by_checkpoint(training["rows"])]


def _beliefs_by_checkpoint(evaluations: Sequence[Report]) -> list[Table]:
    """R2 and RMSE of the belief and its parts at each checkpoint, from all layers; none if they were not probed."""
    probed = {f"{row['step']:,}": row for row in evaluations if "belief_r2" in row}
    columns = {"step": "step"}
    for key in next(iter(probed.values()), ()):
        if key.startswith("belief_"):
            name = key.removeprefix("belief_").replace("rmse", "RMSE").replace("r2", "R²")
            columns[key] = name.replace("_", ", ")
    return _figures_table("Linear probes of all layers by checkpoint", columns, probed)


def _beliefs(beliefs: Report) -> list[Table]:
    """Probes by layer and of the parts, and beliefs that know the last symbols alone."""
    states, width = beliefs["num_states"], beliefs.get("belief_width")
    of = f"{states} states" if states is not None else f"beliefs of {width} numbers"
    titles = {"0": "embedding", "all": "all layers"}
    layers = {titles.get(name, name): probe for name, probe in beliefs["layers"].items()}
    markov = {f"order {order}": row for order, row in beliefs.get("markov", {}).items()}
    return [
        *_figures_table(
            "Linear probes by layer",
            {"layer": "layer", **_PROBE, "shuffled_r2": "shuffled R²", "shuffled_rmse": "RMSE", **_UNTRAINED},
            layers,
            f"{of}; fitted on {beliefs['fitted_on']:,} sequences, tested on {beliefs['tested_on']:,} others",
        ),
        *_figures_table(
            "Linear probes of the parts", {"part": "part of the belief"} | _PROBE | _UNTRAINED, _parts(beliefs)
        ),
        *_figures_table(
            "Beliefs of Markov order k",
            {"order": "beliefs given the last symbols", **_PROBE, **_OF_MARKOV},
            markov,
            "R² and RMSE of beliefs of order k as predictions of the belief: no function of the last k symbols is "
            "nearer to it.\nThe last two columns: the probe of all layers, fitted to the beliefs of order k instead",
        ),
    ]


def _parts(beliefs: Report) -> dict[str, Report]:
    """Probes of each part of the belief, from all layers and from the best single one."""
    rows = {}
    for name, layers in beliefs.get("parts", {}).items():
        single = {layer: probe for layer, probe in layers.items() if layer != "all"}
        best = max(single, key=lambda layer: -1.0 if single[layer]["r2"] is None else single[layer]["r2"])
        rows |= {f"{name}, all layers": layers["all"], f"{name}, layer {best}": single[best]}
    return rows


def _text(text: Report) -> list[Table]:
    measures = {"bits_per_byte": "bits per byte", "bits_per_character": "bits per character"}
    measures |= {"perplexity": "perplexity per token", "nats_per_token": "nats per token"}
    rows = [
        [title, figure_text(text.get(key)), interval_text(text.get(f"{key}_low"), text.get(f"{key}_high"))]
        for key, title in measures.items()
    ]
    note = (
        f"{text['num_tokens']:,} tokens, {text['bytes']:,} bytes, {_documents(text)}; windows of "
        f"{text['window']:,} tokens, each scored token with a context of at least {text['least_context']:,}; "
    )
    note += "one has no interval" if text["bits_per_byte_low"] is None else f"intervals over {text['unit']}s"
    lost = text.get("lost_text")
    if lost:
        note += (
            f"; the tokenizer loses text ({lost['characters']:,} characters, {lost['unknown_tokens']:,} unknown "
            "tokens), so bits per byte and per character do not compare with those of other tokenizers"
        )
    return [Table("Loss on held-out text", ["measure", "value", f"{text['level']:.0%} interval"], rows, note)]


def _core(core: Report) -> list[Table]:
    rows = []
    for label, task in [*core["tasks"].items(), (core["name"], core | {"centered": core["score"]})]:
        facts = [task["type"], str(task["shots"]), f"{task['items']:,}"] if "type" in task else [""] * 3
        figures = [figure_text(task.get(key)) for key in ("accuracy", "baseline", "centered")]
        rows.append([label, *facts, *figures, interval_text(task["low"], task["high"])])
    header = ["task", "type", "shots", "items", "accuracy", "baseline", "centered", "95% interval"]
    missing = f"; not measured: {', '.join(core['missing'])}" if core["missing"] else ""
    return [Table("Accuracy by task", header, rows, f"baselines {core['baselines']}{missing}")]


def _chat(chat: Report) -> list[Table]:
    rows = []
    for name, title in SHARES.items():
        share = chat["shares"][name]
        interval = interval_text(share["low"], share["high"], ".1%")
        rows.append([title, f"{share['count']:,}", figure_text(share["share"], ".1%"), interval])
    note = f"{chat['conversations']:,} conversations, {chat['tokens']:,} tokens of the assistant"
    header = ["answers that", "count", "share", "95% interval"]
    return [Table("Greedy answers to held-out questions", header, rows, note)]


def _completions_text(completions: Report) -> str:
    """Facts with their greedy completions, then open prompts; escaped, since a model may produce any characters."""
    lines = [f"Completions: {completions['facts_correct']} of {completions['facts']} facts"]
    marks = {True: "right", False: "wrong", None: "     "}
    for prompt in completions["prompts"]:
        wanted = "" if prompt["expected"] is None else f", expected {prompt['expected']!r}"
        lines.append(f"{marks[prompt['correct']]}  {prompt['prompt']!r} -> {prompt['greedy']!r}{wanted}")
    return "\n".join(lines)


def read_report(folder: str | os.PathLike) -> dict[str, Any]:
    """The `report.json` of an evaluation, which with its items is as it was written.

    Raises:
        `InputError`: there is no such report, or a file has changed since.
    """
    folder = restored(folder)
    report = read_json(folder / "report.json")
    check_digests(folder, f"evaluate again, or delete {folder / DIGESTS_NAME} to read the evaluation as it is")
    if not isinstance(report, dict) or not isinstance(report.get("model"), dict):
        raise InputError(f"{folder / 'report.json'}: not the report of an evaluation, which has a field `model`")
    return report
