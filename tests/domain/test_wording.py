"""The service's sentences are there in every built-in language, and a caller gets the language that it asks for (SPEC S3.12)."""

from __future__ import annotations

import re
from string import Formatter

import pytest

from app.domain import wording
from app.domain.decision import Reason
from app.domain.wording import BUILT_IN, ENGLISH, chosen, either, is_tag, joined, language_of, locales_of, say

SENTENCES = wording._SENTENCES
CHINESE = locales_of("zh")
WORDS_OF_THE_CONTRACT = frozenset(
    ["approval_id", "id", "fix_hint", "UUID", "BCP", "null", "true", "false", "A-Z", "a-z",
     "requested_scope", "URL", "SQLSTATE"]
)  # fmt: skip


def placeholders(text: str) -> list[str]:
    return sorted(name for _, name, _, _ in Formatter().parse(text) if name is not None)


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_shows_the_same_in_every_language(name: str) -> None:
    texts = SENTENCES[name]
    assert len(texts) == len(BUILT_IN)
    assert len({tuple(placeholders(text)) for text in texts}) == 1, texts
    assert all(text and text == text.strip() for text in texts)


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_is_in_its_language(name: str) -> None:
    """Lower case and without a full stop in English; Chinese with Chinese punctuation, and no English but the contract's own words."""
    english, chinese = SENTENCES[name]
    assert english.isascii()
    assert not english[0].isupper()
    assert not english.endswith(".")
    bare = re.sub(r"`[^`]*`|\{\w+\}", "", chinese)
    assert bare.strip() == "" or re.search(r"[\u4e00-\u9fff]", chinese) or name in ("at_place", "request_null_kind", "last_attempt")
    assert not re.search(r"[,;:?!]|。$", bare), "ASCII punctuation in a Chinese sentence"
    assert set(re.findall(r"[A-Za-z][A-Za-z_-]*", bare)) <= WORDS_OF_THE_CONTRACT


@pytest.mark.parametrize(
    ("tag", "locales"),
    [
        (None, ("en",)),
        ("en", ("en",)),
        ("EN", ("en",)),
        ("en-GB", ("en-GB", "en")),
        ("zh", ("zh", "en")),
        ("zh-CN", ("zh-CN", "zh", "en")),
        ("ZH-cn", ("zh-CN", "zh", "en")),
        ("zh-hant-tw", ("zh-Hant-TW", "zh-Hant", "zh", "en")),
        ("de", ("de", "en")),
        ("x-shop", ("x-shop", "x", "en")),
        ("de-DE-u-CO-phonebk", ("de-DE-u-co-phonebk", "de-DE-u-co", "de-DE-u", "de-DE", "de", "en")),
        ("", ("en",)),
        ("zh_CN", ("en",)),
        ("zh-", ("en",)),
        ("abcdefghi", ("en",)),
        ("zh\n", ("en",)),
        ("z" * 200, ("en",)),
        ("-".join(["zh", *["a"] * 20]), ("en",)),
    ],
)
def test_a_tag_is_shortened_until_there_is_something(tag: str | None, locales: tuple[str, ...]) -> None:
    """RFC 4647, 3.4; what isn't a tag is English."""
    assert locales_of(tag) == locales


def test_a_tag_has_35_characters_at_most() -> None:
    longest = "zh-" + "-".join(["abcdefgh"] * 3) + "-abcde"
    assert (len(longest), is_tag(longest), is_tag(longest + "f")) == (35, True, False)


@pytest.mark.parametrize(("tag", "language", "text"), [
    ("zh-TW", "zh", "没有这个工具"), ("de", "en", "there is no such tool"), ("en-GB", "en", "there is no such tool"),
])  # fmt: skip
def test_the_first_built_in_language_is_spoken(tag: str, language: str, text: str) -> None:
    assert say(locales_of(tag), "tool_unknown") == text
    assert language_of(locales_of(tag)) == language


def test_values_are_shown_as_they_are() -> None:
    """A value with braces isn't a template."""
    assert say(ENGLISH, "rule_error", name="{0} {name}").startswith("the rule {0} {name} could")
    assert say(CHINESE, "over_what_is_left", wanted="20.00 EUR", left="1.00 EUR") == "20.00 EUR 超出了剩余额度 1.00 EUR"


def test_lists_are_written_in_the_language() -> None:
    assert (joined(ENGLISH, ["a", "b"]), joined(CHINESE, ["a", "b"])) == ("a; b", "a；b")
    assert (either(ENGLISH, ["string", "null"]), either(CHINESE, ["string", "null"])) == ("string or null", "string 或 null")


def test_an_authors_text_is_chosen_by_the_nearest_locale() -> None:
    texts = {"en": "e", "zh": "z", "zh-TW": "t", "de": "d"}
    assert [chosen(texts, locales_of(tag)) for tag in ("zh-TW", "zh-CN", "de-AT", "fr", None)] == ["t", "z", "d", "e", "e"]


@pytest.mark.parametrize("reason", [Reason.TOOL_UNKNOWN, Reason.NO_POLICY, Reason.RISK_TOO_HIGH, Reason.NEEDS_HUMAN_REVIEW])
def test_a_reason_that_is_said_by_its_name_has_a_sentence(reason: Reason) -> None:
    assert reason.value in SENTENCES
