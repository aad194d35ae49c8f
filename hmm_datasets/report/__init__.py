"""What a person looks at: tables in the terminal, plots, reports."""
