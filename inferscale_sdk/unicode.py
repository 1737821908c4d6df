"""Text that can be written down: strings without lone surrogates.

Python lets half of a UTF-16 pair stand in a string, as badly decoded input has it. No database,
tokenizer or server takes it, and each refuses it in its own words; it is refused here instead,
where it comes in.
"""

from __future__ import annotations

from inferscale_sdk.errors import ConfigurationError, InferScaleError

__all__ = ["require_unicode"]


def require_unicode(text: str, what: str, error: type[InferScaleError] = ConfigurationError) -> str:
    """``text`` itself, if it is Unicode text.

    Args:
        text: What a caller gave.
        what: Its name in the error message.
        error: The kind of error.

    Raises:
        InferScaleError: Of the kind ``error``, if it holds a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        raise error(
            f"{what} holds the lone surrogate U+{ord(text[fault.start]):04X} at character "
            f"{fault.start}; decode the text properly or replace it"
        ) from None
    return text
