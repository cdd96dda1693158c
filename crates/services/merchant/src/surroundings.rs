//! The surroundings of a backend.

use std::sync::Arc;

use batzen_engine::{Entropy, RuntimeTimers, Timers};
use batzen_http::client::{Client, ClientError, ClientOptions, Transport};

/// The surroundings of a process: the machine, or a simulator. The clock is part of the configuration.
pub struct Surroundings {
    /// The timers.
    pub timers: Arc<dyn Timers>,
    /// Random bytes.
    pub entropy: Arc<dyn Entropy>,
    /// Carries the requests to exchanges and others; none: connections.
    pub transport: Option<Arc<dyn Transport>>,
}

impl Surroundings {
    /// The machine.
    pub(crate) fn machine() -> Self {
        Self {
            timers: Arc::new(RuntimeTimers),
            entropy: Arc::new(batzen_crypto::fill_random),
            transport: None,
        }
    }

    /// A client that sends requests into these surroundings.
    pub(crate) fn client(&self, options: &ClientOptions) -> Result<Client, ClientError> {
        match &self.transport {
            Some(transport) => Client::over(Arc::clone(transport), options),
            None => Client::new(options),
        }
    }
}
