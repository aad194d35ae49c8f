"""Comparing several evaluations."""

from dataclasses import dataclass
from pathlib import Path

from ..runtime.settings import argument, option


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Compare several evaluations, with paired intervals."""

    runs: list[str] = argument("RUN", "folder of an evaluation; the first is the reference", many="+")
    output_dir: Path | None = option(None, "FOLDER", "write report, page and plots there")
    heat_map: list[str] | None = option(
        None,
        ("X", "Y"),
        "axes: entries of the reports, such as optimum.num_states optimum.length",
        many=2,
    )
    value: str = option(
        "optimum.bayes_gap.bayes_gap",
        None,
        "entry that the heat map shows, default optimum.bayes_gap.bayes_gap",
    )


def compare_command(arguments: CompareCommand) -> int:
    """Print the comparison, and write it to a folder if one is given."""
    from ..evaluation.comparison import compare_reports
    from ..evaluation.comparison_report import comparison_text, write_comparison

    found = compare_reports(arguments.runs, heat_map=arguments.heat_map, value=arguments.value)
    print(comparison_text(found))
    if arguments.output_dir is not None:
        write_comparison(found, arguments.output_dir)
        print(f"\n{arguments.output_dir}/")
    return 0
