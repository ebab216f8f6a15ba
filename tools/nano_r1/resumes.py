"""Résumé screening: posting and résumé to a JSON verdict with reasons.

Every candidate, employer and posting is invented; field names are jsonresume's. The reasoning
checks the requirements one by one and counts those that are met.

    next(conversations(Path("corpus"), seed=0, count=1, part="train")).answer
"""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.recipes.nano_r1.tasks import DEGREES, SKILL_WORDINGS
from tools.nano_r1 import invented
from tools.nano_r1.conversations import Conversation, Part, part_of

SKILLS = """Python|Java|SQL|Rust|Go|Kotlin|Swift|C++|JavaScript|TypeScript|React|Docker|
Kubernetes|Terraform|Linux|Spark|Kafka|PyTorch|Statistics|Excel|Tableau|Salesforce|Copywriting|
Negotiation|Accounting|Payroll|Auditing|Budgeting|Recruiting|Training|Logistics|Procurement|
Welding|AutoCAD|Surveying|Photoshop|Illustration|Animation|Translation|Spanish|French|Mandarin|
Nursing|Phlebotomy|Triage|Teaching|Tutoring|Forecasting|
Pricing|Branding""".replace("\n", "").split("|")
TITLES = [
    "Analyst",
    "Engineer",
    "Manager",
    "Coordinator",
    "Specialist",
    "Consultant",
    "Administrator",
    "Planner",
    "Lead",
]
FIELDS = [
    "Data",
    "Software",
    "Finance",
    "Marketing",
    "Operations",
    "Sales",
    "Product",
    "Quality",
    "Support",
    "Research",
]
AREAS = [
    "Economics",
    "Physics",
    "Design",
    "History",
    "Biology",
    "Computing",
    "Law",
    "Chemistry",
    "Music",
    "Geography",
]
CITIES = [
    "Berlin",
    "Lisbon",
    "Oslo",
    "Vienna",
    "Dublin",
    "Madrid",
    "Prague",
    "Toronto",
    "Austin",
    "Denver",
    "Kyoto",
    "Lima",
]
FIRST_NAMES = """Ada|Ben|Carla|David|Elena|Felix|Grace|Hugo|Irene|Jonas|Karin|Leo|Maria|Nils|
Olga|Paul|Rosa|Simon|Tara|Victor|Wanda|Yusuf|Zoe|Amir|
Bianca|Dmitri|Fatima|Kenji|Priya|Sofia""".replace("\n", "").split("|")
SYSTEM = (
    "You screen résumés. Check each requirement of the posting against the résumé. "
    "Advance a candidate only if every requirement is met. Answer with JSON."
)
SUMMARIES = [
    "{label} with {years} years of work, last at {employer}.",
    "Worked {years} years, most of them as {label}.",
    "{years} years of experience; looks for a post as {label}.",
    "{label} from {city}, {years} years in the field.",
]
# About half of the candidates advance if a posting has four requirements.
MET_PROBABILITY = 0.85


@dataclass(frozen=True)
class Check:
    """A requirement: wording in the posting, line of reasoning, and reason."""

    wording: str
    reasoning: str
    reason: str
    met: bool


def check_skill(wording: str, skill: str, needed: int, years: int | None) -> Check:
    head = f"{skill}, at least {needed} years."
    if years is None:
        text = f"{head} The résumé does not list {skill}, so this is not met."
        return Check(wording, text, f"{skill}: not listed, needs {needed}, not met", False)
    met = years >= needed
    relation, outcome = (">=", "met") if met else ("<", "not met")
    text = (
        f"{head} The résumé lists {skill} with {years} years. {years} {relation} {needed}, "
        f"so this is {outcome}."
    )
    return Check(wording, text, f"{skill}: {years} years, needs {needed}, {outcome}", met)


def check_degree(wording: str, needed: str, held: str) -> Check:
    met = DEGREES.index(held) >= DEGREES.index(needed)
    relation, outcome = (">=", "met") if met else ("<", "not met")
    text = (
        f"degree, at least {needed}. The résumé has {held}. {held} {relation} {needed}, "
        f"so this is {outcome}."
    )
    return Check(wording, text, f"degree: {held}, needs {needed}, {outcome}", met)


def check_location(wording: str, needed: str, city: str) -> Check:
    met = needed == city
    relation, outcome = ("=", "met") if met else ("is not", "not met")
    text = (
        f"location {needed}. The candidate is in {city}. {city} {relation} {needed}, "
        f"so this is {outcome}."
    )
    return Check(wording, text, f"location: {city}, needs {needed}, {outcome}", met)


def conversations(
    corpus_dir: Path, seed: int, count: int | None, part: Part
) -> Iterator[Conversation]:
    """Yields `count` screenings (None: endless); parts have different candidates.

    `corpus_dir` is not read.
    """
    rng = random.Random(f"resumes {seed} {part}")
    for _ in itertools.count() if count is None else range(count):
        yield screening(rng, part)


def screening(rng: random.Random, part: Part) -> Conversation:
    name = candidate_name(rng, part)
    city = rng.choice(CITIES)
    degree = rng.choice(DEGREES)
    skills = {skill: rng.randint(2, 12) for skill in rng.sample(SKILLS, rng.randint(4, 6))}
    checks = requirements(rng, skills, degree, city)
    posting = [
        "Posting",
        f"title: {rng.choice(FIELDS)} {rng.choice(TITLES)}",
        f"company: {invented.word(rng)}",
        "qualifications:",
        *(f"{number}. {check.wording}" for number, check in enumerate(checks, 1)),
    ]
    candidate = resume(rng, name, city=city, degree=degree, skills=skills)
    messages = [
        {"role": "system", "content": SYSTEM},
        {
            "role": "user",
            "content": "\n".join([*posting, "", *candidate]),
        },
    ]
    met = sum(check.met for check in checks)
    verdict = "advance" if met == len(checks) else "reject"
    reasoning = [
        f"Requirement {number}: {check.reasoning}" for number, check in enumerate(checks, 1)
    ]
    reasoning.append(
        f"Count: {met} of {len(checks)} requirements are met, so the verdict is {verdict}."
    )
    answer = {
        "verdict": verdict,
        "met": met,
        "of": len(checks),
        "reasons": [check.reason for check in checks],
    }
    return Conversation(
        work="resumes",
        messages=messages,
        reasoning="\n".join(reasoning),
        answer=json.dumps(answer, ensure_ascii=False),
        route="resume-screening",
    )


def candidate_name(rng: random.Random, part: Part) -> str:
    while True:
        name = f"{rng.choice(FIRST_NAMES)} {invented.word(rng)}"
        if part_of(name) == part:
            return name


def requirements(rng: random.Random, skills: dict[str, int], degree: str, city: str) -> list[Check]:
    """Three to five requirements: skills, then possibly a degree and a location."""
    checks = []
    missing = [skill for skill in SKILLS if skill not in skills]
    for skill in rng.sample(list(skills), rng.randint(2, 3)):
        wording = rng.choice(SKILL_WORDINGS)
        if rng.random() < MET_PROBABILITY:
            needed = rng.randint(2, skills[skill])
            years = skills[skill]
        elif rng.random() < 0.5:
            needed = skills[skill] + rng.randint(1, 4)
            years = skills[skill]
        else:
            skill = missing.pop(rng.randrange(len(missing)))
            needed = rng.randint(2, 8)
            years = None
        checks.append(check_skill(wording.format(skill=skill, years=needed), skill, needed, years))
    if len(checks) == 2 or rng.random() < 0.6:
        rank = DEGREES.index(degree)
        met = rng.random() < MET_PROBABILITY or rank == len(DEGREES) - 1
        demanded = rng.choice(DEGREES[: rank + 1] if met else DEGREES[rank + 1 :])
        checks.append(check_degree(f"{demanded} degree or higher", demanded, degree))
    if rng.random() < 0.6:
        elsewhere = [name for name in CITIES if name != city]
        needed_city = city if rng.random() < MET_PROBABILITY else rng.choice(elsewhere)
        checks.append(check_location(f"Located in {needed_city}", needed_city, city))
    return checks


def resume(
    rng: random.Random, name: str, city: str, degree: str, skills: dict[str, int]
) -> list[str]:
    label = f"{rng.choice(FIELDS)} {rng.choice(TITLES)}"
    work = [
        (invented.word(rng), f"{rng.choice(FIELDS)} {rng.choice(TITLES)}", rng.randint(2, 6))
        for _ in range(rng.randint(1, 3))
    ]
    summary = rng.choice(SUMMARIES).format(
        label=label, years=sum(years for _, _, years in work), employer=work[0][0], city=city
    )
    listed = list(skills.items())
    rng.shuffle(listed)
    return [
        "Résumé",
        f"name: {name}",
        f"label: {label}",
        f"location: {city}",
        f"summary: {summary}",
        "work:",
        *(f"- {position}, {employer}, {years} years" for employer, position, years in work),
        "skills:",
        *(f"- {skill}: {years} years" for skill, years in listed),
        "education:",
        f"- studyType: {degree}, area: {rng.choice(AREAS)}, "
        f"institution: {invented.word(rng)} University",
    ]
