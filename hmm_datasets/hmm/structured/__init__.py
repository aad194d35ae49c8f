"""Processes whose hidden state has parts: factors, durations, inputs, or visible states."""
