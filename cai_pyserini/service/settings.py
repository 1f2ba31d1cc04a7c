"""Settings that all services share."""

from urllib.parse import urlsplit

from pydantic import field_validator

from cai_pyserini.core.flags import API_KEY
from cai_pyserini.core.settings import AnyPath, Settings, flag


class Listening(Settings):
    """Settings of the address and the access control of a service."""

    host: str = flag(
        "127.0.0.1", f"address to listen on; one that other machines reach, such as 0.0.0.0, needs a key in {API_KEY}"
    )
    proxy_authenticates: bool = flag(
        False, "serve other machines without a key, because a proxy in front of this server authenticates users"
    )
    key_file: AnyPath | None = flag(None, f"file with the API key, instead of {API_KEY}")
    public_url: str | None = flag(
        None,
        "URL of this service behind a proxy, such as https://search.example.org/articles/; pages of that site may send "
        "forms here, and the proxy may send its host",
    )
    port: int = flag(8000, "port; 0: any free port", ge=0, le=65535)

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, url: str | None) -> str | None:
        address = url and web_address(url)
        if address and urlsplit(address).path.startswith("/v1/"):
            raise ValueError("its path may not begin with /v1, which is the path of the API")
        return address


def web_address(url: str) -> str:
    """A web address as browsers write it, with / at the end. Raises ValueError for other texts."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError(f"{url!r} should be like https://search.example.org/")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = "" if parts.port in (None, {"http": 80, "https": 443}[parts.scheme]) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}/"
