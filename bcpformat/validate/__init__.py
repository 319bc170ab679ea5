"""Every rule applied to a checkpoint, every problem returned."""

from bcpformat.validate.report import Level, Report, validate_store

__all__ = ["Level", "Report", "validate_store"]
