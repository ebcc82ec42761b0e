"""Tools that are built in. A file is one family, ready for a `Toolset`.

They do what they are told: what may be reached, and what is asked about first, is said by guards.

    from ferrule.tools import files

    Runner(Toolset(files.tools), guards=[within("notes"), ask_before_changes])
"""
