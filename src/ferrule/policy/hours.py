"""Hours of the week, such as `Mon-Fri 09:00-17:00 Europe/Berlin`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from ferrule.errors import DefinitionError

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = f"(?:{'|'.join(_DAYS)})"
_FORM = re.compile(
    rf"(?:(?P<days>{_DAY}(?:[-,]{_DAY})*)(?:\s+|$))?"
    r"(?:(?P<start>\d{2}:\d{2})-(?P<end>\d{2}:\d{2})(?:\s+|$))?(?P<zone>[A-Za-z][\w+/-]*)?",
    re.ASCII | re.IGNORECASE,
)
_EXAMPLE = '"Mon-Fri 09:00-17:00 Europe/Berlin"'
_MINUTES_OF_DAY = 1440


@dataclass(frozen=True, slots=True)
class Hours:
    """Days and times of the week, in UTC unless the text names a zone.

    Times that end before they begin last until the next day: `Fri 22:00-06:00` ends on Saturday.

    Attributes:
        text: The hours as written.

    Raises:
        DefinitionError: The text has another form.
    """

    text: str
    _days: frozenset[int] = field(init=False, repr=False, compare=False)
    _times: tuple[int, int] = field(init=False, repr=False, compare=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = _FORM.fullmatch(self.text.strip())
        if found is None or not (found["days"] or found["start"]):
            raise DefinitionError(f"{self.text!r} are no hours: write {_EXAMPLE}")
        times = (0, _MINUTES_OF_DAY)
        if found["start"]:
            times = self._read_time(found["start"]), self._read_time(found["end"])
            if times[0] == times[1] or times[0] == _MINUTES_OF_DAY:
                raise DefinitionError(f"{self.text!r} never begins or never ends: write {_EXAMPLE}")
        object.__setattr__(self, "_days", _read_days(found["days"]))
        object.__setattr__(self, "_times", times)
        object.__setattr__(self, "_zone", _find_zone(found["zone"]))

    def contains(self, moment: float) -> bool:
        """Return whether these seconds since the epoch are within the hours."""
        local = datetime.fromtimestamp(moment, self._zone)
        minute, (start, end) = local.hour * 60 + local.minute, self._times
        if start < end:
            return local.weekday() in self._days and start <= minute < end
        is_after_midnight = minute < end
        began = (local - timedelta(days=1)) if is_after_midnight else local
        return began.weekday() in self._days and (is_after_midnight or minute >= start)

    def _read_time(self, text: str) -> int:
        hours, minutes = map(int, text.split(":"))
        if minutes > 59 or hours * 60 + minutes > _MINUTES_OF_DAY:
            raise DefinitionError(f"{self.text!r} has no time {text}: times are 00:00 to 24:00")
        return hours * 60 + minutes


def _read_days(text: str | None) -> frozenset[int]:
    days: set[int] = set()
    for part in (text or "mon-sun").lower().split(","):
        names = part.split("-")
        if len(names) > 2:
            raise DefinitionError(f"{text!r} are no days: write Mon-Fri or Mon,Wed")
        first, last = _DAYS.index(names[0]), _DAYS.index(names[-1])
        days.update((first + number) % 7 for number in range((last - first) % 7 + 1))
    return frozenset(days)


def _find_zone(name: str | None) -> tzinfo:
    if name is None or name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise DefinitionError(f"{name!r} is no known time zone: write a name such as Europe/Berlin, or UTC") from None
