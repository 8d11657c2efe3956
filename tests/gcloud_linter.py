"""What gcloud's own parser says of commands, without a call of the cloud."""

import json
import os
import shlex
import subprocess
from pathlib import Path


def errors(commands: list[str], directory: Path) -> dict[str, str]:
    """Returns the error messages of the commands that gcloud rejects.

    Args:
      commands: Lines of a shell that call gcloud.
      directory: An empty directory for files of gcloud.
    """
    # The linter's own parser does not read all quotes that a shell does.
    plain = [" ".join("--command=date" if "--command=" in word else word for word in shlex.split(c)) for c in commands]
    file, unique = directory / "commands.json", sorted(set(plain))
    file.write_text(json.dumps([{"id": number, "command_string": text} for number, text in enumerate(unique)]))
    result = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={file}", "--serialize"],
        env={**os.environ, "CLOUDSDK_CONFIG": str(directory), "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    verdicts, _ = json.JSONDecoder().raw_decode(result.stdout[result.stdout.index("{") :])
    assert len(verdicts) == len(unique)
    messages = {unique[int(number)]: found[0]["error_message"] for number, found in verdicts.items()}
    return {text: message for text, message in messages.items() if message}
