"""Resources and patterns over them (S5.1, S12.2: no path escapes)."""

from __future__ import annotations

import functools
import itertools

import pytest

from app.domain.resource import (
    ANY,
    ResourcePattern,
    ScopeError,
    Segment,
    concrete_resource,
    exact,
    meet_resources,
    meet_segments,
    parse_pattern,
    resource_inside,
    star,
)

TEXTS = ["".join(letters) for length in range(1, 6) for letters in itertools.product("ab.", repeat=length)]
TEXTS = [text for text in TEXTS if text not in (".", "..")]
STARRED = ["*", "a*", "*a", "a*a", "ab*", "*ba", "ab*ba", "b*", "aba*", "*b", ".*", "*.", ".*.", "..*", "aa*", "*aa", "a*b"]
EXACT = ["a", "aa", "aba", "abba", "b", "...", "ab"]


def segment(text: str) -> Segment:
    return parse_pattern(f"k:{text}").segments[0]


def language(pattern: Segment) -> frozenset[str]:
    return frozenset(text for text in TEXTS if pattern.matches(text))


# patterns, and every pattern that meeting two of them makes
SEGMENTS = sorted({met for a, b in itertools.product(map(segment, STARRED + EXACT), repeat=2) if (met := meet_segments(a, b))}, key=repr)


def test_a_starred_segment_has_prefix_and_suffix_apart() -> None:
    assert [text for text in ("a", "aa", "aba", "ab", "ba") if segment("a*a").matches(text)] == ["aa", "aba"]
    assert segment("a*").matches("a")
    assert not ANY.matches("")


def test_the_meet_of_a_prefix_and_a_suffix_keeps_what_overlaps() -> None:
    """S5.1: closed under intersection, which `a*a` alone isn't: it lacks `a`."""
    met = meet_segments(segment("ab*"), segment("*ba"))
    assert met == Segment("ab", "ba", 3)
    assert met is not None
    assert met.matches("aba")
    assert not segment("ab*ba").matches("aba")


def test_meet_of_segments_is_the_intersection() -> None:
    """S5.2, against brute force."""
    for a, b in itertools.product(SEGMENTS, repeat=2):
        met = meet_segments(a, b)
        assert (language(met) if met else frozenset()) == language(a) & language(b), (a, b)
        assert met == meet_segments(b, a)


def test_equal_segment_sets_have_one_representation() -> None:
    """Texts of at most five characters tell all of these apart, so equal languages must be equal values."""
    short = [one for one in SEGMENTS if len(one.prefix) + len(one.suffix or "") <= 3]
    for a, b in itertools.combinations(short, 2):
        assert language(a) != language(b), (a, b)


def test_containment_of_segments_is_exact() -> None:
    for a, b in itertools.product(SEGMENTS, repeat=2):
        inside = resource_inside(ResourcePattern("k", (a,)), ResourcePattern("k", (b,)))
        assert inside == (meet_segments(a, b) == a), (a, b)
        if inside:
            assert language(a) <= language(b), (a, b)
        elif len(a.prefix) + len(a.suffix or "") <= 3 >= len(b.prefix) + len(b.suffix or ""):
            assert not language(a) <= language(b), (a, b)


PATHS = ["/".join(parts) for length in (1, 2, 3, 4) for parts in itertools.product(["a", "b", "ab", "ac", "cb", "bc"], repeat=length)]
PATTERNS = ["**", "*", "a", "a/**", "*/b", "*/b/**", "a/*", "a/b", "a/*/**", "*/*", "a*/b*", "*/*/*", "ab/**", "a*/**", "a/b/ab", "*b/**"]


@functools.cache
def paths(pattern: ResourcePattern) -> frozenset[str]:
    return frozenset(path for path in PATHS if resource_inside(concrete_resource(f"k:{path}"), pattern))


def test_meet_of_patterns_is_the_intersection() -> None:
    for left, right in itertools.product(PATTERNS, repeat=2):
        a, b = parse_pattern(f"k:{left}"), parse_pattern(f"k:{right}")
        met = meet_resources(a, b)
        assert (paths(met) if met else frozenset()) == paths(a) & paths(b), (left, right)
        assert met == meet_resources(b, a)
        assert resource_inside(a, b) == (met == a), (left, right)
        assert resource_inside(a, b) == (paths(a) <= paths(b)), (left, right)


def test_two_stars_are_what_is_inside_and_not_the_thing_itself() -> None:
    deep = parse_pattern("file:repo/**")
    assert resource_inside(concrete_resource("file:repo/a"), deep)
    assert resource_inside(concrete_resource("file:repo/a/b/c"), deep)
    assert not resource_inside(concrete_resource("file:repo"), deep)
    assert not resource_inside(concrete_resource("file:repository/a"), deep)


def test_another_kind_never_meets() -> None:
    assert meet_resources(parse_pattern("file:**"), parse_pattern("url:**")) is None
    assert not resource_inside(parse_pattern("file:a"), parse_pattern("url:**"))


@pytest.mark.parametrize(
    "text",
    [
        "order:A-1001",
        "order:*",
        "file:shop_repo/**",
        "file:*/secrets/**",
        "url:https://a/b*c/d",
        "url:https://*.example.com/a/**",
        "url:**",
        "order:退款",
        "file:a/.env",
        "k:a b",
    ],
)
def test_a_pattern_reads_back_as_it_was_written(text: str) -> None:
    assert parse_pattern(text).text == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("order", "`order` isn't a resource; write `kind:path`, such as `order:A-1001`"),
        (":a", "`:a` isn't a resource; write `kind:path`, such as `order:A-1001`"),
        ("Order:a", "`Order:a` isn't a resource; write `kind:path`, such as `order:A-1001`"),
        ("*:a", "`*:a` isn't a resource; write `kind:path`, such as `order:A-1001`"),
        ("order:", "`order:` has a segment that is empty, `.` or `..`; write the path that is meant"),
        ("file:/a", "`file:/a` has a segment that is empty, `.` or `..`; write the path that is meant"),
        ("file:a//b", "`file:a//b` has a segment that is empty, `.` or `..`; write the path that is meant"),
        ("file:a/", "`file:a/` has a segment that is empty, `.` or `..`; write the path that is meant"),
        ("file:./a", "`file:./a` has a segment that is empty, `.` or `..`; write the path that is meant"),
        ("file:a/../b", "`file:a/../b` has a segment that is empty, `.` or `..`; write the path that is meant"),
        ("file:a\x00b", "a resource has a control character or a lone surrogate; remove it"),
        ("file:a\nb", "a resource has a control character or a lone surrogate; remove it"),
        ("file:a\x7f", "a resource has a control character or a lone surrogate; remove it"),
        ("file:a\x9bb", "a resource has a control character or a lone surrogate; remove it"),
        ("file:\ud800", "a resource has a control character or a lone surrogate; remove it"),
        ("file:" + "a" * 508, "a resource is a string of at most 512 characters, such as `order:A-1001`"),
        ("file:" + "/".join("a" * 33), "a resource has more than 32 segments"),
    ],
)
def test_what_is_no_resource_is_refused(text: str, reason: str) -> None:
    for parse in (parse_pattern, concrete_resource):
        with pytest.raises(ScopeError) as refused:
            parse(text)
        assert str(refused.value) == reason


@pytest.mark.parametrize("text", ["file:a/**/b", "file:a*b*c", "file:**a", "file:***", "file:a/b**"])
def test_free_globs_are_refused(text: str) -> None:
    with pytest.raises(ScopeError, match=r"isn't a segment; write one `\*` at most, and `\*\*` only as the last segment"):
        parse_pattern(text)


@pytest.mark.parametrize("text", ["order:*", "order:A*", "file:a/**", "order:**", "order:A-1*1"])
def test_a_value_from_arguments_never_becomes_a_pattern(text: str) -> None:
    """S12.4: nothing that the agent sends can widen what it needs into what it gets."""
    with pytest.raises(ScopeError) as refused:
        concrete_resource(text)
    assert str(refused.value) == f"`{text}` has a `*`; name one resource exactly"


def test_least_is_the_length_of_the_shortest_text_there_is() -> None:
    assert star("ab", "bc", 0).least == 3
    assert star("ab", "cd", 0).least == 4
    assert star("", "", 0).least == 1
    assert star(".", "", 0).least == 2
    assert star(".", ".", 0).least == 3
    assert exact("ab").least == 2
