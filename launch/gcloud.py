"""Calls of gcloud, and what their errors mean: whether a retry may succeed, and what to do otherwise.

Sources of the messages: cloud.google.com/tpu/docs/troubleshooting, pages "troubleshoot-tpu-setup" and "quota";
compute/docs/troubleshooting, page "resource availability"; reports of users on GitHub. Messages are not an interface,
so an unknown one counts as transient: retries are limited, and each is logged with its message.

Requires Python 3.10 and only its standard library.
"""

import json
import re

from shell import CommandFailed, Shell

# Patterns of messages that would otherwise be mistaken for a permanent error: quota of calls, not of chips.
TRANSIENT = r"rate_?limit_?exceeded|per minute"

CORRECT_OPTIONS = (
    "Correct the option that the message is about: --topology, --zone, --runtime_version, --network, --subnetwork, "
    "--service_account or --reservation"
)
# Patterns of permanent errors, and what to do. The first match counts.
PERMANENT = (
    (
        r"quota_exceeded|quota\b[^.\n]*exceeded|exceeded[^.\n]*\bquota|(no|insufficient) quota",
        "Request quota for these chips in this zone (console.cloud.google.com/iam-admin/quotas), or choose another "
        "zone or a smaller slice. Spot and on-demand capacity have separate quotas",
    ),
    (
        r"insufficient reserved capacity",
        "Choose a slice that fits in the reservation, or another kind of capacity: on demand, --spot or --flex_start",
    ),
    (
        r"\[project\] is not currently set|failed to find attribute \[project\]",
        "Add --project, or run `gcloud config set project PROJECT`",
    ),
    (r"billing", "Enable billing for the project, or choose another --project"),
    (
        r"permission_denied|required 'compute\.|permissions_error|service_disabled|has not been used in project",
        "Check --project and --zone, run `gcloud services enable tpu.googleapis.com compute.googleapis.com`, and "
        "ask for roles/tpu.admin and roles/storage.objectAdmin",
    ),
    (r"already[_ ]exists", "Choose another name, or delete what has this name"),
    (r"condition_not_met|constraints/", "A policy of the organization rejects the request: ask its administrator"),
    (r"invalid_|invalid value for field|invalid choice|unrecognized arguments|is not supported", CORRECT_OPTIONS),
)


# An expired login. The job does not depend on it, so the call is retried until somebody has logged in again.
LOGIN = r"active account selected|unauthenticated|invalid_grant|reauthenticat|invalid authentication credentials"
LOGIN_ADVICE = (
    "Run `gcloud auth login` in another terminal. A service account does not have to log in again (docs/tpu_vm.md, "
    "The watcher)"
)


class TransientFailure(CommandFailed):
    """A call failed but may succeed when retried: no capacity, an outage of the service or network, an old login."""


class LoginExpired(TransientFailure):
    """A call failed because nobody is logged in, or the session has expired."""


def failure(summary: str, output: str) -> CommandFailed:
    """Returns the error for a failed call, transient or permanent by its error output; a permanent one says what to do.

    Args:
      summary: What failed.
      output: The error output of gcloud, or the cloud's reason for refusing a request.
    """
    output = output.strip()
    if re.search(LOGIN, output, re.IGNORECASE):
        return LoginExpired(f"{summary}: {output}{'' if output.endswith('.') else '.'} {LOGIN_ADVICE}.")
    if not re.search(TRANSIENT, output, re.IGNORECASE):
        for pattern, advice in PERMANENT:
            if re.search(pattern, output, re.IGNORECASE):
                return CommandFailed(f"{summary}: {output}{'' if output.endswith('.') else '.'} {advice}.")
    return TransientFailure(f"{summary}: {output}")


def is_not_found(output: str) -> bool:
    """Whether the error output of gcloud says that a resource or an object does not exist."""
    return any(text in output for text in ("NOT_FOUND", "not found", "matched no objects"))


def read(shell: Shell, path: str) -> str | None:
    """Returns the content of an object, or of all objects of a pattern, or None if there is none.

    Raises:
      TransientFailure: The bucket cannot be read, but a retry may succeed.
      CommandFailed: The bucket cannot be read: missing permission.
    """
    result = shell.run("gcloud", "storage", "cat", path, capture=True, check=False)
    if not result.returncode:
        return result.stdout
    if is_not_found(result.stderr):
        return None
    raise failure(f"gcloud cannot read {path}", result.stderr)


def describe(shell: Shell, name: str, words: list[str]) -> dict | list | None:
    """Runs a call that prints JSON.

    Args:
      shell: Runs the call.
      name: What the call describes, for the error message.
      words: The call without --format.

    Returns:
      The parsed output, an empty dictionary in a dry run, or None if the resource does not exist.

    Raises:
      TransientFailure: gcloud could not read it, but a retry may succeed.
      CommandFailed: gcloud cannot read it: missing permission or project, or an invalid argument.
    """
    result = shell.run(*words, "--format=json", capture=True, check=False)
    if shell.dry_run:
        return {}
    if result.returncode:
        if is_not_found(result.stderr):
            return None
        raise failure(f"gcloud cannot describe {name}", result.stderr)
    return json.loads(result.stdout)


def create(shell: Shell, name: str, words: list[str]) -> None:
    """Runs a call that creates a resource.

    Args:
      shell: Runs the call.
      name: What it creates, for the error message.
      words: The call.

    Raises:
      TransientFailure: The call failed, but a retry may succeed.
      CommandFailed: The call failed, and a retry would fail in the same way.
    """
    result = shell.run(*words, capture=True, check=False)
    if result.returncode and is_not_found(result.stderr):  # of something that an option names
        raise CommandFailed(f"gcloud did not create {name}: {result.stderr.strip()}. {CORRECT_OPTIONS}.")
    if result.returncode:
        raise failure(f"gcloud did not create {name}", result.stderr)


def delete(shell: Shell, name: str, words: list[str]) -> bool:
    """Runs a deletion and returns whether the resource existed.

    Args:
      shell: Runs the call.
      name: What it deletes, for the error message.
      words: The call.

    Raises:
      TransientFailure: The call failed, but a retry may succeed.
      CommandFailed: The call failed, and a retry would fail in the same way.
    """
    result = shell.run(*words, capture=True, check=False)
    if result.returncode and not is_not_found(result.stderr):
        raise failure(f"gcloud did not delete {name}", result.stderr)
    return not result.returncode
