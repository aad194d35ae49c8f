"""From text to tokens: byte-level BPE, tokenizers of others, words for HMMs, chat templates, compression."""
