"""The table of what a paper states beside what was measured."""

import json
from pathlib import Path

from published import Finding, Paper, write_result

PAPER = Paper("On coins", "2001.00001", "figure 1")
FINDINGS = (
    Finding("excess, nats per token", 0.00123, 0.0002, 0.0138, "table 2", "more tokens"),
    Finding("R2 of the probe", 0.991),
    Finding("accuracy", 0.5, None, 0.6, "figure 1"),
)


def test_a_result_is_printed_and_kept_with_the_published_number_beside_ours(tmp_path, capsys):
    path = write_result(
        tmp_path, PAPER, FINDINGS, protocol="One model.", tokens=1000, seconds=61, pictures={"a.png": Path.touch}
    )
    kept = json.loads(path.read_text())
    assert kept["findings"][0]["published"] == 0.0138
    printed = capsys.readouterr().out
    assert "0.00123 ± 0.0002" in printed
    assert "0.0138 (table 2)" in printed
    assert "more tokens" in printed
    text = (tmp_path / "result.md").read_text()
    assert "| R2 of the probe | 0.991 | - | - |" in text
    assert "| accuracy | 0.5 | 0.6 (figure 1) | no reason is known; compared are our protocol and figure 1 |" in text
    assert "![a](a.png)" in text
