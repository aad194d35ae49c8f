"""An evaluation as sentences and tables, for the terminal and for the HTML page."""

import math
import os
from collections.abc import Mapping, Sequence
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
    makers = {"optimum": _optimum, "training": _training, "beliefs": _beliefs, "text": _text, "core": _core}
    makers |= {"chat": _chat}
    return {task: make(report[task]) for task, make in makers.items() if task in report}


def summary(report: Report) -> list[str]:
    """A sentence for each task, the distance from the optimum first.

    Args:
        report (`dict`): the content of `report.json`.
    """
    makers = {
        "optimum": _optimum_sentence,
        "training": _training_sentence,
        "beliefs": _beliefs_sentence,
        "text": _text_sentence,
        "core": _core_sentence,
        "chat": _chat_sentence,
        "completions": _completions_sentence,
    }
    return [make(report[task]) for task, make in makers.items() if task in report]


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
    controls |= {f"beliefs given the last {order} symbols alone": row["r2"] for order, row in _shorter(beliefs)}
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


def _shorter(beliefs: Report) -> list[tuple[int, Report]]:
    """Beliefs of Markov order k, which a model has that only remembers the last symbols."""
    return [(int(order), row) for order, row in beliefs.get("markov", {}).items()]


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
        f"{core['baselines']} baselines; with corrupted inputs {figure_text(core['corrupted_score'])}.{warning}"
        f"{_cut_prompts(core)}"
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


def _optimum(optimum: Report) -> list[Table]:
    tables = [optimum_table(optimum, "Loss of the model and of the predictors of the distribution")]
    for name, figures in optimum.get("metrics", {}).items():
        rows = [[figure, figure_text(value)] for figure, value in figures.items() if isinstance(value, int | float)]
        tables.append(Table(f"Metric {name}", ["figure", "value"], rows))
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
    probed = [row for row in evaluations if "belief_r2" in row]
    if not probed:
        return []
    keys = [key for key in probed[0] if key.startswith("belief_")]
    names = [
        key.removeprefix("belief_").replace("rmse", "RMSE").replace("r2", "R²").replace("_", ", ") for key in keys
    ]
    rows = [[f"{row['step']:,}", *(figure_text(row[key]) for key in keys)] for row in probed]
    return [Table("Linear probes of all layers by checkpoint", ["step", *names], rows)]


def _beliefs(beliefs: Report) -> list[Table]:
    columns = ("r2", "rmse", "shuffled_r2", "shuffled_rmse", "untrained_r2", "untrained_rmse")
    rows = [
        [{"0": "embedding", "all": "all layers"}.get(name, name), *(figure_text(probe.get(key)) for key in columns)]
        for name, probe in beliefs["layers"].items()
    ]
    header = ["layer", "R²", "RMSE", "shuffled R²", "RMSE", "untrained R²", "RMSE"]
    states, width = beliefs["num_states"], beliefs.get("belief_width")
    of = f"{states} states" if states is not None else f"beliefs of {width} numbers"
    note = f"{of}; fitted on {beliefs['fitted_on']:,} sequences, tested on {beliefs['tested_on']:,} others"
    return [
        Table("Linear probes by layer", header, rows, note),
        *_belief_parts(beliefs),
        *_markov_beliefs(beliefs),
        *_belief_positions(beliefs),
    ]


def _belief_parts(beliefs: Report) -> list[Table]:
    """R2 and RMSE of each part of the belief, from all layers and from the best single one."""
    rows = []
    for name, layers in beliefs.get("parts", {}).items():
        r2 = {layer: -1.0 if probe["r2"] is None else probe["r2"] for layer, probe in layers.items() if layer != "all"}
        best = max(r2, key=r2.__getitem__)
        figures = [layers["all"].get(key) for key in ("r2", "rmse", "untrained_r2", "untrained_rmse")]
        rows.append([name, *map(figure_text, figures), best, figure_text(layers[best]["r2"])])
    header = ["part of the belief", "R²", "RMSE", "untrained R²", "RMSE", "best layer", "R²"]
    return [Table("Linear probes of the parts, from all layers", header, rows)] if rows else []


def _markov_beliefs(beliefs: Report) -> list[Table]:
    """Beliefs that know the last symbols alone, as predictions of the belief and as targets of the probe."""
    columns = ("r2", "rmse", "probe_r2", "probe_rmse")
    rows = [
        [f"order {order}", *(figure_text(figures[key]) for key in columns)]
        for order, figures in beliefs.get("markov", {}).items()
    ]
    header = ["beliefs given the last symbols", "R²", "RMSE", "R² of the probe for them", "RMSE"]
    note = (
        "R² and RMSE of beliefs of order k as predictions of the belief: no function of the last k symbols is nearer "
        "to it.\nThe last two columns: the probe of all layers, fitted to the beliefs of order k instead"
    )
    return [Table("Beliefs of Markov order k", header, rows, note)] if rows else []


def _belief_positions(beliefs: Report) -> list[Table]:
    """The probe of all layers at some positions."""
    if "positions" not in beliefs:
        return []
    probe, first = beliefs["positions"]["layers"]["all"], beliefs["positions"]["first"]
    last = first + len(probe["r2"]) - 1
    shown = [seen for seen in sorted({*(1 << power for power in range(last.bit_length())), last}) if seen >= first]
    rows = [[str(seen), *(figure_text(probe[key][seen - first]) for key in ("r2", "rmse"))] for seen in shown]
    return [Table("The probe of all layers by position", ["symbols seen", "R²", "RMSE"], rows)]


def _text(text: Report) -> list[Table]:
    rows = [
        ["bits per byte", figure_text(text["bits_per_byte"]),
         interval_text(text["bits_per_byte_low"], text["bits_per_byte_high"])],
        ["bits per character", figure_text(text.get("bits_per_character")), ""],
        ["perplexity per token", figure_text(text["perplexity"]),
         interval_text(text["perplexity_low"], text["perplexity_high"])],
        ["nats per token", figure_text(text["nats_per_token"]), ""],
    ]  # fmt: skip
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
    rows = [
        [
            label,
            task["type"],
            str(task["shots"]),
            f"{task['items']:,}",
            f"{task['accuracy']:.4f}",
            f"{task['baseline']:.4f}",
            f"{task['centered']:.4f}",
            interval_text(task["low"], task["high"]),
            figure_text(task["corrupted_centered"]),
        ]
        for label, task in core["tasks"].items()
    ]
    bounds, control = interval_text(core["low"], core["high"]), figure_text(core["corrupted_score"])
    rows.append([core["name"], "", "", "", "", "", f"{core['score']:.4f}", bounds, control])
    header = ["task", "type", "shots", "items", "accuracy", "baseline", "centered", "95% interval", "corrupted"]
    missing = f"; not measured: {', '.join(core['missing'])}" if core["missing"] else ""
    return [Table("Accuracy by task", header, rows, f"baselines {core['baselines']}{missing}")]


def _chat(chat: Report) -> list[Table]:
    rows = [
        [title, f"{share['count']:,}", *_share(share)]
        for name, title in SHARES.items()
        for share in [chat["shares"][name]]
    ]
    note = f"{chat['conversations']:,} conversations, {chat['tokens']:,} tokens of the assistant"
    return [
        Table("Greedy answers to held-out questions", ["answers that", "count", "share", "95% interval"], rows, note)
    ]


def _share(share: Report) -> tuple[str, str]:
    return figure_text(share["share"], ".1%"), interval_text(share["low"], share["high"], ".1%")


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
