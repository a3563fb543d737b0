"""Topics as Spark DataFrames: the data source ``afterglow``.

Spark's planner makes a :class:`~afterglow.engine.dataframes.source.TopicsSource`, asks it for a reader, and sends that
to the tasks. So modules here import what connects to a source only where it is called: tasks need none of it.
"""
