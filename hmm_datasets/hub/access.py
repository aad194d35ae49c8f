"""Access to the Hub: its address and the token."""

from ..errors import InputError


def token_of(token: str | None) -> str:
    """The given token, or that of huggingface_hub.

    Raises:
        [`InputError`]: there is none.
    """

    from huggingface_hub import get_token

    token = token or get_token()
    if not token:
        raise InputError(
            "no token for the Hub: set HF_TOKEN to a token with write access, or run `hf auth login` "
            "(tokens are made at https://huggingface.co/settings/tokens)"
        )
    return token


def endpoint_of(endpoint: str | None) -> str:
    """The given address of the Hub, or that of huggingface_hub, without a slash at the end.

    Raises:
        [`InputError`]: it is not an http address.
    """
    from huggingface_hub import constants

    endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        raise InputError(f"endpoint is {endpoint!r}, expected an address such as https://huggingface.co")
    return endpoint
