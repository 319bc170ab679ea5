"""One block's raw bytes to stored bytes and back, and the digests of both."""
