"""The few names most people use."""
