"""One file, measured speed, a server."""
