"""From text to tokens: byte-level BPE, imported tokenizers, words for HMMs, chat templates."""
