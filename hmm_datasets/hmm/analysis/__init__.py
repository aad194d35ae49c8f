"""What can be known of an HMM without drawing from it: entropy rate, optimal loss, mixed states, predictors."""
