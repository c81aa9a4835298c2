"""Check whether the Hugging Face Hub can be reached; its client would retry for 23 s and print each try."""

from __future__ import annotations

_TIMEOUT = 5.0  # seconds


def unreachable() -> str | None:
    """Return why the Hub does not answer a request; `None` if it answers, whatever the answer."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of httpx or httpx2

    try:
        get_session().head(constants.ENDPOINT, timeout=_TIMEOUT)
    except (HTTPError, OSError) as error:
        return str(error) or type(error).__name__
    return None
