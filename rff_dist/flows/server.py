"""The Prefect server that Prefect's settings name: the environment, or a profile.

`check_server` asks it for a sign of life, so that a flow fails before its work if the
server does not answer, with an error that names the address.
"""

import ssl
import urllib.error
import urllib.request

from prefect.settings import get_current_settings

from rff_dist.errors import ClusterUnavailableError
from rff_dist.text import redact

CONNECT_S = 6.0  # to wait for the server, as long as for a Dask scheduler


def find_server() -> tuple[str | None, bool]:
    """Return the server's URL, and whether this process authenticates to it.

    Without a URL, None, flows start a server themselves.
    """
    api = get_current_settings().api
    return api.url, bool(api.auth_string or api.key)


def check_server() -> None:
    """Raise ClusterUnavailableError if a server is named and does not answer."""
    url, _ = find_server()
    if url is None:
        return
    try:
        urllib.request.urlopen(f"{url}/health", timeout=CONNECT_S).close()
    except urllib.error.HTTPError:
        return  # an answer, if only that it wants authentication
    except OSError as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLError):
            return  # its certificate may be one that Prefect's settings accept
        raise ClusterUnavailableError(
            f"no Prefect server answers at {redact(url)} ({error}); start it, or unset"
            " PREFECT_API_URL, so that the flow starts its own"
        ) from error
