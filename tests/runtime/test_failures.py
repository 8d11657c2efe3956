"""What a process says about the failure of another one."""

import jax
import pytest

from t5x_like.errors import UserError
from t5x_like.runtime import failures
from t5x_like.runtime.distributed import ProcessFailed

pytestmark = pytest.mark.notf


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("the job has failed: see its log"), "process 1 of 3 has failed: the job has failed: see its log"),
        (ProcessFailed("process 2 of 3 has failed: no space", 1), "process 2 of 3 has failed: no space"),
    ],
)
def test_failure_of_a_third_process_is_named_once(error, message, monkeypatch):
    store = {}
    monkeypatch.setattr(failures, "_known", {})
    monkeypatch.setattr(failures, "_set", store.__setitem__)
    monkeypatch.setattr(failures, "_list", lambda directory: [item for item in store.items() if directory in item[0]])
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    failures.publish(error)
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    assert failures.of_another() == (message, failures.exit_code_of(error))
