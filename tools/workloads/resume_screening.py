"""Résumé screening: postings and résumés in 20 layouts, to a reasoned verdict.

    sessions()[0].turns

Every person, employer and posting is invented. A session is a posting and three candidates; each
request has the posting and one résumé. A recruiter has a wording and an order of the two texts, a
posting one of three layouts, and a résumé one of five formats in one of four orders of sections.
"""

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.nano_r1 import invented
from tools.nano_r1.resumes import (
    AREAS,
    CITIES,
    FIELDS,
    FIRST_NAMES,
    SKILLS,
    TITLES,
)
from tools.workloads.sessions import Message, Session, Turn

RECRUITERS = 60
CANDIDATES = 3
DEGREES = ["Associate", "Bachelor", "Master", "Doctorate"]
THIS_YEAR = 2026
HAS_SKILL = 0.75
"""Share of a posting's skills that a candidate has."""

# Without a length, answers of this model repeat themselves.
INSTRUCTIONS = [
    "Compare the candidate with each requirement of the posting, one short sentence for each, and "
    "end with a line `Verdict: advance` or `Verdict: reject`.",
    "Should we interview this candidate? Name the requirements that are met and those that are "
    "not, then give your verdict. Use at most five sentences.",
    "You screen résumés. State your verdict first, advance or reject, and then two or three "
    "reasons with facts from the résumé.",
    "Write a screening note of one paragraph for the hiring manager: strengths, gaps, and whether "
    "to advance the candidate.",
    "Check the résumé against the posting. Number your findings, at most five. Conclude with "
    "advance or reject.",
    "Does the applicant fit the position? Write a sentence each about skills, degree and location, "
    "and then decide.",
    "Rate the applicant's fit for this position as strong, fair or weak, with reasons, in at most "
    "80 words.",
    "For every requirement, write met or not met and why, one line each. Finish with a verdict in "
    "one sentence.",
]


@dataclass(frozen=True)
class Posting:
    title: str
    company: str
    city: str
    degree: str
    skills: dict[str, int]
    """Years of experience that are required in each skill."""


@dataclass(frozen=True)
class Job:
    position: str
    employer: str
    first_year: int
    last_year: int


@dataclass(frozen=True)
class Candidate:
    name: str
    label: str
    city: str
    summary: str
    jobs: list[Job]
    skills: dict[str, int]
    degree: str


def position(rng: random.Random) -> str:
    return f"{rng.choice(FIELDS)} {rng.choice(TITLES)}"


def new_posting(rng: random.Random) -> Posting:
    skills = rng.sample(SKILLS, rng.randint(2, 4))
    return Posting(
        title=position(rng),
        company=invented.word(rng),
        city=rng.choice(CITIES),
        degree=rng.choice(DEGREES),
        skills={skill: rng.randint(2, 8) for skill in skills},
    )


def new_candidate(rng: random.Random, posting: Posting) -> Candidate:
    """A candidate who has most of the posting's skills, and others."""
    skills = {skill: rng.randint(1, 12) for skill in posting.skills if rng.random() < HAS_SKILL}
    more = [skill for skill in SKILLS if skill not in posting.skills]
    skills |= {skill: rng.randint(1, 12) for skill in rng.sample(more, rng.randint(2, 4))}
    label = position(rng)
    city = posting.city if rng.random() < 0.6 else rng.choice(CITIES)
    jobs = new_jobs(rng)
    years = THIS_YEAR - jobs[-1].first_year
    summary = rng.choice(
        [
            f"{label} with {years} years of experience, most recently at {jobs[0].employer}.",
            f"I have worked for {years} years and look for a position in {city}.",
            f"{years} years in the field; known for {rng.choice(sorted(skills))}.",
        ]
    )
    return Candidate(
        name=f"{rng.choice(FIRST_NAMES)} {invented.word(rng)}",
        label=label,
        city=city,
        summary=summary,
        jobs=jobs,
        skills=skills,
        degree=f"{rng.choice(DEGREES)} in {rng.choice(AREAS)}, {invented.word(rng)} University",
    )


def new_jobs(rng: random.Random) -> list[Job]:
    """One to three jobs without a gap, the latest first."""
    jobs = []
    last_year = THIS_YEAR
    for _ in range(rng.randint(1, 3)):
        first_year = last_year - rng.randint(2, 6)
        jobs.append(Job(position(rng), invented.word(rng), first_year, last_year))
        last_year = first_year
    return jobs


SECTIONS = ("summary", "work", "skills", "education")
ORDERS = (
    ("summary", "work", "skills", "education"),
    ("skills", "work", "education", "summary"),
    ("education", "skills", "summary", "work"),
    ("work", "education", "summary", "skills"),
)


def as_lines(candidate: Candidate, order: tuple[str, ...]) -> str:
    """Capital headings, a line for each entry."""
    entries = {
        "summary": [candidate.summary],
        "work": [
            f"{job.first_year}-{job.last_year}  {job.position}, {job.employer}"
            for job in candidate.jobs
        ],
        "skills": [f"{skill} ({years} years)" for skill, years in candidate.skills.items()],
        "education": [candidate.degree],
    }
    blocks = [f"{candidate.name}\n{candidate.label}\n{candidate.city}"]
    blocks += ["\n".join([name.upper(), *entries[name]]) for name in order]
    return "\n\n".join(blocks)


def as_markdown(candidate: Candidate, order: tuple[str, ...]) -> str:
    """Markdown with lists."""
    entries = {
        "summary": ("Profile", [candidate.summary]),
        "work": (
            "Experience",
            [
                f"- **{job.position}** at {job.employer}, {job.first_year} to {job.last_year}"
                for job in candidate.jobs
            ],
        ),
        "skills": (
            "Skills",
            [f"- {skill}: {years} years" for skill, years in candidate.skills.items()],
        ),
        "education": ("Education", [f"- {candidate.degree}"]),
    }
    blocks = [f"# {candidate.name}\n{candidate.label}, {candidate.city}"]
    blocks += ["\n".join([f"## {entries[name][0]}", *entries[name][1]]) for name in order]
    return "\n\n".join(blocks)


def as_letter(candidate: Candidate, order: tuple[str, ...]) -> str:
    """A cover letter in the first person."""
    jobs = ", then ".join(
        f"as {job.position} at {job.employer} from {job.first_year} to {job.last_year}"
        for job in reversed(candidate.jobs)
    )
    skills = ", ".join(f"{skill} for {years} years" for skill, years in candidate.skills.items())
    paragraphs = {
        "summary": f"In short: {candidate.summary}",
        "work": f"I worked {jobs}.",
        "skills": f"I have used {skills}.",
        "education": f"I hold a degree: {candidate.degree}.",
    }
    opening = f"Dear team, my name is {candidate.name} and I live in {candidate.city}."
    body = "\n".join(paragraphs[name] for name in order)
    return f"{opening}\n{body}\nYours, {candidate.name}"


def as_fields(candidate: Candidate, order: tuple[str, ...]) -> str:
    """A form: one line for each section."""
    jobs = "; ".join(
        f"{job.position} / {job.employer} / {job.last_year - job.first_year} years"
        for job in candidate.jobs
    )
    values = {
        "summary": f"About: {candidate.summary}",
        "work": f"Employment: {jobs}",
        "skills": "Skills: "
        + "; ".join(f"{skill} / {years}" for skill, years in candidate.skills.items()),
        "education": f"Degree: {candidate.degree}",
    }
    head = [f"Name: {candidate.name}", f"Role: {candidate.label}", f"Location: {candidate.city}"]
    return "\n".join([*head, *(values[name] for name in order)])


def as_json(candidate: Candidate, order: tuple[str, ...]) -> str:
    """jsonresume's names, as JSON."""
    values = {
        "summary": candidate.summary,
        "work": [
            {
                "name": job.employer,
                "position": job.position,
                "startDate": str(job.first_year),
                "endDate": str(job.last_year),
            }
            for job in candidate.jobs
        ],
        "skills": [
            {"name": skill, "level": f"{years} years"} for skill, years in candidate.skills.items()
        ],
        "education": [{"studyType": candidate.degree}],
    }
    basics = {"name": candidate.name, "label": candidate.label, "location": candidate.city}
    return json.dumps({"basics": basics, **{name: values[name] for name in order}}, indent=1)


Layout = Callable[[Candidate, tuple[str, ...]], str]
FORMATS: list[Layout] = [as_lines, as_markdown, as_letter, as_fields, as_json]
LAYOUTS = list(itertools.product(FORMATS, ORDERS))
"""Format and order of a résumé: 20."""


def requirements(posting: Posting) -> list[str]:
    skills = [f"{years} years of {skill}" for skill, years in posting.skills.items()]
    return [*skills, f"{posting.degree} degree or higher", f"Located in {posting.city}"]


def numbered(posting: Posting) -> str:
    lines = [f"{number}. {line}" for number, line in enumerate(requirements(posting), 1)]
    return "\n".join([f"Posting: {posting.title} at {posting.company}", *lines])


def bulleted(posting: Posting) -> str:
    lines = [f"* {line}" for line in requirements(posting)]
    return "\n".join([posting.company, f"is looking for a {posting.title}", *lines])


def as_paragraph(posting: Posting) -> str:
    wishes = "; ".join(requirements(posting))
    return f"{posting.company} hires: {posting.title}. We expect: {wishes}."


POSTING_LAYOUTS = [numbered, bulleted, as_paragraph]


def sessions(responses: int = 1290) -> list[Session]:
    """Postings with three candidates each; no corpus is read."""
    rng = random.Random("resume screening")
    recruiters = [(rng.choice(INSTRUCTIONS), rng.random() < 0.5) for _ in range(RECRUITERS)]
    chosen = []
    for _ in range(0, responses, CANDIDATES):
        recruiter = rng.randrange(RECRUITERS)
        instruction, posting_first = recruiters[recruiter]
        posting = new_posting(rng)
        advertisement = rng.choice(POSTING_LAYOUTS)(posting)
        turns = []
        for _ in range(CANDIDATES):
            layout, order = rng.choice(LAYOUTS)
            resume = layout(new_candidate(rng, posting), order)
            texts = [advertisement, resume] if posting_first else [resume, advertisement]
            content = "\n\n".join([*texts, instruction])
            turns.append(Turn((Message("user", content),)))
        chosen.append(Session(f"recruiter-{recruiter:02d}", tuple(turns)))
    return chosen
