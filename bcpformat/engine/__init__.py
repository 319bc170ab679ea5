"""Threads, buffers, encoding, writing, reading and commit: everything that acts."""
