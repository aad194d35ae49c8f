"""Training data that do not exist yet, for the plan of a run: their vocabulary is assumed, their rows are full."""

from ...errors import InputError
from ..sources import DataSettings, MixtureSettings, TrainingData


class AssumedData(TrainingData):
    """Rows of the length that the settings choose, without the HMM or the token streams that they name.

    Args:
        settings ([`~hmm_datasets.training.sources.DataSettings`] or `MixtureSettings`): the settings of the data.
        vocab_size (`int`): `V`, number of tokens of the tokenizer or symbols of the HMM.

    Raises:
        `InputError`: a vocabulary size below 1.
    """

    rows_per_epoch = None

    def __init__(self, settings: DataSettings | MixtureSettings, vocab_size: int):
        if vocab_size < 1:
            raise InputError(f"assumed_vocab_size is {vocab_size}; expected 1 or more")
        self.identity = {}
        symbols = getattr(settings, "hmm", None) is not None
        self.vocab_size = vocab_size + symbols  # a beginning token stands before the symbols of an HMM
        self.row_length = settings.length + symbols
        self.packed = bool(getattr(settings, "packed", False) or getattr(settings, "packed_streams", ()))

    def rows(self, num_rows):
        raise InputError("the rows of assumed data cannot be read; they are for plans alone")
