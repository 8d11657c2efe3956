"""Exit codes and environment variables that t5x_like, its supervisors and the launch scripts share.

The launch scripts run with Python 3.10 and the standard library, on machines where t5x_like may not be installed, and
an installed t5x_like does not contain the launch scripts. Both sides therefore define these values, each in one place;
tests/launch/test_protocol.py compares them. Shell scripts set the ones that they need at the top.
"""

SUCCESS = 0
USER_ERROR = 2  # invalid arguments or settings: another start would fail in the same way
NOT_CHECKED = 3  # a dry run without an error, some of whose checks were not possible on its machine
LOST_PEER = 69  # another process of the run is lost: restart without a limit; EX_UNAVAILABLE of sysexits.h
LIKELY_TO_REPEAT = 70  # device memory exhausted, loss not finite, or a hang; EX_SOFTWARE of sysexits.h
PREEMPTED = 75  # stopped on request after a checkpoint; EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, as shells report Ctrl-C

# Set to 1 for a command that runs under a supervisor: the command then reports a preemption with its exit code.
SUPERVISED = "T5X_LIKE_SUPERVISED"

# How processes on one machine, or under a scheduler that JAX does not detect, find each other.
COORDINATOR = "T5X_LIKE_COORDINATOR"  # HOST:PORT of process 0
NUM_PROCESSES = "T5X_LIKE_NUM_PROCESSES"
PROCESS_ID = "T5X_LIKE_PROCESS_ID"

# Restarts after crashes without a new checkpoint, where the user sets no --max_restarts.
MAX_RESTARTS = 3
# Starts of a supervisor without a new checkpoint. They are more, because spot machines may be preempted often.
MAX_STARTS = 20

# Otherwise JAX continues on the CPU if a TPU or GPU cannot be initialized, at the price of the accelerator.
TPU_PLATFORMS = {"JAX_PLATFORMS": "tpu,cpu"}
GPU_PLATFORMS = {"JAX_PLATFORMS": "cuda,cpu"}

# The virtual environment on a TPU VM, relative to the home directory.
VENV_DIRECTORY = "t5x_like_venv"
# Directory of a job below the directory of its run: the code, logs, and how it ended.
JOB_DIRECTORY = "launch"
