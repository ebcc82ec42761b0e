"""The way of one call, and of several.

Read call.py, authorize.py, invoke.py and results.py in this order; acquire.py stands beside them. plan.py is what is
made ready once for each tool, state.py what is kept of a call while it runs, batch.py several calls at once.
"""
