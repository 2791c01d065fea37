"""The service's own sentences, in every locale that is built in, and the choice of a locale.

A caller's text never goes into a sentence here: what a sentence shows of a call are the policy's names, pointers, numbers and amounts,
because a model reads the sentence as the guard's words (IE-03). What an author wrote is in the bundle, in the bundle's locales.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

DEFAULT = "en"
BUILT_IN = ("en", "zh")

Locales = tuple[str, ...]
"""Tags in the order of preference, such as ("zh-TW", "zh", "en"); `en` is always the last."""

ENGLISH: Locales = (DEFAULT,)

TAG = r"[A-Za-z]{1,8}(-[A-Za-z0-9]{1,8})*"
TAG_LENGTH_MAX = 35
"""A language tag's form and length (BCP 47: RFC 4647, 2.1, and RFC 5646, 4.4.1)."""

_FULL_TAG = re.compile(TAG)
_JOINS = ("; ", "；")
_ORS = (" or ", " 或 ")
_T = TypeVar("_T")

_SENTENCES: Mapping[str, tuple[str, str]] = {
    # freeze and idempotency
    "tenant_frozen": ("an operator has stopped this service; tell the user and end here", "管理员已停用此服务；请告知用户并在此结束"),
    "principal_frozen": ("an operator has stopped this agent; tell the user and end here", "管理员已停用此代理；请告知用户并在此结束"),
    "session_frozen": ("an operator has stopped this conversation; tell the user and end here", "管理员已停用此会话；请告知用户并在此结束"),
    "tool_frozen": ("an operator has stopped this tool; tell the user and end here", "管理员已停用此工具；请告知用户并在此结束"),
    "call_id_reused": (
        "{call_id} was used with other arguments; give this call its own id",
        "{call_id} 已用于其他参数的调用；请为本次调用使用新的 id",
    ),
    "session_not_yours": ("this session belongs to another principal; use a session of your own", "该会话属于其他主体；请使用自己的会话"),
    "approval_mismatch": (
        "this approval_id is not of an approval of this call; leave it out, a call finds its own",
        "该 approval_id 不是本次调用的审批；请去掉它，调用会自行找到对应的审批",
    ),
    "last_attempt": (
        "{found}; this was the last attempt that this task has, so stop and tell the user",
        "{found}；本任务的尝试次数已用完，请停止并告知用户",
    ),
    # static
    "tool_unknown": ("there is no such tool", "没有这个工具"),
    "no_policy": (
        "no policy is active, so nothing is allowed; an operator has to activate one",
        "当前没有生效的策略，因此一律不放行；需由管理员启用策略",
    ),
    "at_place": ("{place}: {found}", "{place}：{found}"),
    "the_arguments": ("the arguments", "参数"),
    "number_inexact": ("{place}: the number is too large or has too many digits", "{place}：数值过大或位数过多"),
    "amount_without_currency": (
        "{place}: the currency isn't known, so the amount has no exact value",
        "{place}：币种未知，无法确定金额的精确值",
    ),
    "amount_digits": (
        "{place}: an amount in {currency} has at most {digits} digits after the point and fits 64 bits of minor units",
        "{place}：{currency} 金额最多有 {digits} 位小数，且按最小货币单位计须在 64 位整数范围内",
    ),
    "amount_whole": (
        "{place}: an amount in {currency} has no digits after the point and fits 64 bits of minor units",
        "{place}：{currency} 金额不能有小数，且按最小货币单位计须在 64 位整数范围内",
    ),
    # static, by the schema's keyword; each follows the place
    "schema_type": ("must be of type {value}", "类型必须为 {value}"),
    "schema_required": ("is required", "为必填项"),
    "schema_additional": ("isn't an argument of this tool; leave it out", "不是该工具的参数，请去掉"),
    "schema_enum": ("must be one of the listed values", "必须是所列取值之一"),
    "schema_const": ("must be the listed value", "必须是所列的值"),
    "schema_pattern": ("must match the pattern {value}", "必须匹配正则表达式 {value}"),
    "schema_format": ("must be a valid {value}", "必须是有效的 {value}"),
    "schema_minimum": ("must be at least {value}", "不得小于 {value}"),
    "schema_maximum": ("must be at most {value}", "不得大于 {value}"),
    "schema_exclusive_minimum": ("must be greater than {value}", "必须大于 {value}"),
    "schema_exclusive_maximum": ("must be less than {value}", "必须小于 {value}"),
    "schema_multiple_of": ("must be a multiple of {value}", "必须是 {value} 的整数倍"),
    "schema_min_length": ("must have at least {value} characters", "至少需要 {value} 个字符"),
    "schema_max_length": ("must have at most {value} characters", "最多 {value} 个字符"),
    "schema_min_items": ("must have at least {value} items", "至少需要 {value} 个元素"),
    "schema_max_items": ("must have at most {value} items", "最多 {value} 个元素"),
    "schema_unique_items": ("must not repeat an item", "元素不得重复"),
    "schema_min_properties": ("must have at least {value} properties", "至少需要 {value} 个属性"),
    "schema_max_properties": ("must have at most {value} properties", "最多 {value} 个属性"),
    "schema_otherwise": ("must match what the schema expects by `{value}`", "必须符合模式中 `{value}` 的要求"),
    "number_digits": ("must be a number of at most {value} significant digits", "必须是有效数字不超过 {value} 位的数"),
    "too_long_for_rules": ("must be shorter", "过长，请缩短"),
    "too_many_for_rules": ("must have fewer items", "元素过多，请减少"),
    # scope
    "forbidden": ("the policy forbids this call", "策略禁止本次调用"),
    "not_granted": ("nothing in the policy grants this call", "策略中没有任何授权允许本次调用"),
    "outside_requested_scope": (
        "the call lies outside the requested_scope that was sent with it",
        "本次调用超出了随请求发送的 requested_scope",
    ),
    "scope_over": ("{name} is {wanted}, at most {limit} is granted", "{name} 为 {wanted}，最多允许 {limit}"),
    "scope_unit": ("{name} is in {unit}, and nothing is granted in that", "{name} 的单位是 {unit}，没有该单位的授权"),
    "scope_values": ("{name} is not among the values that are granted", "{name} 不在允许的取值之内"),
    "scope_time": ("it is granted at another time only", "只在其他时间段内允许"),
    "scope_unlimited": (
        "{name} is granted up to a limit only, and the call has no such limit",
        "{name} 只在限额内允许，而本次调用没有对应的限额",
    ),
    "scope_limit": (
        "the arguments do not say {name} in a way that can be compared with what is granted, so the call is refused",
        "无法从参数中得到可与授权比较的 {name}，因此拒绝本次调用",
    ),
    "scope_resource": (
        "the arguments name a resource that can't exist: an id is one plain name without `*`, `/`, dots alone or control characters",
        "参数所指的资源不可能存在：id 应为一个普通名称，不含 `*`、`/`、控制字符，也不能只由点组成",
    ),
    "scope_resource_file": (
        "the arguments name a file by a path that could mean another one; write it relative, decoded, without `.`, `..`, `*`, `:` or `\\`",
        "参数中的文件路径可能指向别的文件；请写成已解码的相对路径，不含 `.`、`..`、`*`、`:` 和 `\\`",
    ),
    "scope_resource_url": (
        "the arguments name a URL that could mean another one; write it absolute, without user, fragment, dot segments or a `/` at its end",
        "参数中的 URL 可能指向别的地址；请写成绝对 URL，不含用户名、片段、点路径段，末尾不带 `/`",
    ),
    # semantic
    "rule_error": (
        "the rule {name} could not be evaluated, so the call is refused; tell the policy's author",
        "规则 {name} 无法求值，因此拒绝本次调用；请告知策略作者",
    ),
    "fact_unavailable": (
        "what this call depends on could not be read just now; send the same call again in a moment",
        "暂时无法读取本次调用所依赖的数据；请稍后原样重发",
    ),
    # sandbox
    "over_blast_radius": (
        "the call would change more than it may: {number} rows {verb} in {table}, at most {most} are allowed",
        "本次调用的影响超出允许范围：{table} 中有 {number} 行将被{verb}，最多允许 {most} 行",
    ),
    "rows_inserted": ("inserted", "插入"),
    "rows_updated": ("updated", "更新"),
    "rows_deleted": ("deleted", "删除"),
    "invariant_broken": ("the call would break the invariant {name}", "本次调用会破坏不变量 {name}"),
    "invariant_error": (
        "the invariant {name} could not be evaluated, so the call is refused",
        "不变量 {name} 无法求值，因此拒绝本次调用",
    ),
    "sandbox_busy": (
        "the effects could not be tried just now because the data is in use; send the same call again in a moment",
        "数据正被占用，暂时无法试运行本次调用；请稍后原样重发",
    ),
    "sandbox_failed": (
        "trying the call failed (SQLSTATE {state}); the call would not have worked",
        "试运行失败（SQLSTATE {state}），本次调用无法成功执行",
    ),
    "sandbox_failed_at": (
        "trying the call failed at {place} (SQLSTATE {state}); the call would not have worked",
        "试运行在 {place} 处失败（SQLSTATE {state}），本次调用无法成功执行",
    ),
    "sandbox_unpredicted": (
        "what the call would do could not be predicted, so it is refused; tell the policy's author",
        "无法预测本次调用的影响，因此拒绝；请告知策略作者",
    ),
    # risk
    "no_threshold": (
        "no threshold applies to this call, so it is refused; the policy needs one",
        "没有适用于本次调用的风险阈值，因此拒绝；策略中需要设定阈值",
    ),
    "risk_error": (
        "the risk factor {name} could not be computed, so the call is refused",
        "风险因子 {name} 无法计算，因此拒绝本次调用",
    ),
    "risk_too_high": ("the risk of this call is too high; it can't be approved", "本次调用的风险过高，不能提交审批"),
    "needs_human_review": ("a person has to approve this call; wait for the answer", "本次调用需要人工审批；请等待结果"),
    # holds
    "over_what_is_left": ("{wanted} is more than what is left there: {left}", "{wanted} 超出了剩余额度 {left}"),
    "hold_error": ("the hold {name} could not be computed, so the call is refused", "预留项 {name} 无法计算，因此拒绝本次调用"),
    "hold_without_name": (
        "the account to hold on could not be named from the arguments, so the call is refused",
        "无法根据参数确定要预留额度的账户，因此拒绝本次调用",
    ),
    "over_budget_ask": ("{found}; a person has to approve this call", "{found}；本次调用需要人工审批"),
    # what the model is told to do next
    "next_as_suggested": ("call {tool} again with the arguments changed as suggested", "请按建议的参数重新调用 {tool}"),
    "next_corrected": ("call {tool} again with what the hint names corrected", "请根据 fix_hint 调整参数后重新调用 {tool}"),
    "next_again_after": ("wait {ms} ms, then call {tool} again", "请等待 {ms} 毫秒后重新调用 {tool}"),
    "next_again_later": ("wait a moment, then call {tool} again", "请稍后重新调用 {tool}"),
    "next_call_first": ("call {tool} first", "请先调用 {tool}"),
    "next_prerequisite": ("make the call that this one depends on first", "请先完成本次调用所依赖的调用"),
    "next_same_after": ("wait {ms} ms, then send the same call again", "请等待 {ms} 毫秒后原样重发本次调用"),
    "next_same_later": ("wait a moment, then send the same call again", "请稍后原样重发本次调用"),
    "next_wait_for_approval": (
        "wait for the answer to the approval, then send the same call again",
        "请等待审批结果，然后原样重发本次调用",
    ),
    "next_meta_request": ("ask for what is missing with a meta-request", "请用元请求申请所缺的内容"),
    "next_stop": ("stop and tell the user", "请停止并告知用户"),
    "the_tool": ("the tool", "该工具"),
    # problems; what is `request_…` follows the place
    "key_needed": ("a valid key is needed", "需要有效的密钥"),
    "role_needed": ("the key may not do this", "该密钥无权执行此操作"),
    "too_many_requests": ("too many requests; send the same call again later", "请求过多；请稍后原样重发本次调用"),
    "no_decision": (
        "no decision could be made; treat it as refused and send the same call again",
        "未能作出决定；请按拒绝处理，并原样重发本次调用",
    ),
    "request_missing": ("this field is required", "缺少该字段"),
    "request_unknown": ("this field is unknown", "未知字段"),
    "request_unknown_tenant": ("this field is unknown; the key names the tenant", "未知字段；租户由密钥决定"),
    "request_not_yet": ("this field isn't supported by this version", "当前版本不支持该字段"),
    "request_boolean": ("must be true or false", "必须为 true 或 false"),
    "request_string": ("must be a string", "必须是字符串"),
    "request_integer": ("must be an integer", "必须是整数"),
    "request_object": ("must be an object", "必须是对象"),
    "request_object_not_text": (
        "must be an object, not text that holds one; send the object itself",
        "必须是对象，而不是包含对象的文本；请直接发送对象",
    ),
    "request_list": ("must be a list", "必须是列表"),
    "request_uuid": ("must be the text of a UUID", "必须是 UUID 文本"),
    "request_unseen": ("must have no control, format or invisible characters", "不得含有控制字符、格式字符或不可见字符"),
    "request_null": ("must not be null; leave the field out", "不得为 null；请去掉该字段"),
    "request_null_kind": ("must not be null; {found}", "不得为 null；{found}"),
    "request_null_other": ("must not be null; leave it out", "不得为 null；请去掉"),
    "request_tool": (
        "must be a tool's name: 1 to 128 of A-Z, a-z, 0-9, `_`, `.` and `-`",
        "必须是工具名：1 到 128 个字符，限 A-Z、a-z、0-9、`_`、`.` 和 `-`",
    ),
    "request_locale": (
        "must be a language tag (BCP 47) of 1 to 35 characters, such as `en` or `zh-CN`",
        "必须是 1 到 35 个字符的语言标签（BCP 47），例如 `en` 或 `zh-CN`",
    ),
    "request_mode": ("isn't supported by this version; leave it out or send `enforce`", "当前版本不支持；请去掉或发送 `enforce`"),
    "request_at_least": ("must be {value} or more", "不得小于 {value}"),
    "request_at_most": ("must be {value} or less", "不得大于 {value}"),
    "request_empty": ("must not be empty", "不得为空"),
    "request_too_short": ("must have at least {value}", "长度不得小于 {value}"),
    "request_too_long": ("must have at most {value} characters", "最多 {value} 个字符"),
    "request_too_many": ("must have at most {value} entries", "最多 {value} 项"),
    "request_too_many_fields": ("must have at most {value} fields", "最多 {value} 个字段"),
    "request_query": ("this route has the parameter `format` only, once", "该接口只有参数 `format`，且只能出现一次"),
    "request_one_of": ("must be one of {value}", "必须是以下之一：{value}"),
    "request_pattern": ("must match the pattern `{value}`", "必须符合模式 `{value}`"),
    "request_form": ("has the wrong form", "格式不正确"),
}


def is_tag(text: str) -> bool:
    """Say whether a text has the form of a language tag."""
    return len(text) <= TAG_LENGTH_MAX and _FULL_TAG.fullmatch(text) is not None


@lru_cache(maxsize=256)
def locales_of(tag: str | None) -> Locales:
    """Give the locales to try for a language tag: itself, then it shortened from its end (RFC 4647, 3.4), then English.

    What isn't a tag, or none, is English. Case doesn't matter: `ZH-cn` is `zh-CN`.
    """
    if tag is None or not is_tag(tag):
        return ENGLISH
    parts = _cased(tag.lower().split("-"))
    found = ("-".join(parts[:length]) for length in range(len(parts), 0, -1))
    return tuple(dict.fromkeys((*(each for each in found if each != DEFAULT), DEFAULT)))


def say(locales: Locales, sentence: str, **values: object) -> str:
    """Give a sentence by its name, in the first locale of `locales` that is built in."""
    return _SENTENCES[sentence][_language(locales)].format(**values)


def language_of(locales: Locales) -> str:
    """Give the language of what `say` says."""
    return BUILT_IN[_language(locales)]


def joined(locales: Locales, sentences: Iterable[str]) -> str:
    """Put sentences behind each other."""
    return _JOINS[_language(locales)].join(sentences)


def either(locales: Locales, words: Iterable[str]) -> str:
    """Give words as a choice: `string or null`."""
    return _ORS[_language(locales)].join(words)


def chosen(texts: Mapping[str, _T], locales: Locales) -> _T:
    """Give an author's text in the first locale of `locales` that it has; every text has one in English."""
    return next(texts[tag] for tag in locales if tag in texts)


def _language(locales: Locales) -> int:
    return next(BUILT_IN.index(tag) for tag in locales if tag in BUILT_IN)


def _cased(parts: list[str]) -> list[str]:
    """Write subtags in lower case as RFC 5646 does (2.1.1): a region in capitals, a script with one, all small behind a single letter."""
    single = next((index for index, part in enumerate(parts) if len(part) == 1), len(parts))
    return [_cased_subtag(part) if 0 < index < single else part for index, part in enumerate(parts)]


def _cased_subtag(part: str) -> str:
    if not part.isalpha():
        return part
    return part.upper() if len(part) == 2 else part.title() if len(part) == 4 else part
