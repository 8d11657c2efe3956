"""Clients of Google Cloud, and what their errors mean by type: whether a retry may succeed, and what to do otherwise.

An error is never read as text, and never taken for an answer: a proxy, a login page or a missing credentials file can
produce any message. Sources of the types: google.rpc.Code, google.rpc.ErrorInfo and QuotaFailure
(googleapis/google/rpc); google.api_core.exceptions; google.auth.exceptions.

Requires Python 3.10, google-cloud-tpu and google-cloud-storage.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any

from shell import CommandFailed

TIMEOUT_SECONDS = 60.0  # of one request
RETRY_SECONDS = 60.0  # of repeated requests, before a call fails as transient
# The address of another Cloud TPU API, as gcloud reads it. http:// needs no credentials.
ENDPOINT = "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"
INSTALL = "pip install google-cloud-tpu google-cloud-storage -c constraints.txt"

LOGIN_ADVICE = (
    "Run `gcloud auth application-default login` in another terminal. A service account does not have to log in again "
    "(docs/tpu_vm.md, The watcher)"
)
QUOTA_ADVICE = (
    "Request quota for these chips in this zone (console.cloud.google.com/iam-admin/quotas), or choose another zone or "
    "a smaller slice. Spot and on-demand capacity have separate quotas"
)
OPTIONS_ADVICE = (
    "Correct the option that the message is about: --topology, --zone, --runtime_version, --network, --subnetwork, "
    "--service_account or --reservation"
)
# Codes of google.rpc.Code that a retry repeats, and what to do.
PERMANENT = {
    3: OPTIONS_ADVICE,  # INVALID_ARGUMENT
    5: OPTIONS_ADVICE,  # NOT_FOUND, of something that an option names
    6: "Choose another name, or delete what has this name",  # ALREADY_EXISTS
    7: (  # PERMISSION_DENIED
        "Check --project and --zone, run `gcloud services enable tpu.googleapis.com compute.googleapis.com`, and ask "
        "for roles/tpu.admin and roles/storage.objectAdmin"
    ),
    9: "A policy or the state of the project rejects the request: ask its administrator",  # FAILED_PRECONDITION
    12: OPTIONS_ADVICE,  # UNIMPLEMENTED
}
RESOURCE_EXHAUSTED, UNAUTHENTICATED = 8, 16
# Codes of HTTP for an error without one of google.rpc.Code.
HTTP_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 412: 9, 501: 12}


class TransientFailure(CommandFailed):
    """A call failed but may succeed when retried: no capacity, an outage of service or network, an invalid answer."""


class LoginExpired(TransientFailure):
    """A call failed because nobody is logged in, or the session has expired."""


class AlreadyExists(CommandFailed):
    """A resource was not created because one of this name exists, or is still being deleted."""


class NotFound(CommandFailed):
    """A call failed because something was not found. It says nothing about what: see `queued.QueuedResource.state`."""


class Changed(CommandFailed):
    """An object was not written because it is not the one that was read."""


@dataclasses.dataclass(frozen=True)
class Clients:
    """Clients with the credentials of the user or of the VM.

    Attributes:
      tpu: A `tpu_v2.TpuClient` with the REST transport.
      storage: A `storage.Client`.
      credentials: Their credentials.
      project: The project of the credentials, or None.
      endpoint: Address of the Cloud TPU API.
    """

    tpu: Any
    storage: Any
    credentials: Any
    project: str | None
    endpoint: str


def connect(project: str | None) -> Clients:
    """Returns clients, without a request.

    Args:
      project: The project that the user gives.

    Raises:
      LoginExpired: There are no credentials.
      CommandFailed: The packages are missing.
    """
    try:
        import google.auth
        import google.cloud.storage as storage
        import google.cloud.tpu_v2 as tpu_v2
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
    except ImportError as error:
        raise CommandFailed(f"{error.name} not found for {sys.executable}. Run `{INSTALL}`.") from None
    endpoint = os.environ.get(ENDPOINT, "").rstrip("/") or "https://tpu.googleapis.com"
    credentials, default = AnonymousCredentials(), os.environ.get("GOOGLE_CLOUD_PROJECT")
    if not endpoint.startswith("http://"):
        with errors("no credentials of Google Cloud"):
            credentials, default = google.auth.default(["https://www.googleapis.com/auth/cloud-platform"])
    options = ClientOptions(api_endpoint=endpoint)
    return Clients(
        tpu_v2.TpuClient(credentials=credentials, transport="rest", client_options=options),
        storage.Client(project=project or default or "none", credentials=credentials),
        credentials,
        project or default,
        endpoint,
    )


def retry():
    """Returns the policy for requests that may be repeated: outages of the service and of the network, with delays."""
    from google.api_core import exceptions, retry
    from requests import exceptions as requests_exceptions

    outages = (
        exceptions.TooManyRequests,
        exceptions.InternalServerError,
        exceptions.BadGateway,
        exceptions.ServiceUnavailable,
        exceptions.GatewayTimeout,
        requests_exceptions.ConnectionError,
        requests_exceptions.Timeout,
    )
    return retry.Retry(retry.if_exception_type(*outages), initial=1.0, maximum=15.0, timeout=RETRY_SECONDS)


@contextlib.contextmanager
def errors(summary: str) -> Iterator[None]:
    """Raises the errors of a call of a client as the types of this module.

    Args:
      summary: What fails, for the message.

    Raises:
      TransientFailure: A retry may succeed.
      LoginExpired: A retry succeeds after a login.
      AlreadyExists, NotFound, Changed: The API's answer.
      CommandFailed: A retry fails in the same way. The message says what to do.
    """
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    try:
        yield
    except CommandFailed:
        raise
    except api.GoogleAPICallError as error:
        raise _failure(summary, error) from error
    except api.RetryError as error:  # has the last error
        with errors(summary):
            raise error.cause or TransientFailure(f"{summary}: {error}") from error
    except auth.TransportError as error:
        raise TransientFailure(f"{summary}: {error}") from error
    except auth.GoogleAuthError as error:
        raise LoginExpired(f"{summary}: {_sentence(error)} {LOGIN_ADVICE}.") from error
    # The clients raise many types for a connection that breaks and for an answer that is cut off or not of the API:
    # of requests, urllib3, http.client, protobuf and json, also AttributeError for JSON of another shape.
    except Exception as error:
        raise TransientFailure(f"{summary}: {type(error).__name__}: {error}") from error


def _failure(summary: str, error: Any) -> CommandFailed:
    """Returns the error for an answer with an error."""
    from google.api_core import exceptions as api

    answer = _answer(error)
    if answer is None:  # of a proxy, or of another server
        return TransientFailure(f"{summary}: HTTP {error.code}, not an answer of the API: {_sentence(error)}")
    text = f"{summary}: {_sentence(answer.get('message') or error)}"
    if isinstance(error, api.PreconditionFailed):
        return Changed(text)
    if isinstance(error, api.AlreadyExists) or answer.get("status") == "ALREADY_EXISTS":
        return AlreadyExists(f"{text} {PERMANENT[6]}.")
    if isinstance(error, api.NotFound):
        return NotFound(f"{text} {PERMANENT[5]}.")
    if isinstance(error, api.Unauthenticated | api.Unauthorized):
        return LoginExpired(f"{text} {LOGIN_ADVICE}.")
    code = RESOURCE_EXHAUSTED if isinstance(error, api.TooManyRequests) else HTTP_CODES.get(int(error.code or 0), 0)
    return classify(text, code, answer.get("details") or [])


def classify(text: str, code: int, details: list) -> CommandFailed:
    """Returns the error for a code, transient or permanent; a permanent one says what to do.

    Args:
      text: The message so far, a sentence.
      code: The code, of google.rpc.Code.
      details: The field `details` of google.rpc.Status as JSON objects.
    """
    kinds = {str(item.get("@type")).rpartition(".")[2]: item for item in details if isinstance(item, dict)}
    reason = kinds.get("ErrorInfo", {}).get("reason")
    if code == UNAUTHENTICATED:
        return LoginExpired(f"{text} {LOGIN_ADVICE}.")
    if code == RESOURCE_EXHAUSTED:
        # A rate limit of calls and a lack of capacity pass; a quota of chips does not.
        if reason != "RATE_LIMIT_EXCEEDED" and (reason == "QUOTA_EXCEEDED" or "QuotaFailure" in kinds):
            return CommandFailed(f"{text} {QUOTA_ADVICE}.")
        return TransientFailure(f"{text} If this repeats: {QUOTA_ADVICE}.")
    if code in PERMANENT:
        return CommandFailed(f"{text} {PERMANENT[code]}.")
    return TransientFailure(text)


def _answer(error: Any) -> dict | None:
    """Returns the error object of Google's APIs, or None if the response has another form."""
    try:
        body = error.response.json()
    except (AttributeError, ValueError):
        return None
    answer = body.get("error") if isinstance(body, dict) else None
    # Cloud Storage has `errors` in the place of `status`.
    return answer if isinstance(answer, dict) and answer.get("code") and answer.keys() & {"status", "errors"} else None


def _sentence(message: Any) -> str:
    text = str(message).strip()
    return text if text.endswith(".") else f"{text}."
