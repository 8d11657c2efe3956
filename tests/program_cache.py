"""Keeps the compiled programs of this process, so that tests that compile the same program share it.

JAX compiles a program again for each function that is jitted, even if it is the same. Reading a small program from the
cache on disk takes as long as compiling it; this one returns the loaded program.
"""

import os

PROGRAMS = {}


def install():
    """Puts the programs of this process in front of JAX's cache on disk, while that is the one of the tests.

    Does nothing in versions of JAX without these functions: they are not public.
    """
    import jax
    from jax._src import compiler

    read, write = (getattr(compiler, name, None) for name in ("_cache_read", "_cache_write"))
    if read is None or write is None:
        return
    directory = os.environ["JAX_COMPILATION_CACHE_DIR"]

    def is_used():
        return jax.config.jax_compilation_cache_dir == directory

    # A program with host callbacks belongs to its function. Versions differ in which of the two functions is told.
    with_callbacks = set()

    def read_program(module_name, key, compile_options, backend, devices, *callbacks):
        if any(callbacks):
            with_callbacks.add(key)
        elif is_used() and key in PROGRAMS:
            return PROGRAMS[key], 0
        program, seconds = read(module_name, key, compile_options, backend, devices, *callbacks)
        keep(key, program, callbacks)
        return program, seconds

    def write_program(key, seconds, module_name, backend, program, *callbacks):
        keep(key, program, callbacks)
        return write(key, seconds, module_name, backend, program, *callbacks)

    def keep(key, program, callbacks):
        if is_used() and program is not None and not any(callbacks) and key not in with_callbacks:
            PROGRAMS[key] = program

    compiler._cache_read, compiler._cache_write = read_program, write_program
