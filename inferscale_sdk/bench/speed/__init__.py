"""How fast it is, measured against what one would use instead.

All arms share engine, retriever, facts and order, and take turns within one run.
"""
