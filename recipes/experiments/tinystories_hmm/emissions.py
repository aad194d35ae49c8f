"""A picture of how the emissions of states change over the epochs of a fit.

    python recipes/experiments/tinystories_hmm/emissions.py --fit outputs/hmm --states 1 2 3

It shows the symbols that each state emits most, from the checkpoints that the fit wrote.
"""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.setting_rules import NumberRange, check_object
from hmm_datasets.runtime.settings import setting

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float


@dataclass
class EmissionsSettings:
    """The fit to draw."""

    fit: str = setting(MISSING, "Output folder of `hmm-datasets fit` with checkpoints.")
    states: list[int] | None = setting(None, "States to draw; by default the most visited three.")
    num_symbols: int = setting(20, "Symbols to draw of each state.")
    output: str | None = setting(None, "The picture, a .png; by default plots/emissions.png in the folder of the fit.")

    number_ranges: ClassVar = {"num_symbols": NumberRange(1)}

    def __post_init__(self):
        check_object(self)


def main(settings: EmissionsSettings) -> None:
    """Read the checkpoints of the fit and draw."""
    import numpy as np

    from hmm_datasets import HMM
    from hmm_datasets.hmm.fitting.state import checkpoints

    folder = Path(settings.fit)
    saved = checkpoints(folder) or checkpoints(folder / "fit")
    if not saved:
        raise InputError(f"{folder}: has no checkpoints epoch-N of a fit; give the output folder of hmm-datasets fit")
    hmms = [HMM.from_pretrained(path / "hmm") for _, path in saved]
    states = settings.states or np.argsort(-hmms[-1].stationary(), kind="stable")[:3].tolist()
    for state in states:
        if not 0 <= state < hmms[-1].num_states:
            raise InputError(f"--states {state}: expected 0 to {hmms[-1].num_states - 1}")
    output = folder / "plots" / "emissions.png" if settings.output is None else Path(settings.output)
    draw_emissions(
        np.stack([hmm.emission for hmm in hmms]),
        [epoch for epoch, _ in saved],
        states,
        output,
        title=f"Emissions of an HMM of {hmms[-1].num_states} states over the epochs of its fit",
        names=hmms[-1].vocabulary,
        num_symbols=settings.num_symbols,
    )
    print(output)


def draw_emissions(
    tables: "Float[np.ndarray, 'K H E']",
    epochs: Sequence[int],
    states: Sequence[int],
    path: Path,
    *,
    title: str,
    names: Sequence[str] | None = None,
    num_symbols: int = 20,
) -> None:
    """Plot how the emissions of some states change over the epochs of a fit: a heat map for each state.

    Rows are the symbols that a state emits most in any of the epochs, in the order of the last one.

    Args:
        tables (`np.ndarray` of shape `(K, H, E)`): the emission table after each of `epochs`.
        epochs (sequence of `int`): numbers of the epochs, ascending.
        states (sequence of `int`): the states to show.
        path (path): where the PNG goes; a PDF is written next to it.
        title (`str`): title of the plot.
        names (sequence of `str`, *optional*): names of the symbols.
        num_symbols (`int`, *optional*, defaults to 20): number of rows for each state.
    """
    import numpy as np
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    from hmm_datasets.report.plots import save_figure

    size = min(num_symbols, tables.shape[2])
    figure = Figure(figsize=(1.2 + 3.1 * len(states), 1.6 + 0.17 * size), layout="constrained")
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    for axes, state in zip(np.atleast_1d(figure.subplots(1, len(states))), states, strict=True):
        emitted = tables[:, state].T
        kept = np.argsort(-emitted.max(1), kind="stable")[:size]
        kept = kept[np.argsort(-emitted[kept, -1], kind="stable")]
        edges = np.append(np.asarray(epochs, float), epochs[-1] + 1) - 0.5
        image = axes.pcolormesh(edges, np.arange(size + 1) - 0.5, emitted[kept], norm=norm, cmap="cividis")
        labels = [str(symbol) if names is None else names[symbol] for symbol in kept]
        axes.set_yticks(range(size), labels, fontsize=7)
        axes.invert_yaxis()
        axes.set(title=f"state {state}", xlabel="epochs")
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    figure.colorbar(image, ax=figure.axes, label="probability", shrink=0.8, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1])
    save_figure(figure, path)


if __name__ == "__main__":
    run(main)
