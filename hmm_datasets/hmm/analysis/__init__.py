"""Analysis of an HMM: entropy rate, optimal loss, mixed states and baseline predictors."""
