"""Run a stranger's bundle without network, without the user's files and processes, and within limits.

The compiler under test is no security boundary: text of a graph reaches C++ and machine code. So everything
that runs torch on a bundle that the user has not written (`bundle/provenance.py`) is started here:

    chosen.py       the decision: which sandbox, or a refusal; what may be read; the environment
    supervise.py    the process in between: starts the job confined, enforces limits, kills what is left
    namespaces.py   a root file system, process ids, network and users of its own
    landlock.py     which paths may be opened, by the kernel's Landlock
    seccomp.py      which system calls fail

Only the parent reads what comes out: JSON over a pipe, and files that it copies out of the scratch directory
as data (`engine/search/confined.py`).
"""
