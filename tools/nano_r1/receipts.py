"""Receipts to fields (SROIE): company, address, date and total.

The layouts come from SROIE: names of firms, line breaks in addresses, formats of dates, labels of
totals. The content is redrawn, without people's names and item lists, so that every field can be
copied exactly from the text.

    next(conversations(Path("corpus"), seed=0, count=1, part="train")).answer
"""

import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.recipes.nano_r1.tasks import DATE, RECEIPT_INSTRUCTION
from tools.nano_r1 import invented
from tools.nano_r1.conversations import Conversation, Part, corpus_rows, part_of

DATE_LABEL = re.compile(r"^(?:[A-Z. ]{0,10}DATE|DT)\s*[:.]*\s*", re.IGNORECASE)
TOTAL_LABEL = re.compile(r"^[A-Z0-9%@.,:()/& -]*TOTAL[A-Z%@.:()/& -]*$", re.IGNORECASE)
# Totals other than the amount due.
OTHER_TOTAL = re.compile(
    r"QTY|QUANTITY|ITEM|SAV|DISC|TAX|GST AMT|TOTAL GST|SUB|EXC|INCLUDED", re.IGNORECASE
)
LONGEST_LABEL = 32
MOST_ADDRESS_LINES = 3
# Share of receipts with an invented firm and address; the others have SROIE's with other digits.
INVENTED_SHARE = 0.6
FIRM_ENDINGS = [
    "SDN BHD",
    "TRADING",
    "ENTERPRISE",
    "RESTAURANT",
    "HARDWARE",
    "BOOKSTORE",
    "BAKERY",
    "MART",
    "CAFE",
]
TOWNS = [
    "JOHOR BAHRU, JOHOR",
    "KLANG, SELANGOR",
    "PETALING JAYA",
    "KUALA LUMPUR",
    "IPOH, PERAK",
    "SHAH ALAM, SELANGOR",
]
ITEMS = """PLASTIC BAG|STEEL WOOL|MINERAL WATER|WHITE BREAD|COFFEE|ICED TEA|FRIED RICE|
NOODLE SOUP|A4 PAPER|BALL PEN|GLUE STICK|LIGHT BULB|PAINT BRUSH|TISSUE|SHAMPOO|BATTERY AA|
CHICKEN RICE|FISH CURRY|CABLE 2M|LED LAMP|NOTEBOOK|SCISSORS|TAPE|SOAP|ORANGE JUICE|CAKE|SANDWICH|
CANDLE|GLOVES|SCREWS""".replace("\n", "").split("|")
THANKS = [
    "THANK YOU",
    "THANK YOU. PLEASE COME AGAIN",
    "GOODS SOLD ARE NOT RETURNABLE",
    "HAVE A NICE DAY",
]


@dataclass(frozen=True)
class Form:
    """Layout of a SROIE receipt; its lines are templates for new content."""

    company: str
    address: list[str]
    date_label: str
    date: str
    total_label: str
    date_first: bool


def conversations(
    corpus_dir: Path, seed: int, count: int | None, part: Part
) -> Iterator[Conversation]:
    """Yields `count` receipts (None: endless); each pass has new content."""
    rng = random.Random(f"receipts {seed} {part}")
    return itertools.islice(_endless(forms(corpus_dir, part), rng), count)


def _endless(rows: list[Form], rng: random.Random) -> Iterator[Conversation]:
    while True:
        for form in rng.sample(rows, len(rows)):
            yield receipt(form, rng)


def forms(corpus_dir: Path, part: Part) -> list[Form]:
    """Layouts of the part's receipts, if the text contains all fields."""
    rows = (
        row
        for row in corpus_rows(corpus_dir, "sroie_receipts.jsonl.gz")
        if part_of(row["id"]) == part
    )
    return [form for row in rows if (form := form_of(row["ocr_text"], row["fields"])) is not None]


def form_of(ocr_text: str, fields: dict[str, str]) -> Form | None:
    if any(not fields.get(key) for key in ("company", "date", "address", "total")):
        return None
    lines = [
        " ".join(line.replace('"', "'").replace("\\", "/").split())
        for line in ocr_text.splitlines()
    ]
    company = next((line for line in lines if line.startswith(fields["company"])), None)
    address = _address_lines(lines, fields["address"])
    date_at = next((at for at, line in enumerate(lines) if fields["date"] in line), None)
    total_at = next(
        (at for at, line in enumerate(lines[1:], 1) if line.endswith(fields["total"])), None
    )
    labels = [line.rstrip() for line in lines if _labels_total(line)]
    if company is None or address is None or date_at is None or total_at is None or not labels:
        return None
    if not DATE.fullmatch(fields["date"]) or len(company) > 40:
        return None
    label = DATE_LABEL.match(lines[date_at])
    return Form(
        company=company,
        address=address,
        date_label=label.group() if label else "",
        date=fields["date"],
        total_label=labels[0],
        date_first=date_at < total_at,
    )


def _labels_total(line: str) -> bool:
    return (
        bool(TOTAL_LABEL.match(line))
        and not OTHER_TOTAL.search(line)
        and len(line) <= LONGEST_LABEL
    )


def _address_lines(lines: list[str], address: str) -> list[str] | None:
    """The consecutive lines of the address, ignoring blanks and punctuation."""

    def bare(text: str) -> str:
        return re.sub(r"[^A-Z0-9]", "", text.upper())

    for start in range(len(lines)):
        for length in range(1, MOST_ADDRESS_LINES + 1):
            if bare(" ".join(lines[start : start + length])) == bare(address):
                return lines[start : start + length]
    return None


def receipt(form: Form, rng: random.Random) -> Conversation:
    company = invented.digits(rng, form.company)
    address = [invented.digits(rng, line) for line in form.address]
    if rng.random() < INVENTED_SHARE:
        first = invented.word(rng).upper()
        second = invented.word(rng).upper()
        company = f"{first} {rng.choice(['', second + ' '])}{rng.choice(FIRM_ENDINGS)}"
    if rng.random() < INVENTED_SHARE:
        address = new_address(rng)[rng.choice([0, 0, 1]) :]
    date = new_date(form.date, rng)
    date_line = f"{form.date_label}{date}" + rng.choice(
        ["", f" {rng.randint(8, 21):02}:{rng.randint(0, 59):02}"]
    )
    items = []
    cents = 0
    for name in rng.sample(ITEMS, rng.randint(1, 3)):
        price = rng.randint(10, 400) * 10
        items.append(f"{name} {price / 100:.2f}")
        cents += price
    total = f"{cents / 100:.2f}"
    cash = rng.choice([note for note in (10, 20, 50, 100, 200) if note * 100 >= cents])
    total_lines = [form.total_label, rng.choice(["", "RM "]) + total]
    lines = [company, *address, f"TEL: {invented.digits(rng, '03-8888 8888')}"]
    lines += [date_line, *items, *total_lines] if form.date_first else [*items, *total_lines]
    lines += [f"CASH {cash}.00", f"CHANGE {(cash * 100 - cents) / 100:.2f}"]
    lines += [rng.choice(THANKS)] if form.date_first else [date_line, rng.choice(THANKS)]
    fields = {"company": company, "address": " ".join(address), "date": date, "total": total}
    reasoning = [
        f'Company: the first line is "{company}".',
        "Address: the lines below are " + ", then ".join(f'"{line}"' for line in address) + ".",
        f'Date: the line "{date_line}" has the date {date}.',
        f'Total: below "{form.total_label}" stands {total}.',
    ]
    messages = [{"role": "user", "content": "\n".join([RECEIPT_INSTRUCTION, "", *lines])}]
    return Conversation(
        work="receipts",
        messages=messages,
        reasoning="\n".join(reasoning),
        answer=json.dumps(fields, ensure_ascii=False),
        route="document-extraction",
    )


def new_address(rng: random.Random) -> list[str]:
    """Three lines: street, quarter, town."""
    number = rng.randint(1, 99)
    street = invented.word(rng).upper()
    section = f"{rng.randint(1, 9)}/{rng.randint(1, 9)}"
    quarter = invented.word(rng).upper()
    town = f"{rng.randint(10000, 99999)} {rng.choice(TOWNS)}"
    return [f"NO. {number}, JALAN {street} {section},", f"TAMAN {quarter},", town]


def new_date(date: str, rng: random.Random) -> str:
    """Another date in the format of `date`."""
    match = DATE.fullmatch(date)
    assert match is not None, date
    first, mark, second, year = match.groups()
    day = rng.randint(1, 28)
    month = rng.randint(1, 12)
    wide = len(first) == 2
    new_year = rng.randint(2012, 2029)
    fill = "02d" if wide else "d"
    month_fill = "02d" if len(second) == 2 else "d"
    shown_year = new_year if len(year) == 4 else new_year % 100
    return f"{day:{fill}}{mark}{month:{month_fill}}{mark}{shown_year:02}"
