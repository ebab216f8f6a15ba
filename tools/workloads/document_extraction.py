"""Document extraction: SROIE's receipts to JSON, under eight schemas and many wordings.

    sessions(Path("corpus"))[0].turns[0].response_format

A session is a receipt, so no receipt is both trained on and held out; receipts with the same text
are one. Its two requests differ in their fields. Each client has its frame of instruction and
receipt, and its two formats.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.nano_r1.conversations import corpus_rows
from tools.workloads.sessions import Message, Session, Turn

CLIENTS = 60

Schema = dict[str, Any]


def text(most: int) -> Schema:
    """A string; without a maximum, a small model may repeat itself up to the limit of tokens."""
    return {"type": "string", "maxLength": most}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def record(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def array(items: Schema, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


@dataclass(frozen=True)
class Format:
    """A schema, and instructions that name its fields."""

    schema: Schema
    instructions: tuple[str, ...]


NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
FORMATS = {
    "fields": Format(
        record(company=text(60), date=text(12), address=text(120), total=text(12)),
        (
            "Give the company, the date, the address and the total of this receipt as JSON.",
            "Extract company, date, address and total. Copy them exactly as they are printed.",
        ),
    ),
    "payment": Format(
        record(
            merchant=record(name=text(60), address=text(120)),
            payment=record(total=NUMBER, currency=one_of("MYR", "USD", "SGD"), date=text(12)),
        ),
        (
            "Return JSON with the merchant (name, address) and the payment (total, currency, "
            "date).",
            "Who was paid, how much, in which currency and when? Answer as JSON with merchant and "
            "payment.",
        ),
    ),
    "items": Format(
        record(items=array(record(description=text(50), amount=text(12)), 6), total=text(12)),
        (
            "List the items that were bought, each with its description and amount, and the "
            "total, as JSON.",
            "Turn the line items of this receipt into JSON: items with description and amount, "
            "then total.",
        ),
    ),
    "expense": Format(
        record(
            category=one_of("meals", "groceries", "stationery", "hardware", "travel", "other"),
            vendor=text(60),
            date=text(12),
            amount=NUMBER,
            justification=text(160),
        ),
        (
            "Write an expense entry as JSON: category, vendor, date, amount, and a justification "
            "in one sentence.",
            "Book this receipt. The JSON has category, vendor, date, amount and a short "
            "justification.",
        ),
    ),
    "tax": Format(
        record(
            invoice_number=text(24),
            gst_id=text(20),
            net=text(12),
            tax=text(12),
            gross=text(12),
        ),
        (
            "For the tax return, give invoice_number, gst_id, net, tax and gross as JSON. Leave a "
            "field empty if the receipt does not have it.",
            "Find the invoice number, the GST number, and the net, tax and gross amounts. Answer "
            "with a JSON object.",
        ),
    ),
    "summary": Format(
        record(company=text(60), summary=text(240), refundable=BOOLEAN),
        (
            "Summarize the purchase in one or two sentences and say whether goods can be "
            "returned. JSON with company, summary and refundable.",
            "JSON please: company, summary (what was bought, where and for how much), refundable.",
        ),
    ),
    "contact": Format(
        record(name=text(60), address_lines=array(text(60), 4), phone=text(20)),
        (
            "We need the shop's contact details as JSON: name, address_lines and phone.",
            "Give the name of the shop, the lines of its address and its telephone number as JSON.",
        ),
    ),
    "audit": Format(
        record(
            total=record(value=text(12), line=text(60)),
            date=record(value=text(12), line=text(60)),
            company=record(value=text(60), line=text(60)),
        ),
        (
            "Give total, date and company as JSON. For each, give the value and the line of the "
            "receipt that it is from.",
            "Audit this receipt: total, date and company, each with its value and, as evidence, "
            "the line where you read it.",
        ),
    ),
}


def _instruction_first(instruction: str, receipt: str) -> tuple[Message, ...]:
    return (Message("user", f"{instruction}\n\n{receipt}"),)


def _receipt_first(instruction: str, receipt: str) -> tuple[Message, ...]:
    return (Message("user", f"{receipt}\n\n{instruction}"),)


def _fenced(instruction: str, receipt: str) -> tuple[Message, ...]:
    return (Message("user", f"{instruction}\n\n```\n{receipt}\n```"),)


def _tagged(instruction: str, receipt: str) -> tuple[Message, ...]:
    return (Message("user", f"<receipt>\n{receipt}\n</receipt>\n{instruction}"),)


def _as_system(instruction: str, receipt: str) -> tuple[Message, ...]:
    return (Message("system", instruction), Message("user", receipt))


def _bookkeeper(instruction: str, receipt: str) -> tuple[Message, ...]:
    role = "You are a bookkeeper who reads scanned receipts and answers only with JSON."
    return (Message("system", role), Message("user", f"Scan:\n{receipt}\n\n{instruction}"))


FRAMES = [_instruction_first, _receipt_first, _fenced, _tagged, _as_system, _bookkeeper]


def sessions(corpus: Path) -> list[Session]:
    """All receipts in random order, each from a client and with the client's two formats."""
    rng = random.Random("document extraction")
    clients = [(rng.choice(FRAMES), rng.sample(sorted(FORMATS), 2)) for _ in range(CLIENTS)]
    rows = corpus_rows(corpus, "sroie_receipts.jsonl.gz")
    receipts = list(dict.fromkeys(row["ocr_text"] for row in rows))
    rng.shuffle(receipts)
    chosen = []
    for receipt in receipts:
        client = rng.randrange(CLIENTS)
        frame, formats = clients[client]
        turns = []
        for name in formats:
            instruction = rng.choice(FORMATS[name].instructions)
            turns.append(Turn(frame(instruction, receipt), response_format(name)))
        chosen.append(Session(f"client-{client:02d}", tuple(turns)))
    return chosen


def response_format(name: str) -> dict[str, Any]:
    """OpenAI's `response_format` of one of `FORMATS`."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": FORMATS[name].schema}}
