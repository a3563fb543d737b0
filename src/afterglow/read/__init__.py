"""Reading of topics from hot log and tiers, by consumers, scans and splits. Nothing here writes.

Entry points, by subject:

* which copy serves: ``priority.copy_order`` (PIP-73) decides, ``fallback`` reads and falls back, consumers read through
  ``tiered.TieredSource``, ``topic_reader.TopicReader`` reads a pinned view of a topic
* objects: ``ranges`` (which object holds an entry), ``tier_source.TierSource`` (opens copies), ``objects``, ``pieces``,
  ``tier_copy``, ``cache``, ``mapfile``; ``inspect`` for one object without metadata; ``hot_readers`` for hot logs of
  other processes
* messages: ``messages.MessageBatches``, with ``chunks``, ``transactions``, ``typed``, ``jsonl``
* time: ``window.Window`` (what is wanted), ``time_index`` (seek), ``pruning``, ``retained``
* splits: ``split_planner.SplitPlanner`` plans, ``split_reader.SplitReader`` reads, ``neighbours`` brings the entries
  around them, ``parallel`` runs them in order

``places`` and ``drivers`` hold tier locations and offload drivers.
"""
