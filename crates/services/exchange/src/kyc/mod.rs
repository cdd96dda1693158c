//! Providers that identify customers, and the key that encrypts what they report.
//!
//! A `KycLogic` only has the address for the user's browser, and reads the provider's answer. The rules decide what follows
//! ([`crate::rules::kyc`]).

mod manual;
mod oauth2;
mod rehearsal;

use std::fs;
use std::io;
use std::path::Path;

use batzen_crypto::ShortHash;
use batzen_crypto::blob::NONCE_SIZE;
use batzen_http::client::{Client, ClientOptions};
use batzen_http::{Head, PeerLimit};
use batzen_protocol::econtract::{self, EcontractError};
use batzen_signer::files;
use batzen_tables::exchange::PaytoHash;
use futures_util::future::BoxFuture;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::config::{KycConfig, KycLogicConfig, KycProviderConfig};
pub use rehearsal::Rehearsal;

/// The largest reply of a provider, in bytes.
const REPLY_BYTES_MAX: usize = 256 << 10;
/// Time that a provider may take for one reply. The user's browser waits.
const PROVIDER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// Browsers' requests that may wait for providers at the same time, with a share for each address. Each holds a connection
/// to a provider, which may be slow.
const PROOFS_MAX: usize = 64;
/// The size of the key that encrypts attributes, in bytes.
const KEY_BYTES: usize = 64;

/// The key that encrypts attributes.
pub type AttributesKey = Zeroizing<[u8; KEY_BYTES]>;

/// A process with a provider, whose user's browser begins at a page of the exchange.
#[derive(Clone, Copy)]
pub(crate) struct Process<'a> {
    /// The exchange's base URL.
    pub(crate) base_url: &'a str,
    /// The provider's section.
    pub(crate) section: &'a str,
    /// The account whose owner is identified.
    pub(crate) h_payto: PaytoHash,
    /// The secret of the user's page.
    pub(crate) token: &'a str,
}

/// A browser's visit to a provider.
#[derive(Clone, Copy)]
pub(crate) struct Login<'a> {
    /// The exchange's base URL.
    pub(crate) base_url: &'a str,
    /// The provider's section.
    pub(crate) section: &'a str,
    /// The value that the provider sends back, by which the exchange finds the process.
    pub(crate) state: ShortHash,
}

/// The facts that a provider found out.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// The provider's name for the user.
    pub user_id: String,
    /// The user's attributes, an object.
    pub attributes: Value,
    /// Where the user's browser goes now.
    pub next_url: String,
}

/// Why nobody was identified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotIdentified {
    /// The browser did not bring what it must, named here \[25\].
    #[error("the browser came back without {0}")]
    Missing(&'static str),
    /// The provider, or the user there, refused: a title and an explanation for the user.
    #[error("the provider answers {title} ({text})")]
    Refused {
        /// The provider's error, such as `access_denied`.
        title: String,
        /// The provider's words; may be empty.
        text: String,
    },
    /// The provider's answer makes no sense \[1926\].
    #[error("unexpected answer of the provider: {0}")]
    Malformed(String),
    /// The provider cannot be reached, or failed \[1927\].
    #[error("the provider cannot be reached, or failed: {0}")]
    Failed(String),
    /// This provider's results do not come by the user's browser \[1929\].
    #[error("this provider's results come from officers")]
    OtherWay,
}

/// The protocol of a provider.
pub(crate) trait KycLogic: Send + Sync {
    /// Where the user's browser begins: a page of the exchange.
    fn user_url(&self, process: Process<'_>) -> String;

    /// The provider's page; none if the exchange needs no other service.
    fn login_url(&self, login: Login<'_>) -> Option<String>;

    /// Evaluates what the user's browser brought back from the provider.
    fn prove<'a>(
        &'a self,
        login: Login<'a>,
        head: &'a Head,
    ) -> BoxFuture<'a, Result<Identity, NotIdentified>>;
}

/// The providers of an exchange.
pub struct Providers {
    logics: Vec<(KycProviderConfig, Box<dyn KycLogic>)>,
    key: Option<AttributesKey>,
    /// The browsers' requests that wait for them.
    pub(crate) proofs: PeerLimit,
}

impl Providers {
    /// Prepares the providers, and reads or creates the key that encrypts attributes. Blocks.
    ///
    /// # Errors
    /// When the key file cannot be read or created, with a text for the operator.
    pub(crate) fn new(config: &KycConfig) -> Result<Self, String> {
        if config.providers.is_empty() {
            return Ok(Self { logics: Vec::new(), key: None, proofs: PeerLimit::new(PROOFS_MAX) });
        }
        let file = &config.attributes_key_file;
        let key = load_or_create_key(file).map_err(|error| format!("{}: {error}", file.display()))?;
        Self::with_key(config, key)
    }

    /// Prepares the providers, with this key of attributes.
    ///
    /// # Errors
    /// When no requests can be sent to providers, with a text for the operator.
    pub fn with_key(config: &KycConfig, key: AttributesKey) -> Result<Self, String> {
        let logic = |provider: &KycProviderConfig| Ok((provider.clone(), make_logic(&provider.logic)?));
        let logics = config.providers.iter().map(logic).collect::<Result<_, String>>()?;
        Ok(Self { logics, key: Some(key), proofs: PeerLimit::new(PROOFS_MAX) })
    }

    /// The provider with this section, in any case.
    pub(crate) fn find(&self, section: &str) -> Option<(&KycProviderConfig, &dyn KycLogic)> {
        let found = self.logics.iter().find(|(config, _)| config.section.eq_ignore_ascii_case(section));
        found.map(|(config, logic)| (config, logic.as_ref()))
    }

    /// Encrypts attributes for the store, under a nonce that was never used before.
    ///
    /// # Errors
    /// When they are too large, or are not JSON that has a canonical form.
    pub(crate) fn seal(
        &self,
        nonce: &[u8; NONCE_SIZE],
        attributes: &Value,
    ) -> Result<Vec<u8>, EcontractError> {
        let key = self.key.as_ref().expect("attributes come from providers");
        econtract::seal_attributes(nonce, key, attributes)
    }

    /// Decrypts stored attributes.
    ///
    /// # Errors
    /// When they were encrypted with another key.
    pub fn open(&self, encrypted: &[u8]) -> Result<Value, EcontractError> {
        let key = self.key.as_ref().ok_or(EcontractError::Malformed)?;
        econtract::open_attributes(key, encrypted)
    }
}

impl std::fmt::Debug for Providers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.logics.iter().map(|(config, _)| config)).finish()
    }
}

/// The client for requests to providers.
fn provider_client() -> Result<Client, String> {
    let options = ClientOptions {
        timeout: PROVIDER_TIMEOUT,
        max_reply_bytes: REPLY_BYTES_MAX,
        ..ClientOptions::default()
    };
    Client::new(&options).map_err(|error| error.to_string())
}

fn make_logic(config: &KycLogicConfig) -> Result<Box<dyn KycLogic>, String> {
    Ok(match config {
        KycLogicConfig::OAuth2(oauth2) => Box::new(oauth2::OAuth2::new(oauth2.clone(), provider_client()?)),
        KycLogicConfig::Manual { .. } => Box::new(manual::Manual),
    })
}

fn load_or_create_key(path: &Path) -> io::Result<AttributesKey> {
    match fs::read(path).map(Zeroizing::new) {
        Ok(bytes) => match <[u8; KEY_BYTES]>::try_from(bytes.as_slice()) {
            Ok(key) => Ok(Zeroizing::new(key)),
            Err(_) => Err(io::Error::other(format!("the key of attributes has exactly {KEY_BYTES} bytes"))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(directory) = path.parent() {
                files::create_private_directory(directory).map_err(io::Error::other)?;
            }
            let mut key = Zeroizing::new([0; KEY_BYTES]);
            batzen_crypto::fill_random(key.as_mut_slice());
            // Another process may have created it first. Its key is then used.
            if files::create_private_file(path, key.as_slice()).map_err(io::Error::other)? {
                Ok(key)
            } else {
                load_or_create_key(path)
            }
        }
        Err(error) => Err(error),
    }
}
