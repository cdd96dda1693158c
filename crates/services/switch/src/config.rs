//! The configuration of a switch.

use std::sync::Arc;
use std::time::Duration;

use batzen_http::OwnNames;
use batzen_service::storage::StoreConfig;

use crate::clock::SwitchClock;
use crate::forwarding::Forwarding;
use crate::outbox::Delivery;

/// An operator of the hub.
#[derive(Clone, Debug)]
pub struct Operator {
    /// Its name in records.
    pub name: String,
    /// SHA-256 of its bearer token.
    pub token_hash: [u8; 32],
}

impl Operator {
    /// An operator with this token.
    #[must_use]
    pub fn new(name: &str, token: &str) -> Self {
        use sha2::Digest;
        Self { name: name.to_owned(), token_hash: sha2::Sha256::digest(token).into() }
    }
}

/// The configuration of a switch.
#[derive(Clone)]
pub struct SwitchConfig {
    /// The storage of the rows.
    pub store: StoreConfig,
    /// The address of both listeners; `None`: all addresses.
    pub listen_host: Option<String>,
    /// The port of the participants' interface; 0: a free one.
    pub port: u16,
    /// The port of the operators' interface; 0: a free one.
    pub admin_port: u16,
    /// The operators who may use the operators' interface.
    pub operators: Vec<Operator>,
    /// Whether each change that operators make requires two of them: participants, accounts, limits,
    /// addresses, models, funds, windows and settlements.
    pub four_eyes: bool,
    /// Time that a proposal waits for a decision.
    pub approval_patience: Duration,
    /// Whether a participant may pay itself.
    pub allow_on_us: bool,
    /// Time limits and retries of callbacks.
    pub delivery: Delivery,
    /// Time limits and retries of messages that are passed on without a record: lookups, quotes and the like.
    pub forwarding: Forwarding,
    /// The most requests that may wait for a decision; more are refused with 503.
    pub requests_max: usize,
    /// The most transfers that may wait for the ledger; more are refused with 503.
    pub intents_max: usize,
    /// Names under which clients reach the switch.
    pub hostnames: OwnNames,
    /// The most connections to each listener.
    pub max_connections: usize,
    /// Source of the present time.
    pub clock: SwitchClock,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            store: StoreConfig::Memory,
            listen_host: Some("127.0.0.1".to_owned()),
            port: 0,
            admin_port: 0,
            operators: Vec::new(),
            four_eyes: true,
            approval_patience: Duration::from_secs(7 * 24 * 3600),
            allow_on_us: false,
            delivery: Delivery::default(),
            forwarding: Forwarding::default(),
            requests_max: 16_384,
            intents_max: 65_536,
            hostnames: OwnNames::default(),
            max_connections: 8192,
            clock: Arc::new(system_micros),
        }
    }
}

fn system_micros() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).expect("before the year 500,000")
}

impl SwitchConfig {
    /// Checks that the configuration is consistent.
    ///
    /// # Errors
    /// The inconsistency.
    pub fn check(&self) -> Result<(), String> {
        if self.four_eyes && self.operators.len() < 2 {
            return Err(
                "changes that take two operators need two operators: name them, or turn FOUR_EYES off".into(),
            );
        }
        for (place, operator) in self.operators.iter().enumerate() {
            if operator.name.is_empty() || operator.name.len() > 64 {
                return Err("names of operators have 1 to 64 characters".into());
            }
            let others = &self.operators[..place];
            let twice =
                |other: &Operator| other.name == operator.name || other.token_hash == operator.token_hash;
            if others.iter().any(twice) {
                return Err(format!("operator {} has the name or the token of another", operator.name));
            }
        }
        if self.delivery.connections == 0
            || self.delivery.window == 0
            || self.requests_max == 0
            || self.approval_patience.is_zero()
        {
            return Err("limits are positive".into());
        }
        Ok(())
    }
}
