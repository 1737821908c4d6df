"""Times as whole microseconds since 1970 UTC: exact, ordered, and the same in every time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from inferscale_sdk.errors import ConfigurationError

__all__ = ["from_us", "now_us", "to_us"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_us(value: datetime, what: str) -> int:
    """Microseconds since the epoch.

    Args:
        value: A time-zone aware time.
        what: Its name in error messages.

    Raises:
        ConfigurationError: The time is naive, not a time, or outside the years 1 to 9999 in UTC.
    """
    if not isinstance(value, datetime):
        raise ConfigurationError(f"{what}={value!r} is not a datetime")
    if value.utcoffset() is None:
        raise ConfigurationError(
            f"{what}={value.isoformat()} has no time zone; "
            "say which one, e.g. value.replace(tzinfo=datetime.timezone.utc)"
        )
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        raise ConfigurationError(
            f"{what}={value.isoformat()} is outside the years 1 to 9999 in UTC"
        ) from None
    return (utc - _EPOCH) // _MICROSECOND


def from_us(value: int) -> datetime:
    """The time in UTC."""
    return _EPOCH + value * _MICROSECOND


def now_us() -> int:
    """Now, in microseconds since the epoch."""
    return (datetime.now(UTC) - _EPOCH) // _MICROSECOND
