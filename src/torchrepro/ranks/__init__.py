"""Ranks of one job: their rendezvous through the job's store, and the watch of a run among them."""
