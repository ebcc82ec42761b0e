"""The path of one call, and batches of calls.

Read path.py first: the order of the steps. Then read the steps that you need, such as validate.py, authorize.py,
acquire.py and invoke.py. plan.py compiles a tool for a runner, state.py holds the facts of one call.
"""
