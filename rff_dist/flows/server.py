"""The Prefect server that the settings name: the environment, or a profile."""

import ssl
import urllib.error
import urllib.request

from prefect.settings import get_current_settings

from rff_dist.errors import ClusterUnavailableError
from rff_dist.text import redact

CONNECT_S = 6.0  # for the server's answer, as long as for a Dask scheduler's


def find_server() -> tuple[str | None, bool]:
    """Return the server's URL, None if flows start their own, and whether this process
    authenticates.
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
        return  # it answers, as authentication makes it
    except OSError as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLError):
            return  # of an authority that Prefect's settings may know
        raise ClusterUnavailableError(
            f"no Prefect server answers at {redact(url)} ({error}); start it, or unset"
            " PREFECT_API_URL, so that the flow starts its own"
        ) from error
