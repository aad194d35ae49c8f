"""Access tokens and keys: a type that never shows its value, and masks for what records contain.

A secret is recognized by its type, by the name before it, by the environment, by what logs in (a password in a URL,
the header of a request), or by its form: the prefix of the few issuers of whom a run may hold a token, followed by
enough characters that words and random bytes do not match. Older keys of Weights & Biases are 40 hexadecimal digits,
like a git commit; they are recognized by the name before them. A push searches files for tokens of many more issuers
(`hub.secret_scan`).
"""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError

MASK = "<SECRET>"

MIN_SECRET_LENGTH = 8
"""Minimum length of the value of a secret variable. Shorter values may be words and are ignored."""

_SECRET_NAMES = (
    r"(?:hub|hf|auth|access|api|refresh|bearer|session)[_-]?token"
    r"|(?:api|access|private|secret|account|auth|encryption|signing)[_-]?key"
    r"|secret|password|passwd|passphrase|pwd|web[_-]?hook(?:[_-]?url)?"
)
"""Regular expression of the ends of names whose values are secrets."""

_SECRET_NAME = re.compile(rf"(?:^|[_-])(?:{_SECRET_NAMES})$|^token$", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(rf"(?:^|_)(?:{_SECRET_NAMES}|token)$", re.IGNORECASE)

_FORM = re.compile(
    r"\b(?:hf|api_org|wandb_v1|gh[oprsu]|github_pat)_[A-Za-z0-9_]{20,}"  # the Hub, Weights & Biases, GitHub
    r"|\b(?:gl[a-z]{2,4}|sk|xox[a-z])-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_.-]{20,}"  # GitLab, models by subscription, Slack
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
)
_LOGIN = re.compile(
    r"(\b[a-z][a-z0-9+.-]*://[^\s/:@\"'`<>{}$*]*:)([^\s/@\"'`<>{}$*]+)(?=@[\w\[])",
    re.IGNORECASE,
)
"""Regular expression of a URL with a password; its second group is the password."""

_GIVEN: set[str] = set()  # values of the secret settings of this process, whatever they look like
_HEADER = re.compile(
    r"(?i)((?:authorization|x-[a-z-]*(?:key|token))[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?|\bbearer\s+(?=\S*[0-9]))"
    r"([^\s\"'<]{8,})"
)
# In any text: what logs in, or opens a web hook, in addresses.
_IN_ADDRESSES = (
    re.compile(r"(\w:/{1,2})[^\s/@]+@"),  # one slash in what became a path
    re.compile(r"(?i)(https?://[^\s/]*\b(?:hooks?|webhooks?)\b[^\s/]*/)[^\s\"'<]+"),
    re.compile(rf"(?i)([?&;](?:[\w-]*[_-])?(?:{_SECRET_NAMES}|token|signature|sig)=)[^\s&\"'<]+"),
)
# In the words of a command: also the value after a name, whatever it looks like.
_IN_WORDS = (
    re.compile(rf"(?i)((?:^|[^a-z])(?:{_SECRET_NAMES}|token)[\"']?\s*[:=]\s*[\"']?)(?:bearer\s+)?[^\s\"'<]+"),
    *_IN_ADDRESSES,
)


class Secret(str):
    """A secret in settings. As text it is its name in angle brackets: printed, formatted, in JSON and in YAML.

    Only [`reveal`] returns the value. A copy within this process keeps it; read from a pickle it is `None`.

    Args:
        value (`str`): the value.
        name (`str`): the name of the setting.

    ```python
    >>> import json
    >>> token = Secret("mine", "hub_token")
    >>> print(token, repr(token), json.dumps([token]), token.reveal())
    <HUB_TOKEN> '<HUB_TOKEN>' ["<HUB_TOKEN>"] mine

    ```
    """

    __slots__ = ("_value",)

    def __new__(cls, value: str, name: str) -> "Secret":
        secret = super().__new__(cls, _mask_of(name))
        secret._value = value.reveal() if isinstance(value, Secret) else value
        return secret

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __deepcopy__(self, _memo: dict | None = None) -> "Secret":
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> tuple:
        return type(None), ()


def _mask_of(name: str) -> str:
    return f"<{name.upper()}>"


def reveal(value: str | None) -> str | None:
    """The value of a [`Secret`]; anything else as it is."""
    return value.reveal() if isinstance(value, Secret) else value


def refuse_masks(settings: Mapping[str, Any], where: str = "settings") -> None:
    """Refuse settings that have a mask in place of a secret, as records have.

    Raises:
        `InputError`: names the setting.
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            refuse_masks(value, where)
        elif not isinstance(value, Secret) and value == _mask_of(str(name)):
            raise InputError(
                f"{where}: {name} is {value}, which records have in place of a secret; give the secret, or leave "
                f"{name} out"
            )


def remember(settings: Any, name: str = "") -> None:
    """Let [`masked`] mask the values of secret settings wherever they stand, and the passwords in addresses.

    Args:
        settings: mappings and lists of any type.
        name (`str`, *optional*): the name of the setting.
    """
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            remember(value, str(key))
    elif isinstance(settings, list | tuple | set):
        for value in settings:
            remember(value, name)
    else:
        text = str(reveal(settings))
        found = [text] if is_secret_name(name) else [match[2] for match in _LOGIN.finditer(text)]
        _GIVEN.update(secret for secret in found if len(secret) >= MIN_SECRET_LENGTH and secret != _mask_of(name))


def remember_words(words: Sequence[str]) -> None:
    """[`remember`] the values of flags."""
    for word, following in itertools.pairwise([*words, ""]):
        flag, equals, value = word.partition("=")
        remember({flag.lstrip("-").replace("-", "_"): value if equals else following, "": word})


def known_secrets(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The values of environment variables whose names mean secrets, such as `HF_TOKEN`.

    ```python
    >>> known_secrets({"WANDB_API_KEY": "0123456789", "TOKENIZERS_PARALLELISM": "false"})
    ['0123456789']

    ```
    """
    secrets = {value.strip() for name, value in environment.items() if name != "PWD" and _SECRET_VARIABLE.search(name)}
    return sorted(value for value in secrets if len(value) >= MIN_SECRET_LENGTH)


def masked(value: Any, secrets: Sequence[str] | None = None) -> Any:
    """A copy of strings, lists and mappings with secrets masked, by key, by form and by the environment.

    ```python
    >>> masked({"hub_token": "mine", "run_name": "hf_abcdefghijklmnopqrstuvwxyz", "eos_token": "<|end|>"})
    {'hub_token': '<HUB_TOKEN>', 'run_name': '<SECRET>', 'eos_token': '<|end|>'}

    ```
    """
    secrets = [*known_secrets(), *_GIVEN] if secrets is None else secrets
    if isinstance(value, Secret):
        return str(value)
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK)
        value = _LOGIN.sub(rf"\1{MASK}", _HEADER.sub(rf"\1{MASK}", value))
        return _FORM.sub(MASK, value)
    if isinstance(value, Mapping):
        return {
            key: _mask_of(str(key)) if part and is_secret_name(str(key)) else masked(part, secrets)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(part, secrets) for part in value]
    return value


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """The words of a command line with secrets masked: values of flags such as `--hub_token` and of variables such as
    `HF_TOKEN=`, also within a word, passwords in addresses, paths of web hooks, and those of [`masked`].

    ```python
    >>> masked_arguments(["--hub_token", "mine", "--hub-token=mine", "--seed", "1"])
    ['--hub_token', '<HUB_TOKEN>', '--hub-token=<HUB_TOKEN>', '--seed', '1']

    ```
    """
    return [_masked_argument(before, argument) for before, argument in itertools.pairwise(["", *arguments])]


def _masked_argument(before: str, argument: str) -> str:
    (flag, equals, _), (flag_before, equals_before, _) = argument.partition("="), before.partition("=")
    if not equals_before and (name := _secret_flag(flag_before)):
        return _mask_of(name)
    if equals and (name := _secret_flag(flag)):
        return f"{flag}={_mask_of(name)}"
    return _masked_words(argument)


def _secret_flag(flag: str) -> str | None:
    name = flag.lstrip("-").replace("-", "_")
    return name if flag.startswith("--") and is_secret_name(name) else None


def masked_line(text: str) -> str:
    """A text for people with secrets masked, as of [`masked`], and with what logs in or opens a web hook in addresses.

    ```python
    >>> masked_line("https://mine@host/corpus: no such file")
    'https://<SECRET>@host/corpus: no such file'

    ```
    """
    return _masked_words(text, _IN_ADDRESSES)


def _masked_words(text: str, patterns: Sequence[re.Pattern] = _IN_WORDS) -> str:
    for pattern in patterns:
        text = pattern.sub(lambda match: f"{match[1]}{MASK}" + ("@" if match[0].endswith("@") else ""), text)
    return masked(text)


def is_secret_name(name: str) -> bool:
    """Whether values of this name are secrets.

    ```python
    >>> is_secret_name("hub_token"), is_secret_name("eos_token")
    (True, False)

    ```
    """
    return _SECRET_NAME.search(name) is not None
