from hmm_datasets.hmm.causal_lm import HMMConfig, HMMForCausalLM  # noqa: F401
