"""Fine-tuning, DPO and GRPO."""
