"""Telephone numbers: possible ones by shape, then checked against the national plans.

A number is evident by its shape if it begins with + or 00 and a country, or is grouped like numbers
of one country and nothing else: (212) 555-0123, 06 12 34 56 78, 8 (912) 345-67-89. Other
numbers need a word such as "phone" before them; ten digits alone are usually an order number.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import phonenumbers

from outrider.common.errors import OutriderError

POSSIBLE = re.compile(r"(?<![\dA-Za-z])(?:\+[ ]?)?\(?\d(?:[ \t().\-/]{0,3}\d){6,16}(?!\d)")

_DIALLED = re.compile(r"00[ ]?[1-9]\d{0,2}[ .\-/(]")
"""00 (ITU-T E.123), a country and a separator; bar codes begin with 00, too."""

_NATIONAL = re.compile(
    r"\([2-9]\d{2}\)[ ]?[2-9]\d{2}[ .-]\d{4}"  # North America
    r"|[2-9]\d{2}([ .-])[2-9]\d{2}\1\d{4}"
    r"|\(0\d{1,4}\)[ /-]?\d{2,}"  # an area code in brackets
    r"|\(?[1-9]\d\)?[ ]?(?:9\d{4}|(?<=\)[ ])[2-5]\d{3})-\d{4}"  # Brazil
    r"|0\d{1,4}(?:(?:[ ./-]|[ ]/[ ])\d{2,4}){2,5}"  # 0 before the area: Europe, Japan, Australia
    r"|0\d{1,3}/\d{5,8}|0\d{1,4}\(\d{1,4}\)\d{4}"  # Italy; Japan
    r"|0(?:15\d{2}|1[67]\d)[ /-]{1,3}\d{7,8}|0[2-9]\d{1,3}[ /-]\d{5,8}|06[ -]\d{8}"  # Germany; NL
    r"|0\d{2,3}-\d{7,8}|1[3-9]\d([ -])\d{4}\2\d{4}"  # China
    r"|[67]\d{2}(?:[ ]\d{2}){3}"  # Spain
    r"|8[ -]?\(\d{3}\)[ ]?\d{3}[ -]?\d{2}[ -]?\d{2}|8([ -])\d{3}\3\d{3}([ -])\d{2}\4\d{2}"  # Russia
)
"""National shapes that neither amounts, dates nor order numbers have."""

_FIGURES = re.compile(r"\d\d(?: \d\d){5,}|0\d? \d{3} \d{3}")
"""Numbers of a lottery, and an amount with a leading 0."""

_DATE = re.compile(
    r"(?:19|20)\d{2}[-./ ]?(?:0[1-9]|1[0-2])[-./ ]?(?:0[1-9]|[12]\d|3[01])"
    r"|\d{1,2}([-./])\d{1,2}\1(?:19|20)?\d{2}(?!\1?\d)"
)

LONGEST_NATIONAL = 13
"""Digits of a number with its prefix, such as 0 or 8, or its country."""

TRIES = 4
"""Parts of a row of digits that are tried as a number, instead of 65,535."""

EXTENSION = 14
"""Characters after a number in which an extension may follow."""

_EXTENSION = re.compile(r"[ ]?(?:转|轉|分机|分機|内線|доб\.?)[ ]?\d{1,6}(?!\d)")
"""Extensions in languages of which phonenumbers knows no word."""

_OLD_MEXICAN = re.compile(r"(?<=\+52)([ ]?)1(?=[ ]?\d{2})")
"""The 1 of Mexican mobile numbers from abroad, which was abolished in 2020 and is still written."""

SURE_DIGITS = 10
"""Digits after + from which a number of a possible length counts, whether its block is assigned or
not: blocks for films and new ones are in no plan (Ofcom's 07700 900, ARCEP's 06 39 98)."""


def known_regions(regions: list[str]) -> tuple[str, ...]:
    """Returns `privacy.phone_regions`, or raises an `OutriderError` if one is unknown."""
    unknown = sorted(set(regions) - set(phonenumbers.SUPPORTED_REGIONS))
    if unknown:
        raise OutriderError(
            f"privacy.phone_regions: unknown {', '.join(unknown)}; use ISO 3166 codes in "
            "capitals, such as US, GB, DE, CN"
        )
    return tuple(regions)


def phone_numbers(
    text: str, regions: tuple[str, ...], is_named: Callable[[int], bool]
) -> Iterator[tuple[int, int]]:
    """Yields where telephone numbers are.

    `is_named` returns whether the words before a position name a telephone number.
    """
    for possible in POSSIBLE.finditer(text):
        number = possible[0]
        is_evident = number.startswith("+") or _DIALLED.match(number)
        if not is_evident and _DATE.match(number):
            continue
        if is_named(possible.start()) or (
            _NATIONAL.match(number) and not _FIGURES.fullmatch(number)
        ):
            yield from _numbers_of(text, possible, regions)
        elif is_evident:
            yield from _numbers_of(text, possible, ())


def _numbers_of(
    text: str, possible: re.Match[str], regions: tuple[str, ...]
) -> Iterator[tuple[int, int]]:
    """Yields the valid numbers in a possible one, by the region that reads most of it."""
    first = max(possible.start() - 2, 0)
    window = text[first : possible.end() + EXTENSION]
    digits = "".join(filter(str.isdigit, possible[0]))
    readings = [(window, region) for region in regions if _may_begin(region, digits)]
    if possible[0].startswith("+"):
        # Valid in every region or in none; ZZ is no region
        readings = [(_OLD_MEXICAN.sub(r"\1 ", window), "ZZ")]
    elif possible[0].startswith("00"):
        before = text[first : possible.start()]
        # Of the same length, so that positions stay.
        readings.insert(0, (f"{before} +{window[len(before) + 2 :]}", "ZZ"))
    most: list[tuple[int, int]] = []
    for reading, region in readings:
        is_sure = region == "ZZ" and len(digits.removeprefix("00")) >= SURE_DIGITS
        leniency = phonenumbers.Leniency.POSSIBLE if is_sure else phonenumbers.Leniency.VALID
        spans = list(_valid_numbers(reading, region, possible.end() - first, leniency))
        if reading is not window and spans:  # 00 belongs to the number
            spans[0] = (possible.start() - first, spans[0][1])
        most = max(most, spans, key=lambda some: sum(right - left for left, right in some))
        start = possible.start() - first + possible[0].startswith("(")
        if most and most[0][0] <= start and most[-1][1] >= possible.end() - first:
            break
    for left, right in most:
        # A bracket around the whole number is no part of it.
        is_open = window[left] == "(" and ")" not in window[left:right]
        extension = _EXTENSION.match(window, right)
        yield first + left + is_open, first + (extension.end() if extension else right)


def _may_begin(region: str, digits: str) -> bool:
    """Whether a number of the region may begin with these digits or fewer.

    phonenumbers' matcher takes 0.3 ms for each region; this check takes 2 us.
    """
    pattern, country = _national_number(region)
    starts = (digits, digits[1:], digits.removeprefix(country), digits.removeprefix(f"00{country}"))
    if len(digits) > LONGEST_NATIONAL:  # several numbers
        return any(map(pattern.match, starts))
    return any(map(pattern.fullmatch, starts))


@cache
def _national_number(region: str) -> tuple[re.Pattern[str], str]:
    metadata: Any = phonenumbers.PhoneMetadata.metadata_for_region(region)
    pattern = metadata.general_desc.national_number_pattern
    return re.compile(pattern), str(metadata.country_code)


def _valid_numbers(window: str, region: str, end: int, leniency: int) -> Iterator[tuple[int, int]]:
    """Yields the numbers of a region that begin before `end`."""
    matcher = phonenumbers.PhoneNumberMatcher(window, region, leniency=leniency, max_tries=TRIES)
    for match in matcher:
        if match.start < end:
            yield match.start, match.end
