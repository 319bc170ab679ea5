"""Every rule applied to a checkpoint, every problem returned."""

from bcpformat.validation.report import Level, Report, validate_store

__all__ = ["Level", "Report", "validate_store"]
