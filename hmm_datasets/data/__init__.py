"""What trainers read: the `datasets` builder, map-style views, mixtures."""
