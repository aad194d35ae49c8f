"""The source of a corpus, and how it is read."""

from dataclasses import dataclass
from typing import Literal

from .conversations import Format


@dataclass(frozen=True)
class Corpus:
    """The source of a corpus, and how it is read.

    Attributes:
        name (`str`): name for [`load_corpus`].
        path (`str`): id of a data set on the Hub, or path of a file, or of a folder with a file for each split.
        kind (`str`, *optional*): `"text"` or `"conversations"`; if None, decided by the names of the columns.
        licence (`str`): SPDX identifier, or the terms in a few words.
        config (`str`, *optional*): name of the configuration of the data set on the Hub.
        train_split (`str`), test_split (`str`, *optional*): names of the splits on the Hub.
        column (`str`, *optional*): the column with the text or the messages; if None, see [`load_corpus`].
        format (`Format`, *optional*): how rows are read, if it takes several columns; `column` is one of them.
        data_files (`str`, *optional*): file name of a split in the repository on the Hub, for data sets with a loading
            script, which `datasets` refuses to run.
        bundled (`bool`): whether the files are part of an installed package.
        documents (`int`, *optional*), tokens (`int`, *optional*): approximate size of the train split; None if
            unknown.
        test_fraction (`float`, *optional*): share held out by hash if the data set on the Hub has no test split.
    """

    name: str
    path: str
    kind: Literal["text", "conversations"] | None
    licence: str
    config: str | None = None
    train_split: str = "train"
    test_split: str | None = None
    column: str | None = "text"
    format: Format | None = None
    data_files: str | None = None
    bundled: bool = False
    documents: int | None = None
    tokens: int | None = None
    test_fraction: float | None = None
