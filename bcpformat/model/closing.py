"""What is closed at the end of a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager that closes itself at the end of its block.

    Example:
        >>> class File(Closing):
        ...     def close(self) -> None:
        ...         print("closed")
        >>> with File():
        ...     print("open")
        open
        closed
    """

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held; once more does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
