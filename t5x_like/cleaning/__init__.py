"""Cleaning of web pages: rules that remove lines and pages, and the Beam pipeline that applies them.

A step is a frozen dataclass (`step.Step`). It declares its rules with a description of each, and counts under a
namespace what each rule removes. `gin_configs/corpora/` lists the steps of a corpus in order.
"""
