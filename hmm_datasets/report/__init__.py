"""Tables for the terminal, plots, and HTML reports."""
