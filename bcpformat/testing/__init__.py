"""What third parties need to test against this package: stores, faults, strategies."""
