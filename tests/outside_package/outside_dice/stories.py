from hmm_datasets.text.corpora.corpus import Corpus


def stories(split, test_fraction=None):
    for number in range(20):
        if (number % 5 == 0) == (split == "test"):
            yield {"text": f"The die showed {number % 6 + 1}, throw {number}."}


CORPUS = Corpus("dice-stories", "dice-stories", "text", "Apache-2.0", documents=16, test_fraction=0.2, compute=stories)
