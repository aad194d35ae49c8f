"""What is pushed to the Hub, by its kind."""
