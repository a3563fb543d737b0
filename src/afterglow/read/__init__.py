"""Readers of topics over hot log and tiers, for consumers, scans and Spark splits. Nothing here writes.

Entry points, by subject:

* Copies of a ledger: ``priority.copy_order`` (PIP-73) puts hot and tiered copy in order, ``fallback.FallbackReader``
  reads from the first that serves. Consumers read through ``entry_source.TieredEntrySource``, scans and searches
  through ``topic_reader.TopicReader``, a pinned view of a topic. ``copies`` has the protocols, ``counters`` the counts.
* Hot log: ``copies.HotCopy``; ``hot_readers`` reads hot logs of other processes.
* Tier: ``tier_reader.TierReader`` opens and caches copies; ``ranges`` finds the object that holds an entry.
  ``tier_copy``, ``objects``, ``stripes`` and ``cache`` read blocks, ``mapfile`` Pulsar's MapFiles, ``driver_copies``
  objects of external drivers. ``inspect`` reads a single object without metadata.
* Messages: ``messages.MessageBatches``, with ``chunks`` and ``transactions``; ``typed`` decodes by schema, ``jsonl``
  writes JSON.
* Ranges: ``scan_range.ScanRange`` is what a caller asks for, ``retained`` what a topic still has; ``pruning`` skips
  blocks by time, ``time_index`` narrows seeks by time.
* Splits: ``split_planner.SplitPlanner`` plans, ``split_reader.SplitReader`` reads, ``neighbours`` adds entries outside
  a split, ``parallel`` runs tasks and returns their results in order.
"""
