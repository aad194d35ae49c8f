"""What the README says runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


PROGRAMS = {
    section.partition("\n")[0]: "".join(re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL))
    for section in README.split("\n## ")
}


@pytest.mark.parametrize("section", [section for section, program in PROGRAMS.items() if program])
def test_python_in_a_section_of_the_readme_runs(section, tmp_path):
    command = [sys.executable, "-c", PROGRAMS[section]]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_files_and_flags_the_readme_names_exist():
    for name in re.findall(r"(?:recipes|accelerate_configs|ds_configs|hmm_datasets)/[\w/]+\.\w+", README):
        assert (ROOT / name).exists(), name
    for command in re.findall(
        r"recipes/(\w+)\.py (.*?)(?=\n\n|\n#|\naccelerate|\npython|\n```)", README, flags=re.DOTALL
    ):
        recipe, arguments = command
        library = ["hmm/fitting/settings", "evaluation/evaluation"]
        library += ["training/settings", "training/sources", "training/models"]
        files = f"recipes/{recipe}.py", *(f"hmm_datasets/{name}.py" for name in library)
        source = "".join((ROOT / file).read_text() for file in files)
        for flag in re.findall(r"--(\w+)", arguments):
            inherited = {"output_dir", "per_device_train_batch_size"}
            assert flag in inherited or re.search(rf"^    {flag}: ", source, flags=re.MULTILINE), (recipe, flag)
