"""Comparing several evaluations."""

from dataclasses import dataclass
from pathlib import Path

from ..runtime.settings import argument, option


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Compare several evaluations, with paired intervals."""

    runs: list[str] = argument(
        "RUN",
        "folder of an evaluation or benchmark, or of a run with one; the first is the reference",
        many="+",
    )
    output_dir: Path | None = option(None, "FOLDER", "write report, page and plots there")


def compare_command(arguments: CompareCommand) -> int:
    """Print the comparison, and write it to a folder if one is given."""
    from ..evaluation.comparison import compare_reports
    from ..evaluation.comparison_report import comparison_text, write_comparison

    comparison = compare_reports(arguments.runs)
    print(comparison_text(comparison))
    if arguments.output_dir is not None:
        write_comparison(comparison, arguments.output_dir)
        print(f"\n{arguments.output_dir}/")
    return 0
