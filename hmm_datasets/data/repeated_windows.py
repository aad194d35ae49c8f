"""Windows of a token stream over as many epochs as a run takes."""

from ..text.stream.reader import TokenStream
from .packing import PackedWindows
from .windows import TokenWindows, Windows


def repeated_windows(
    stream: TokenStream, length: int, num_rows: int, *, seed: int = 0, packed: bool = False
) -> Windows:
    """Shuffled windows of a token stream, over as many epochs as `num_rows` rows take, each in an order of its own.

    Args:
        stream ([`TokenStream`]): the tokens.
        length (`int`): tokens per window.
        num_rows (`int`): rows that will be read.
        seed (`int`, *optional*, defaults to 0): of the orders.
        packed (`bool`, *optional*, defaults to `False`): [`PackedWindows`] in place of [`TokenWindows`].
    """
    windows = (PackedWindows if packed else TokenWindows)(stream, length, seed=seed)
    windows.epochs = max(1, -(-num_rows // windows.num_windows))
    return windows
