"""The evaluations of several stages of training in one table.

    python recipes/experiments/chat_ladder/table.py outputs/chat_ladder --stages pretrain midtrain sft dpo grpo

For each stage it reads `STAGE/summary.json`, if it was trained here, and `evaluation/STAGE/`, prints the table, and
writes it to `stages.md` with the first answers of every stage as they are.
"""

import argparse
from pathlib import Path


def main() -> None:
    """Read, print, write."""
    from hmm_datasets.files import atomic_file, read_json, read_jsonl
    from hmm_datasets.report.tables import SHARES, Table
    from hmm_datasets.runtime.one_line_errors import one_line_errors

    parser = argparse.ArgumentParser(description="The evaluations of several stages in one table.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stages", nargs="+", required=True)
    parser.add_argument("--transcripts", type=int, default=6, metavar="N", help="answers to show, default 6")
    arguments = parser.parse_args()
    with one_line_errors():
        rows, reports = [], {}
        for name in arguments.stages:
            report = reports[name] = read_json(arguments.folder / "evaluation" / name / "report.json")
            text, chat, core = report["text"], report["chat"], report.get("core")
            shares = [chat["shares"][share] for share in SHARES]
            trained = arguments.folder / name / "summary.json"  # none of a model that was not trained here
            facts = f"{report['completions']['facts_correct']} of {report['completions']['facts']}"
            rows.append([
                name,
                f"{read_json(trained)['tokens']:,}" if trained.is_file() else "-",
                _with_interval(text["bits_per_byte"], text["bits_per_byte_low"], text["bits_per_byte_high"]),
                _with_interval(chat["loss"], chat["loss_low"], chat["loss_high"]),
                *(_with_interval(share["share"], share["low"], share["high"], ".1%") for share in shares),
                facts,
                "-" if core is None else _with_interval(core["score"], core["low"], core["high"]),
            ])  # fmt: skip
        header = ["stage", "tokens", "bits per byte of text", "nats per token of answers"]
        header += [*SHARES.values(), "facts", "CORE subset"]
        table = Table("Every stage on held-out text and questions, with 95% intervals", header, rows)
        print(table.text())
        lines = [table.markdown()]
        items = {name: read_jsonl(arguments.folder / "evaluation" / name / "items" / "chat.jsonl") for name in reports}
        for index in range(min(arguments.transcripts, *map(len, items.values()))):
            asked = items[arguments.stages[0]][index]
            lines.append(f"> {asked['messages'][-1]['content']}\n\nexpected: `{asked['expected']}`")
            lines.append("\n".join(f"- {name}: `{examples[index]['answer']!r}`" for name, examples in items.items()))
        with atomic_file(arguments.folder / "stages.md") as temporary:
            temporary.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
        print(f"\n{arguments.folder / 'stages.md'}: the table, and the first answers of every stage")


def _with_interval(value: float, low: float | None, high: float | None, form: str = ".3f") -> str:
    return f"{value:{form}}" + ("" if low is None else f" ({low:{form}} to {high:{form}})")


if __name__ == "__main__":
    main()
