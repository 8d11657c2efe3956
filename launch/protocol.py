"""Exit codes and environment variables that t5x_like, its supervisors and the launch scripts share.

The launch scripts run with Python 3.10 and the standard library, on machines where t5x_like may not be installed, and
an installed t5x_like does not contain the launch scripts. Both sides therefore define these values, each in one place;
tests/launch/test_protocol.py compares them. Shell scripts set the ones that they need at the top.
"""

SUCCESS = 0
USER_ERROR = 2  # invalid arguments or settings: another start would fail in the same way
PREEMPTED = 75  # stopped on request after a checkpoint; EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, as shells report Ctrl-C

# Set to 1 for a command that runs under a supervisor: the command then reports a preemption with its exit code.
SUPERVISED = "T5X_LIKE_SUPERVISED"
# Set for all processes of a job, so that they can be identified after their parents have exited.
JOB_ID = "T5X_LIKE_JOB"

# How processes on one machine, or under a scheduler that JAX does not detect, find each other.
COORDINATOR = "T5X_LIKE_COORDINATOR"  # HOST:PORT of process 0
NUM_PROCESSES = "T5X_LIKE_NUM_PROCESSES"
PROCESS_ID = "T5X_LIKE_PROCESS_ID"

# Restarts after crashes where the user sets no --max_restarts. gke.py allows more, see there.
MAX_RESTARTS = 3

# Directories of a job on a TPU worker, relative to the home directory.
CODE_DIRECTORY = "t5x_like"
VENV_DIRECTORY = "t5x_like_venv"
JOB_DIRECTORY = "t5x_like_job"
# Directory of the copied logs below MODEL_DIR: LOG_DIRECTORY/START/SLICE/HOST/PART.log.
LOG_DIRECTORY = "logs"
