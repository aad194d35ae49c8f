"""What trainers read: the `datasets` builders, map-style views, mixtures."""
