"""From closed ledgers to objects in a tier: what is due, who copies it, how it is committed, and how it goes again."""
