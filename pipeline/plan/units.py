"""Bytes and durations as text."""


def bytes_text(count: float) -> str:
    """Bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Seconds as minutes, or as hours from three hours on."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 180 else f"{minutes / 60:.1f} h"
