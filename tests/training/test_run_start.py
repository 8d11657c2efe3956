"""Tests of what a new run begins with."""

import copying_run


def test_settings_of_initial_weights_without_a_path_are_logged(tmp_path, caplog):
    with caplog.at_level("INFO", logger="absl"):
        copying_run.run(tmp_path / "run", total=1, evaluations={}, new_tokens=3, tiled=True)
    (line,) = [line for line in caplog.messages if "no effect" in line]
    assert line.endswith(": INITIAL_NEW_TOKENS, INITIAL_TILED")
