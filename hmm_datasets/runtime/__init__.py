"""One process of this package and its folder: lock, heartbeat, stop requests, child processes, launch environment."""
