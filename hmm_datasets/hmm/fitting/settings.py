"""Settings of a fit. The module imports nothing slow, because the command line makes its flags from these settings."""

from dataclasses import MISSING, dataclass, fields
from typing import ClassVar

from ...errors import InputError, suggestion
from ...runtime.setting_rules import NumberRange, Void, check_object, ranges_of
from ...runtime.settings import members, setting
from ..integers import finite_number, integer

TABLES = ("start", "transition", "emission")
CHOICES = {
    "dtype": ("float32", "float64"),
    "update_rule": ("stochastic", "replace"),
}


@dataclass(frozen=True)
class FitSettings:
    """Settings of [`fit_hmm`]. The `help` text of each field describes it; recipes and the command line show the same.

    Raises:
        `InputError`: a value is out of its range, or settings contradict each other.

    ```python
    >>> FitSettings(num_states=50, emission_pseudocount=0.1).pseudocounts
    {'start': 0.01, 'transition': 0.01, 'emission': 0.1}

    ```
    """

    num_states: int = setting(MISSING, "Number of hidden states.")
    max_epochs: int = setting(100, "Maximum number of passes over the data.")
    tolerance: float = setting(
        1e-5, "Stop when what is left to gain, as gains of the last epochs predict it, is less (nats per token)."
    )
    patience: int = setting(5, "With held-out data, stop after this many epochs without improvement on them.")
    pseudocount: float = setting(1e-2, "Added to every expected count; it is the prior Dirichlet(1 + pseudocount).")
    emission_pseudocount: float | None = setting(None, "The same for the emissions alone; pseudocount by default.")
    fixed: list[str] = setting([], "Tables of initial that are not updated: start, transition, emission.")
    update_every: int | None = setting(
        None, "Batches per update of the tables (stochastic EM); by default one update per epoch."
    )
    update_rule: str = setting(
        "stochastic",
        "Updates of the tables: stochastic, which averages over them (stochastic EM), or replace, which forgets all "
        "batches before the last ones and does not converge.",
    )
    batch_size: int | None = setting(None, "Sequences per batch on a thread or GPU; by default chosen by their size.")
    dtype: str = setting("float32", "Floating-point type of the recursions; sums over batches are always float64.")
    num_restarts: int = setting(1, "Number of random first guesses; the most likely after restart_epochs is kept.")
    restart_epochs: int = setting(5, "Number of epochs that each of num_restarts first guesses is fitted for.")
    seed: int = setting(0, "Seed of the initial tables and of the order of sequences in stochastic EM.")
    save_every: int = setting(10, "Epochs between checkpoints.")

    number_ranges: ClassVar = {
        "num_states patience update_every batch_size num_restarts restart_epochs save_every": NumberRange(1),
    }
    voids = (
        Void("update_rule", "without update_every"),
        Void("restart_epochs", "if num_restarts is 1"),
    )

    def __post_init__(self):
        ranges = ranges_of([FitSettings])
        for field in fields(FitSettings):
            value, kinds, name = getattr(self, field.name), members(field.type), field.name
            if value is not None or field.default is not None:
                if int in kinds:
                    object.__setattr__(self, name, integer(name, value, int(ranges[name].least), 63))
                elif float in kinds:
                    object.__setattr__(self, name, finite_number(name, value, 0))
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"{name} is {getattr(self, name)!r}; expected {' or '.join(choices)}")
        self._check_fixed()
        check_object(self)

    def _check_fixed(self) -> None:
        names = [self.fixed] if isinstance(self.fixed, str) else list(self.fixed)
        for name in names:
            if name not in TABLES:
                hint = suggestion(str(name), TABLES) or f"; expected {', '.join(TABLES)}"
                raise InputError(f"fixed has {name!r}, which is no table{hint}")
        object.__setattr__(self, "fixed", [name for name in TABLES if name in names])
        if len(self.fixed) == len(TABLES):
            raise InputError("fixed names all three tables; expected two at most, so that there is one to fit")

    @property
    def pseudocounts(self) -> dict[str, float]:
        """The pseudocount of each table, 0 for those that are fixed."""
        emission = self.pseudocount if self.emission_pseudocount is None else self.emission_pseudocount
        counts = {"start": self.pseudocount, "transition": self.pseudocount, "emission": emission}
        return counts | dict.fromkeys(self.fixed, 0.0)
