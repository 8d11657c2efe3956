"""Packages of the extra `clean`, which are imported when a step needs them."""

import functools

from t5x_like import packages

require = functools.partial(packages.require, extra="clean")
"""Imports a module of the extra `clean`; see `packages.require`."""
