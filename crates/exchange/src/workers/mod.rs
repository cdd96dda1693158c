//! Background workers inside the service process.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::service::Exchange;

/// The running workers. They stop by themselves when [`Exchange::drain`] fires.
#[derive(Debug, Default)]
pub struct Workers {
    tasks: JoinSet<()>,
}

impl Workers {
    /// Waits until all have stopped.
    pub async fn join(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "worker ended abnormally");
            }
        }
    }
}

/// Starts all workers of an exchange.
pub fn start(_app: &Arc<Exchange>) -> Workers {
    Workers::default()
}
