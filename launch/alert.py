"""Sends the messages that somebody should read soon: to a command, or to the address of a webhook.

Requires Python 3.10 and only its standard library.
"""

import json
import shlex
import subprocess
import sys
import urllib.request

TIMEOUT_SECONDS = 60.0


def send(target: str | None, text: str) -> None:
    """Sends a message. A failure is logged and does not end the caller.

    Args:
      target: A command, which gets the message as its last argument; or https://…, which gets the JSON object
        `{"text": …}`, as the webhooks of chats expect. None sends nothing.
      text: The message.
    """
    if not target:
        return
    try:
        if target.startswith(("http://", "https://")):
            body, headers = json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
            urllib.request.urlopen(urllib.request.Request(target, body, headers), timeout=TIMEOUT_SECONDS).close()
        else:
            words = [*shlex.split(target), text]
            subprocess.run(words, stdin=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"tpu.py: --alert was not sent: {error}", file=sys.stderr, flush=True)
