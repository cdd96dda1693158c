//! Words for parts of results.

use batzen_cli_support::numbers::number;

use crate::bench::results::result::Load;

/// A short description of how load was offered.
pub(crate) fn load(load: &Load) -> String {
    match load {
        Load::Closed { clients } => format!("closed, {clients} clients"),
        Load::Open { target_ops_per_s, .. } => format!("open, {}/s", number(*target_ops_per_s)),
    }
}

pub(crate) fn cores(cores: &[usize]) -> String {
    if cores.is_empty() {
        return "not pinned".into();
    }
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
