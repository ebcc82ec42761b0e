"""Built-in tools. A file is one family, ready for a `Toolset`.

They run every call. Guards limit their reach, and decide when a person is asked first.

    from ferrule.tools import files

    Runner(Toolset(files.tools), guards=[within("notes"), ask_before_changes])
"""
