//! Typed tables, the storage backends under them, and the conformance suite every backend passes.
