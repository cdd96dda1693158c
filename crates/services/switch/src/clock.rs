//! The clock of a switch.

use std::sync::Arc;

/// Source of the present time: microseconds since 1970.
pub type SwitchClock = Arc<dyn Fn() -> u64 + Send + Sync>;
