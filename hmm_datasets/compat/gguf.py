"""The reader of GGUF files of the package `gguf`, behind one check of sizes.

`GGUFReader` believes the counts and lengths of a file. Past the end of a damaged one it reads nothing, as
often as a count says. It also makes arrays for every token of a vocabulary: minutes, and a gigabyte, for what
the weights are read for again. Checked against 0.19. This can be removed once the reader compares sizes with the file
and reads arrays when they are asked for.
"""

import struct
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType
from gguf import LlamaFileType as LlamaFileType

_LENGTH = struct.Struct("<Q")


class GGUFHeaderReader(GGUFReader):
    """The fields of a whole GGUF file, apart from the content of arrays, and its tensors.

    Raises:
        `Exception`: of any type, if the file is none, or ends before what it announces.
    """

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise EOFError(f"expected at least {end:,} bytes, found {len(self.data):,}")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list, list[int], list]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count = int(self._get(orig_offs, np.uint32)[0]), int(self._get(orig_offs + 4, np.uint64)[0])
        content: Any = self.data
        end = orig_offs + 12
        if kind == GGUFValueType.STRING:
            for _ in range(count):  # of which a vocabulary has hundreds of thousands
                end += 8 + _LENGTH.unpack_from(content, end)[0]
        else:
            end += count * np.dtype(self.gguf_scalar_to_np[GGUFValueType(kind)]).itemsize
        self._get(end, np.uint8, 0)
        return end - orig_offs, [], [], [GGUFValueType.ARRAY]
