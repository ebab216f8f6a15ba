"""Checks whether an answer is right, from the rendered prompt alone: one per kind of work.

Résumés and orders are solved again from the prompt, and receipts are read again. A bank reply is
checked for consistency only, because just the corpus knows the right intent. An arithmetic problem
has no check: its prompt does not contain the answer.

    resume_correct(prompt_text, completion_text)
"""

import json
import re

from outrider.recipes.nano_r1 import receipts, resumes, support
from outrider.recipes.nano_r1.chat import ASSISTANT, END_THINK, EOS, USER


def answer_of(completion_text: str) -> str:
    """The text after the reasoning; all of it where a server has removed the reasoning."""
    return completion_text.rsplit(END_THINK, 1)[-1].replace(EOS, "").strip()


def user_turns(prompt_text: str) -> list[str]:
    return [re.split(f"{ASSISTANT}|{EOS}", turn)[0] for turn in prompt_text.split(USER)[1:]]


def _json_answer(completion_text: str) -> dict | None:
    try:
        answer = json.loads(answer_of(completion_text))
    except json.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None


def resume_correct(prompt_text: str, completion_text: str) -> bool:
    """Whether verdict and number of requirements met follow from posting and résumé."""
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


def verdict_correct(prompt_text: str, completion_text: str) -> bool:
    """Whether the verdict is right; the reasons are not checked."""
    answer = _json_answer(completion_text)
    verdict = "advance" if all(requirements_met(user_turns(prompt_text)[-1])) else "reject"
    return answer is not None and answer.get("verdict") == verdict


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
        if found := re.fullmatch(r"Located in (.+)", requirement):
            met.append(found.group(1) == city)
        elif found := re.fullmatch(r"(\w+) degree or higher", requirement):
            met.append(resumes.DEGREES.index(degree) >= resumes.DEGREES.index(found.group(1)))
        else:
            skill, needed = _skill_requirement(requirement)
            met.append(skills.get(skill, -1) >= needed)
    return met


def _skill_requirement(requirement: str) -> tuple[str, int]:
    for wording in resumes.SKILL_WORDINGS:
        pattern = (
            re.escape(wording)
            .replace(r"\{skill\}", "(?P<skill>.+)")
            .replace(r"\{years\}", r"(?P<years>\d+)")
        )
        if found := re.fullmatch(pattern, requirement):
            return found["skill"], int(found["years"])
    raise ValueError(f"not a requirement of resumes.py: {requirement!r}")


def receipt_correct(prompt_text: str, completion_text: str) -> bool:
    """Whether all four fields are exactly as in the receipt."""
    return _json_answer(completion_text) == receipt_fields(user_turns(prompt_text)[-1])


def receipt_fields(text: str) -> dict[str, str]:
    """The fields by their place: firm first, address up to the telephone, total before the cash."""
    lines = text.removeprefix(receipts.INSTRUCTION).strip("\n").split("\n")
    telephone = next(at for at, line in enumerate(lines) if line.startswith("TEL: "))
    cash = next(at for at, line in enumerate(lines) if at > telephone and line.startswith("CASH "))
    date = next(found for line in lines[telephone + 1 :] if (found := receipts.DATE.search(line)))
    return {
        "company": lines[0],
        "address": " ".join(lines[1:telephone]),
        "date": date.group(),
        "total": lines[cash - 1].removeprefix("RM "),
    }


def support_correct(prompt_text: str, completion_text: str) -> bool:
    """Whether an order is repeated word for word, or a bank reply fits the intent it names."""
    answer, turns = answer_of(completion_text), user_turns(prompt_text)
    if support.CAFE_SYSTEM in prompt_text:
        if support.CONFIRMATION.match(turns[-1]) and len(turns) > 1:
            return answer == support.sent(turns[:-1])
        return answer == support.read_back(turns)
    named = re.match(r"Intent: ([a-z_]+)\n", answer)
    return named is not None and answer == support.bank_reply(turns[-1], named.group(1)).answer
