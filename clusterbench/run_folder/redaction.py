"""What must not be written down: one list of names, and the forms in which secrets are written.

A secret is told by its name (``WANDB_API_KEY``), by its form (a token as GitHub issues it, ``user:password@`` in an
address, a header ``Authorization``), or, under a name that says nothing, by looking random. Identifiers look
random, too: UUID, GUID, GID, MAC and PCI address, serial number and digest are never taken for a secret.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from urllib.parse import quote

REMOVED = "[removed]"
FROM_ENVIRONMENT = "from environment"
"""What a suite writes as the value of a variable that its ranks take from where clusterbench was started."""

_SHORTEST_SECRET = 8  # a shorter value is found in every other word
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZ|S)|SECRET|(?<!BY)(?<!COM)PASS(?!IVE|ES|ED|ING|THROUGH)|PWD|CREDENTIAL|AUTH(?!OR(?!I[SZ]))|JWT|BEARER"
    r"|COOKIE|(?<![A-Z0-9])PW(?![A-Z0-9])|(?<![PQRL])KEY(?!BOARD|MAP|FRAME)|(?<=[A-Z][PQRL])KEY",
    re.IGNORECASE,
)
_PLACE_NAME = re.compile(r"(OLD)?PWD|\w*AUTHORITY|\w+_(FILE|PATH|DIR|SOCK)", re.IGNORECASE)
"""Names of variables that say where a secret is, or where one stands, and hold none."""
_ISSUED = tuple(
    re.compile(form)
    for form in (
        *(r"hf_(?<!\whf_)[A-Za-z0-9]{30,}", r"gh[pousr]_(?<!\wgh\w_)[A-Za-z0-9]{36,}", r"github_pat_[A-Za-z0-9_]{22,}"),
        *(r"glpat-[A-Za-z0-9_-]{20,}", r"AKIA(?<!\wAKIA)[0-9A-Z]{16}\b", r"ASIA(?<!\wASIA)[0-9A-Z]{16}\b"),
        *(r"sk-(?<!\wsk-)[A-Za-z0-9_-]{20,}", r"xox[abprs]-[A-Za-z0-9-]{10,}", r"npm_[A-Za-z0-9]{36}"),
        *(r"dckr_pat_[A-Za-z0-9_-]{20,}", r"hvs\.[A-Za-z0-9_-]{20,}", r"hooks\.slack\.com/services/[A-Za-z0-9/]{20,}"),
        *(r"pypi-[A-Za-z0-9_-]{50,}", r"AIza[A-Za-z0-9_-]{35}", r"nvapi-[A-Za-z0-9_-]{40,}"),
        *(r"api_org_[A-Za-z0-9]{30,}", r"gsk_(?<!\wgsk_)[A-Za-z0-9]{40,}", r"r8_(?<!\wr8_)[A-Za-z0-9]{37,}"),
        *(r"dapi(?<!\wdapi)[0-9a-f]{32}", r"ya29\.(?<!\wya29\.)[A-Za-z0-9_-]{30,}", r"gl(?:rt|dt|cbt|ptt)-[\w-]{20,}"),
        *(r"SG\.(?<!\wSG\.)[\w-]{16,}\.[\w-]{16,}", r"xapp-\d-[A-Za-z0-9-]{10,}", r"tskey-[a-z]+-[A-Za-z0-9-]{16,}"),
        *(r"sk_live_[A-Za-z0-9]{20,}", r"rk_live_[A-Za-z0-9]{20,}", r"dop_v1_[0-9a-f]{64}", r"ATATT3x[\w=-]{40,}"),
        r"AGE-SECRET-KEY-1[0-9A-Z]{50,}",
        r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]*-----END [A-Z ]*PRIVATE KEY-----)?",
    )
)
"""Tokens of Hugging Face, GitHub, GitLab, Amazon, OpenAI, Slack, npm, Docker, Vault, PyPI, Google, NVIDIA, Groq,
Replicate, Databricks, SendGrid, Tailscale, Stripe, DigitalOcean and Atlassian, and JWT; private keys.

Each begins with its letters, as a search for letters is a hundred times faster than one for a place between words.
"""
_VALUE = (
    r"""(?:\b[bru](?=["']))?(?P<quote>\\{0,7}["'])?(?P<value>(?(quote)(?:(?!(?<!\\)(?P=quote)).)+|[^\s"'<>&,;)\]}]+))"""
)
_NAMED = (
    r"(?:token|secret|passwo?r?d|passphrase|pwd|(?<=--)pass|credentials?|(?<![a-z])auth|jwt|bearer|cookie"
    r"|(?:api|access|private|secret|encryption|signing|ssh|account)[_-]?key|(?<=[a-z0-9]{3}[_-])key|[?&](?:sig|x-amz-signature))"
)
_BY_NAME = re.compile(
    rf"""(?P<name>{_NAMED})(?P<is>\\{{0,7}}["']?(?:\s?[=:]\s?|(?<=["'])\s*:\s*))""" + _VALUE, re.IGNORECASE
)
_BY_OPTION = re.compile(rf"""(?P<name>(?<!\S)--?[a-z-]*{_NAMED})(?P<is>["']?\s+)(?!-){_VALUE}""", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?<![A-Za-z0-9_])(?P<name>[A-Z][A-Z0-9_]{2,63})"
    r"(?P<is>=|\\{0,7}[\"'](?:\s*:|\]\s*=)\s*| set (?:by environment )?to )" + _VALUE
)
_SET = re.compile(r"(?P<name>(?:(?<=-genv )|(?<=-env )|(?<=setenv ))[A-Z][A-Z0-9_]{2,63})(?P<is>\s+)(?!-)" + _VALUE)
"""A variable and its value as two words: options of MPICH's mpiexec, and the C shell."""
_WORD = re.compile(
    r"(?:token|secret|passwo?r?d|phrase|pwd|pass|credentials?|auth|jwt|bearer|cookie|key|sig|signature)[\"'\\]*\s*[=:]"
)
"""What a text has to hold for a search by name to find anything; in lower case it is found ten times faster."""
_USER = re.compile(r"(?P<kept>(?<!\S)(?:-u|--user|--proxy-user)[ =]['\"]?)(?!\d+:\d+\b)[^\s:'\"]+:[^\s'\"]+")
_NETRC = re.compile(r"(?P<kept>\blogin(?:\s|\\n)+[^\s\\]+(?:\s|\\n)+password(?:\s|\\n)+)[^\s\\\"'<>]+")
_LOGIN = re.compile(r"(?P<kept>\b(?:wandb login(?: --relogin)?|sshpass -p) ?['\"]?)(?!-)[^\s'\"]+")
_HEADER = re.compile(r"(?P<kept>\b(?:(?:proxy-)?authorization|(?:set-)?cookie)\s?:\s?)[^\r\n\"'\\]+", re.IGNORECASE)
_BEARER = re.compile(r"(?P<kept>\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_IN_ADDRESS = re.compile(
    r"(?P<kept>\b[a-z][a-z0-9+.-]{0,30}://)[^\s/?#:@\"'\[]*:(?:[^\s/?#\"']+|(?!\d+/)[^\s?#\"'@]{1,128})@", re.IGNORECASE
)
"""A slash may be in what is no port: keys of Amazon's have it."""

_NEEDED = {
    _IN_ADDRESS: ("://",),
    _HEADER: ("authorization", "cookie"),
    _BEARER: ("bearer",),
    _USER: ("-u", "user"),
    _NETRC: ("password",),
    _LOGIN: ("wandb login", "sshpass"),
}
"""What a text has to hold, in lower case, for a pattern to find anything: most hold none."""

_KNOWN_NAME = re.compile(
    r"UUID|GUID|GID|MAC|PCI|BUS|SERIAL|DIGEST|HASH|SHA\d*|MD5|SUM|COMMIT|VERSION|ID|ADDR", re.IGNORECASE
)
_KNOWN_FORM = re.compile(
    r"(?:[A-Z]{3}-){0,2}[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:/\d+){0,2}|0x[0-9a-f]+", re.IGNORECASE
)
"""A UUID with what NVIDIA puts around it, as in ``MIG-GPU-5e3a2c1b-.../1/0``, or a number."""
_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f]{1,8}|[0-9.]{1,12})|true|false|none|null|yes|no", re.IGNORECASE)
_TEXT_OF_A_TOKEN = re.compile(r"[A-Za-z0-9+/=_.~-]{20,}")
_HEXADECIMAL = re.compile(r"[0-9a-f]{32,}")


def is_secret_name(name: str) -> bool:
    """Whether what goes by this name is a secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "UCX_PWD", "NCCL_NET_AUTH", "PGPASSWORD", "AWS_ACCESS_KEY_ID")]
    [True, True, True, True, True]
    >>> [is_secret_name(name) for name in ("PWD", "NCCL_IB_PKEY", "GIT_AUTHOR_NAME", "TOKENIZERS_PARALLELISM")]
    [False, False, False, False]
    """
    return _SECRET_NAME.search(name) is not None and not _PLACE_NAME.fullmatch(name)


def looks_random(name: str, value: str) -> bool:
    """Whether a value looks as if it was drawn, and neither it nor its name is that of an identifier.

    >>> looks_random("CUDA_LICENSE", "q7Zk2VbX9tLm4RwS8pNc"), looks_random("CUDA_PATH", "/opt/nccl-2.18.3-cuda12.1/lib")
    (True, False)
    >>> looks_random("A", "GPU-5e3a2c1b-88d7-4d5e-9f00-1b2c3d4e5f60"), looks_random("COMMIT", "9f86d081884c7d65" * 2)
    (False, False)
    """
    known_name = any(_KNOWN_NAME.fullmatch(word) for word in name.split("_"))
    if known_name or _KNOWN_FORM.fullmatch(value) or not _TEXT_OF_A_TOKEN.fullmatch(value):
        return False
    if _HEXADECIMAL.fullmatch(value):
        return _bits_per_character(value) > 3
    kinds = [_kind(character) for character in value]
    changes = sum(before != after for before, after in pairwise(kinds))
    return {*"aA0"} <= {*kinds} and changes >= 0.4 * len(value) and _bits_per_character(value) > 3.5


def _kind(character: str) -> str:
    if character.isdigit():
        return "0"
    return ("a" if character.islower() else "A") if character.isalpha() else character


def _bits_per_character(text: str) -> float:
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


def redacted_value(name: str, value: str) -> str:
    """The value of a variable as it may be written down; what was taken out is visible.

    >>> redacted_value("UCX_PWD", "s3cret"), redacted_value("TORCH_HOME", "https://u:pw@host/x")
    ('[removed]', 'https://[removed]@host/x')
    >>> redacted_value("WANDB_API_KEY", "from environment"), redacted_value("NCCL_DEBUG", "INFO")
    ('from environment', 'INFO')
    """
    if not value or value == FROM_ENVIRONMENT:
        return value
    if is_secret_name(name) or looks_random(name, value):
        return REMOVED
    return redacted(value)


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """A text as it may be written down: output of a program, a command line, a path, JSON.

    Parameters
    ----------
    secrets
        Values that are secret wherever they stand, see :func:`secrets_of`; the longest first.

    Examples
    --------
    >>> redacted("wandb login --token=8c1f0 at https://u:pw@host/x, GPU-5e3a2c1b")
    'wandb login --token=[removed] at https://[removed]@host/x, GPU-5e3a2c1b'
    """
    for secret in secrets:
        text = text.replace(secret, REMOVED)
    for pattern in _ISSUED:
        text = pattern.sub(_keep, text)
    lowered = text.lower()
    for pattern, needed in _NEEDED.items():
        if any(word in lowered for word in needed):
            text = pattern.sub(_keep, text)
    if _WORD.search(lowered):
        text = _BY_NAME.sub(_keep_name, text)
    text = _BY_OPTION.sub(_keep_name, text)
    text = _SET.sub(_keep_harmless, text)
    return _ASSIGNED.sub(_keep_harmless, text)


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Values of variables with a secret's name, and each as JSON, a page and an address write it; the longest first."""
    values = [value for name, value in environment.items() if is_secret_name(name) and len(value) >= _SHORTEST_SECRET]
    forms = {
        form for value in values for form in (value, json.dumps(value)[1:-1], html.escape(value), quote(value, ""))
    }
    return sorted(forms, key=len, reverse=True)


def set_by_suite(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a case that have their value from the suite."""
    return {name: value for name, value in environment.items() if value != FROM_ENVIRONMENT}


def _keep(found: re.Match[str]) -> str:
    kept = found.groupdict().get("kept") or ""
    return found[0] if found[0][len(kept) :].startswith(REMOVED) else kept + REMOVED + ("@" if "://" in kept else "")


def _keep_name(found: re.Match[str]) -> str:
    is_folder = found["name"].lower() == "pwd" and found["value"].startswith("/")
    return found[0] if is_folder or _is_harmless(found["value"]) else _with(found, REMOVED)


def _keep_harmless(found: re.Match[str]) -> str:
    if not is_secret_name(found["name"]) and not looks_random(found["name"], found["value"]):
        return found[0]
    return found[0] if _is_harmless(found["value"]) else _with(found, REMOVED)


def _is_harmless(value: str) -> bool:
    return value.startswith((REMOVED[:-1], FROM_ENVIRONMENT.split()[0])) or _NUMBER.fullmatch(value) is not None


def _with(found: re.Match[str], value: str) -> str:
    return f"{found['name']}{found['is']}{found['quote'] or ''}{value}"
