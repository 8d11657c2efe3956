"""Runs several commands one after the other in this process. Each argument is a command line, as a JSON list."""

import json
import sys

from t5x_like import cli

for line in sys.argv[1:]:
    arguments = json.loads(line)
    if code := cli.main(arguments):
        sys.exit(f"{arguments[0]}: exit code {code}")
    print("completed", arguments[0], flush=True)
