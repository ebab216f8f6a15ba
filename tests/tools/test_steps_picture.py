"""The picture of a response step by step: the same text in both panels, a bar for each step."""

from xml.etree import ElementTree

from tools.steps_picture import PICTURE, SHOWN, beginning, svg

RESPONSE = list(range(400))
STEPS = [(0, 1), (3, 4), (2, 2)] + [(4, 5)] * 70
SPACE = "{http://www.w3.org/2000/svg}"


def decode(ids):
    """One character per token, so that text shows which tokens are drawn."""
    return "".join("<&\n"[i] if i < 3 else chr(ord("a") + i % 26) for i in ids)


def test_both_panels_have_the_same_text_and_one_bar_for_each_step():
    tree = ElementTree.fromstring(svg(RESPONSE, STEPS, 5, decode, "source"))
    titles = [text.text for text in tree.iter(f"{SPACE}text") if text.get("class") == "title"]
    shown, tokens = beginning(STEPS)
    assert sum(delivered for _, delivered in shown) + 1 == tokens >= SHOWN
    assert titles == [
        f"No speculation: {tokens - 1} steps after the prefill",
        f"Suffix lookup, K = 5: {len(shown)} steps for the same text",
    ]
    bars = list(tree.iter(f"{SPACE}path"))
    assert len(bars) == tokens + len(shown) + 1  # both panels begin with the prefill's token
    texts = [text for text in tree.iter(f"{SPACE}text") if text.get("textLength")]
    drawn = "".join(text.text for text in texts)
    assert drawn == 2 * decode(RESPONSE[:tokens]).replace("\n", "↵")


def test_the_picture_in_the_readme_names_its_run():
    text = PICTURE.read_text(encoding="utf-8")
    assert "nano_r1 on resume_screening, 2026-" in text
