"""Checks answers, task by task, using only the rendered prompt.

The correct answers for résumés, orders and receipts are computed from the prompt. A bank reply is
only checked for consistency, because only the corpus contains the correct intent. An arithmetic
problem has no check, because its prompt does not contain the answer.

    resume_correct(prompt_text, completion_text)
"""

import json
import re

EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
END_THINK = "</think>"

DEGREES = ["Associate", "Bachelor", "Master", "Doctorate"]
SKILL_WORDINGS = [
    "{skill}, at least {years} years",
    "{years}+ years of {skill}",
    "{skill}: {years} years or more",
]

RECEIPT_INSTRUCTION = "Read the receipt and give its company, address, date and total as JSON."
DATE = re.compile(r"(\d{1,2})([/. -])(\d{1,2})\2(\d{4}|\d{2})(?!\d)")

CAFE_SYSTEM = (
    "You take orders at a coffee bar. Read the order back; send it when the customer confirms."
)
CONFIRMATION = re.compile(
    r"^(yes|yep|yeah|correct|sure|ok|okay|that's right|looks good)\b", re.IGNORECASE
)
ADVICE = [
    "Open the app, choose Help, and then {topic}; the steps are shown there.",
    "I have opened a case about {topic}; a colleague writes to you within one day.",
    "You find what to do about {topic} in the app, under Help.",
    "Please send us your account number, and we look into {topic} at once.",
]


def text_after_reasoning(completion_text: str) -> str:
    """Returns the text after the reasoning; without reasoning, all of the text."""
    return completion_text.rsplit(END_THINK, 1)[-1].replace(EOS, "").strip()


def user_turns(prompt_text: str) -> list[str]:
    return [re.split(f"{ASSISTANT}|{EOS}", turn)[0] for turn in prompt_text.split(USER)[1:]]


def _json_answer(completion_text: str) -> dict | None:
    try:
        answer = json.loads(text_after_reasoning(completion_text))
    except json.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None


def resume_correct(prompt_text: str, completion_text: str) -> bool:
    """Whether the verdict and counts follow from the posting and résumé."""
    answer = _json_answer(completion_text)
    if answer is None:
        return False
    met = requirements_met(user_turns(prompt_text)[-1])
    verdict = "advance" if all(met) else "reject"
    return (answer.get("verdict"), answer.get("met"), answer.get("of")) == (
        verdict,
        sum(met),
        len(met),
    )


def requirements_met(screening: str) -> list[bool]:
    """Whether the résumé meets each requirement of the posting."""
    posting, resume = screening.split("\nRésumé\n")
    skills = {
        skill: int(years)
        for skill, years in re.findall(r"^- (.+): (\d+) years$", resume, re.MULTILINE)
    }
    city, *_ = re.findall(r"^location: (.+)$", resume, re.MULTILINE)
    degree, *_ = re.findall(r"studyType: (\w+)", resume)
    met = []
    for requirement in re.findall(r"^\d+\. (.+)$", posting, re.MULTILINE):
        if match := re.fullmatch(r"Located in (.+)", requirement):
            met.append(match.group(1) == city)
        elif match := re.fullmatch(r"(\w+) degree or higher", requirement):
            met.append(DEGREES.index(degree) >= DEGREES.index(match.group(1)))
        else:
            skill, needed = _skill_requirement(requirement)
            met.append(skills.get(skill, -1) >= needed)
    return met


def _skill_requirement(requirement: str) -> tuple[str, int]:
    for wording in SKILL_WORDINGS:
        pattern = (
            re.escape(wording)
            .replace(r"\{skill\}", "(?P<skill>.+)")
            .replace(r"\{years\}", r"(?P<years>\d+)")
        )
        if match := re.fullmatch(pattern, requirement):
            return match["skill"], int(match["years"])
    raise ValueError(f"not a requirement of a posting: {requirement!r}")


def receipt_correct(prompt_text: str, completion_text: str) -> bool:
    """Whether all four fields match the receipt exactly."""
    return _json_answer(completion_text) == receipt_fields(user_turns(prompt_text)[-1])


def receipt_fields(text: str) -> dict[str, str]:
    """Reads company (line 1), address (up to TEL), date, total (before CASH)."""
    lines = text.removeprefix(RECEIPT_INSTRUCTION).strip("\n").split("\n")
    telephone = next(at for at, line in enumerate(lines) if line.startswith("TEL: "))
    cash = next(at for at, line in enumerate(lines) if at > telephone and line.startswith("CASH "))
    date = next(match for line in lines[telephone + 1 :] if (match := DATE.search(line)))
    return {
        "company": lines[0],
        "address": " ".join(lines[1:telephone]),
        "date": date.group(),
        "total": lines[cash - 1].removeprefix("RM "),
    }


def support_correct(prompt_text: str, completion_text: str) -> bool:
    """Whether an order is repeated exactly, or a reply fits its intent."""
    answer = text_after_reasoning(completion_text)
    turns = user_turns(prompt_text)
    if CAFE_SYSTEM in prompt_text:
        if CONFIRMATION.match(turns[-1]) and len(turns) > 1:
            return answer == order_confirmation(turns[:-1])
        return answer == confirmation_question(turns)
    match = re.match(r"Intent: ([a-z_]+)\n", answer)
    return match is not None and answer == bank_answer(match.group(1))


def bank_answer(intent: str) -> str:
    """The bank's reply to this intent; each topic has fixed advice."""
    topic = intent.replace("_", " ")
    advice = ADVICE[len(topic) % len(ADVICE)].format(topic=topic)
    return f"Intent: {intent}\nThank you for your message about {topic}. {advice}"


def wish_list(wishes: list[str]) -> str:
    return "\n".join(f"{number}. {wish}" for number, wish in enumerate(wishes, 1))


def confirmation_question(wishes: list[str]) -> str:
    """The café's reply to an order that is not confirmed yet."""
    return f"Your order so far:\n{wish_list(wishes)}\nIs it right, or would you like anything else?"


def order_confirmation(wishes: list[str]) -> str:
    """The café's reply to a confirmed order."""
    return (
        f"Thank you. I am sending your order to the coffee bar:\n{wish_list(wishes)}\n"
        "It will be ready in a few minutes."
    )
