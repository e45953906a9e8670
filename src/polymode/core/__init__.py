"""What has no subject of its own: random streams, registries, memory, files, text, checks."""
