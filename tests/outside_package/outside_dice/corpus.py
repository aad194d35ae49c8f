from pathlib import Path

from hmm_datasets.text.corpora.corpus import Corpus

FOLDER = Path(__file__).with_name("stories")
CORPUS = Corpus("dice-stories", str(FOLDER), "text", "Apache-2.0", bundled=True, documents=16)
