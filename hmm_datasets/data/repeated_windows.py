"""Windows of a token stream over as many epochs as a run needs."""

from ..text.stream.reader import TokenStream
from .packing import PackedWindows
from .windows import TokenWindows, Windows


def repeated_windows(
    stream: TokenStream, length: int, num_rows: int, *, seed: int = 0, packed: bool = False
) -> Windows:
    """Shuffled windows of a token stream, over as many epochs as are needed for `num_rows` rows.

    Args:
        stream ([`TokenStream`]): the tokens.
        length (`int`): tokens per window.
        num_rows (`int`): number of rows that will be read.
        seed (`int`, *optional*, defaults to 0): seed of the order, which differs from epoch to epoch.
        packed (`bool`, *optional*, defaults to `False`): return [`PackedWindows`] instead of [`TokenWindows`].
    """
    windows = (PackedWindows if packed else TokenWindows)(stream, length, seed=seed)
    windows.epochs = max(1, -(-num_rows // windows.num_windows))
    return windows
