"""The rules of each kind of resource: one form for one thing, and a refusal where two readers could differ (S5.1, S12.2)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from app.domain.resource import ScopeError, concrete_resource, parse_forbidden, parse_pattern, resource_inside
from app.domain.scope import Entry, NamedEntry, decide_scope, parse_entry, render_entry

NOW = datetime(2026, 12, 1, 9, tzinfo=UTC)
NFD = "e\u0301"


def forbids(pattern: str, resource: str) -> bool:
    """Say whether a forbid of a pattern beats a permit of everything of the kind."""
    kind = pattern.partition(":")[0]
    forbid = parse_entry({"action": "read", "resource": pattern}, {}.get, forbid=True)
    everything = NamedEntry("all", Entry("read", parse_pattern(f"{kind}:**")))
    need = Entry("read", concrete_resource(resource))
    return decide_scope(need, [everything], [NamedEntry("stop", forbid)], None, NOW).outcome == "forbidden"


@pytest.mark.parametrize("kind", ["order", "tool", "table", "model", "capability", "secret"])
def test_other_kinds_are_exact_case_included(kind: str) -> None:
    assert concrete_resource(f"{kind}:A-1") != concrete_resource(f"{kind}:a-1")
    assert not forbids(f"{kind}:A-1", f"{kind}:a-1")
    assert concrete_resource(f"{kind}:a\\b%2f:c.").text == f"{kind}:a\\b%2f:c."


@pytest.mark.parametrize("text", [f"order:caf{NFD}", f"file:caf{NFD}/a", "order:\u212b", f"url:https://a/caf{NFD}"])
def test_another_unicode_form_is_refused(text: str) -> None:
    """What looks alike isn't another resource that a forbid would miss."""
    for parse in (concrete_resource, parse_pattern):
        with pytest.raises(ScopeError, match="isn't in the Unicode form NFC; normalise it"):
            parse(text)


class TestFile:
    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("../etc/passwd", "empty, `.` or `..`"),
            ("a/./b", "empty, `.` or `..`"),
            ("/etc/passwd", "empty, `.` or `..`"),
            ("a/..", "empty, `.` or `..`"),
            ("a\\..\\b", "has a `\\` or a second `:`"),
            ("C:/Windows", "has a `\\` or a second `:`"),
            ("a/secret::$DATA", "has a `\\` or a second `:`"),
            ("a/%2e%2e/b", "is percent-encoded"),
            ("a%2Fb", "is percent-encoded"),
            ("a%5cb", "is percent-encoded"),
            ("a%252fb", "is percent-encoded"),
            ("secrets./a", "ends with a dot or a space"),
            ("secrets /a", "ends with a dot or a space"),
            ("a/.. /b", "ends with a dot or a space"),
            ("a/...", "ends with a dot or a space"),
        ],
    )
    def test_what_may_be_another_path_is_refused(self, path: str, reason: str) -> None:
        for parse in (concrete_resource, parse_pattern):
            with pytest.raises(ScopeError) as refused:
                parse(f"file:{path}")
            assert reason in refused.value.detail

    @pytest.mark.parametrize("path", [".env", "a/.git/config", "100%/b", "a b/c", "退款/a.txt", "..a/b", "a..b"])
    def test_ordinary_paths_are_read(self, path: str) -> None:
        assert concrete_resource(f"file:{path}").text == f"file:{path}"

    def test_a_forbid_counts_in_any_case_and_a_permit_in_its_own(self) -> None:
        assert forbids("file:*/secrets/**", "file:repo/SECRETS/key")
        assert forbids("file:*/Secrets/**", "file:repo/secrets/key")
        assert forbids("file:STRASSE", "file:straße")
        assert not forbids("file:*/secrets/**", "file:repo/secret/key")
        assert not resource_inside(concrete_resource("file:Repo/a"), parse_pattern("file:repo/**"))

    def test_what_a_forbid_excepts_is_exact(self) -> None:
        forbid = parse_entry(
            {"action": "read", "resource": "file:**", "except": [{"action": "read", "resource": "file:public/**"}]}, {}.get, forbid=True
        )
        everything = [NamedEntry("all", Entry("read", parse_pattern("file:**")))]
        for resource, outcome in (("file:public/a", "permitted"), ("file:PUBLIC/a", "forbidden"), ("file:private/a", "forbidden")):
            need = Entry("read", concrete_resource(resource))
            assert decide_scope(need, everything, [NamedEntry("stop", forbid)], None, NOW).outcome == outcome


class TestUrl:
    @pytest.mark.parametrize(
        ("written", "form"),
        [
            ("HTTPS://Example.COM", "https://example.com"),
            ("https://example.com/", "https://example.com"),
            ("https://example.com:443/a", "https://example.com/a"),
            ("http://example.com:80/a", "http://example.com/a"),
            ("https://example.com:80/a", "https://example.com:80/a"),
            ("https://example.com/A/b", "https://example.com/A/b"),
            ("https://example.com/caf%c3%a9", "https://example.com/caf%C3%A9"),
            ("https://example.com/a?b=c/d&e=%2f", "https://example.com/a?b=c%2Fd&e=%2F"),
            ("https://example.com?q=1", "https://example.com/?q=1"),
            ("https://[2001:DB8:0::1]:8443/a", "https://[2001:db8::1]:8443/a"),
            ("https://127.0.0.1/a", "https://127.0.0.1/a"),
            ("https://xn--bcher-kva.example/a", "https://xn--bcher-kva.example/a"),
        ],
    )
    def test_one_form_for_one_address(self, written: str, form: str) -> None:
        assert concrete_resource(f"url:{written}").text == f"url:{form}"
        assert concrete_resource(f"url:{form}") == concrete_resource(f"url:{written}")

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("example.com/a", "isn't an absolute URL"),
            ("/a", "isn't an absolute URL"),
            ("https://example.com/a#b", "isn't an absolute URL without a fragment"),
            ("https:\\\\example.com\\a", "isn't an absolute URL"),
            ("https://example.com\\@evil.com/", "isn't an absolute URL"),
            ("https://user:pass@example.com/", "has a user name or password"),
            ("https://example.com@evil.com/", "has a user name or password"),
            ("https://bücher.example/", "isn't ASCII; write its `xn--` form (IDNA)"),
            ("https://example\u3002com/", "isn't ASCII"),
            ("https:///a", "the host or port of a URL can't be read"),
            ("https://example.com:0/", "the host or port of a URL can't be read"),
            ("https://example.com:65536/", "the host or port of a URL can't be read"),
            ("https://example.com:/", "the host or port of a URL can't be read"),
            ("https://example.com:0443/", "the host or port of a URL can't be read"),
            ("https://example.com./", "isn't a host name"),
            ("https://exa%6dple.com/", "isn't a host name"),
            ("https://exam ple.com/", "isn't a host name"),
            ("https://*.example.com/", "isn't a host name"),
            ("https://[::1/", "the host or port of a URL can't be read"),
            ("https://[1::2::3]/", "isn't an IPv6 address"),
            ("https://2130706433/", "is a number; write an IPv4 address"),
            ("https://0x7f.1/", "is a number; write an IPv4 address"),
            ("https://127.1/", "is a number; write an IPv4 address"),
            ("https://0177.0.0.1/", "is a number; write an IPv4 address"),
            ("https://example.com/a/../b", "empty, `.` or `..`"),
            ("https://example.com/..?a", "empty, `.` or `..`"),
            ("https://example.com//a", "empty, `.` or `..`"),
            ("https://example.com/a/", "empty, `.` or `..`"),
            ("https://example.com/%2e%2e/a", "percent-encoded letter"),
            ("https://example.com/a%2Fb", "percent-encoded letter"),
            ("https://example.com/%61", "percent-encoded letter"),
            ("https://example.com/a%00", "percent-encoded letter"),
            ("https://example.com/a%252e", "percent-encoded letter"),
            ("https://example.com/a%zz", "has a character that isn't allowed"),
            ("https://example.com/a b", "has a character that isn't allowed"),
            ("https://example.com/退款", "has a character that isn't allowed"),
        ],
    )
    def test_what_may_be_another_address_is_refused(self, url: str, reason: str) -> None:
        with pytest.raises(ScopeError) as refused:
            concrete_resource(f"url:{url}")
        assert reason in refused.value.detail

    def test_patterns_of_hosts_end_at_a_whole_label(self) -> None:
        pattern = parse_pattern("url:https://*.example.com/**")
        for url, inside in (
            ("https://api.example.com/a", True),
            ("https://a.b.example.com/a/b?c", True),
            ("https://API.EXAMPLE.com:443/a", True),
            ("https://example.com/a", False),
            ("https://evilexample.com/a", False),
            ("https://api.example.com.evil.com/a", False),
            ("https://evil.com/api.example.com/a", False),
            ("https://api.example.com:8443/a", False),
            ("http://api.example.com/a", False),
            ("https://api.example.com", False),
        ):
            assert resource_inside(concrete_resource(f"url:{url}"), pattern) == inside, url
        assert resource_inside(concrete_resource("url:https://x.com/a"), parse_pattern("url:https://*/a"))

    @pytest.mark.parametrize("pattern", ["https://example.com*/a", "https://api.*/a", "https://*example.com/a", "https://*.*.com/a"])
    def test_other_stars_in_a_host_are_refused(self, pattern: str) -> None:
        with pytest.raises(ScopeError):
            parse_pattern(f"url:{pattern}")


class TestGlobs:
    """S5.1: free globs only in `forbid`."""

    @pytest.mark.parametrize(
        ("pattern", "hit", "missed"),
        [
            ("file:**/secrets/**", ["file:secrets/a", "file:a/b/secrets/c/d", "file:A/Secrets/x"], ["file:secrets", "file:a/secret/b"]),
            ("file:**/*.pem", ["file:a.pem", "file:a/b/c.PEM"], ["file:a.pem/b", "file:a.pe"]),
            ("file:a*b*c/?", ["file:abc/x", "file:aXbYc/z"], ["file:abc/xy", "file:abc"]),
            ("order:*-T-*", ["order:A-T-1", "order:a-T-"[:-1] + "-9"], ["order:A-t-1", "order:AT1"]),
            ("order:?", ["order:A", "order:?"], ["order:AB"]),
            ("file:a/**/**/b", ["file:a/b", "file:a/x/b", "file:a/x/y/z/b"], ["file:a", "file:a/x"]),
            ("url:https://*.example.com/**/admin/*", ["url:https://x.example.com/a/b/admin/c"], ["url:https://x.example.com/a/admin"]),
            ("url:**/admin", ["url:https://x.com/a/admin"], ["url:https://x.com/admin/b"]),
        ],
    )
    def test_what_a_forbid_hits(self, pattern: str, hit: list[str], missed: list[str]) -> None:
        assert [forbids(pattern, resource) for resource in hit] == [True] * len(hit)
        assert [forbids(pattern, resource) for resource in missed] == [False] * len(missed)

    def test_it_is_written_as_it_was_read(self) -> None:
        document = {"action": "read", "resource": "file:**/x*y*z/**"}
        assert render_entry(parse_entry(document, {}.get, forbid=True)) == document

    def test_nothing_else_may_have_one(self) -> None:
        for text in ("file:**/a", "file:a*b*c"):
            with pytest.raises(ScopeError):
                parse_entry({"action": "read", "resource": text}, {}.get)
            with pytest.raises(ScopeError):
                parse_entry(
                    {"action": "read", "resource": "file:**", "except": [{"action": "read", "resource": text}]}, {}.get, forbid=True
                )
        for text in ("file:a**b", "file:***"):
            with pytest.raises(ScopeError):
                parse_forbidden(text)

    def test_its_constraints_and_exceptions_count(self) -> None:
        forbid = parse_entry(
            {
                "action": "read",
                "resource": "file:**/x",
                "constraints": {"form": {"in": ["whole"]}},
                "except": [{"action": "read", "resource": "file:a/x"}],
            },
            {}.get,
            forbid=True,
        )
        everything = [NamedEntry("all", Entry("read", parse_pattern("file:**")))]
        for resource, form, outcome in (
            ("file:b/x", "whole", "forbidden"),
            ("file:b/x", "index", "permitted"),
            ("file:a/x", "whole", "permitted"),
        ):
            need = parse_entry({"action": "read", "resource": resource, "constraints": {"form": {"in": [form]}}}, {}.get)
            assert decide_scope(need, everything, [NamedEntry("stop", forbid)], None, NOW).outcome == outcome

    def test_many_stars_do_not_run_away(self) -> None:
        """No backtracking beyond length times length: this would take a naive matcher past the end of days."""
        assert not forbids("file:" + "a*" * 100 + "b", "file:" + "a" * 250)
