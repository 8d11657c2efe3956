"""Exit codes and environment variables that commands share with their supervisors. Imports no JAX.

`launch/protocol.py` defines the same values for the launch scripts, which also run on machines without t5x_like;
`tests/launch/test_protocol.py` compares the two.
"""

SUCCESS = 0
FAILURE = 1
USER_ERROR = 2  # invalid arguments or settings: a restart would fail in the same way
NOT_CHECKED = 3  # a dry run without an error, some of whose checks were not possible on its machine
LOST_PEER = 69  # another process of the run is lost: restart without a limit; EX_UNAVAILABLE of sysexits.h
LIKELY_TO_REPEAT = 70  # device memory exhausted, loss not finite, or a hang; EX_SOFTWARE of sysexits.h
PREEMPTED = 75  # stopped on request after a checkpoint; EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, as shells report Ctrl-C
CLOSED_PIPE = 141  # 128 + SIGPIPE: the reader of the output, such as `head`, has left

# Set for a command under `--max_restarts` or a launch script: the command then reports a preemption by its exit code.
SUPERVISED = "T5X_LIKE_SUPERVISED"
# Set by supervisors that read the exit code: the one above, Slurm and Kubernetes.
SUPERVISORS = (SUPERVISED, "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST")

# How the processes of a run find each other if JAX does not detect a cluster.
COORDINATOR = "T5X_LIKE_COORDINATOR"  # HOST:PORT of process 0
NUM_PROCESSES = "T5X_LIKE_NUM_PROCESSES"
PROCESS_ID = "T5X_LIKE_PROCESS_ID"
