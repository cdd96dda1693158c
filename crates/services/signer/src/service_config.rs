//! Configuration of signers, key helpers and their clients: `[signer]`, `[signer-node-*]`, `[signer-peer-*]`,
//! `[taler-exchange-secmod-*] UNIXPATH`, and the exchange's `[exchange] SIGNERS` and `KEY_HELPERS`.

use std::path::PathBuf;

use batzen_config::{Config, Expected};
use batzen_crypto::EddsaPublicKey;

use crate::address::Address;
use crate::config::{ConfigError, KeysConfig, ModuleKind, addresses, key, optional_key, path_or};

batzen_protocol::enumeration! {
    /// Role of a signer.
    pub enum Role {
        /// Creates, replaces and erases keys.
        Primary => "primary",
        /// Copies the primary's keys.
        Follower => "follower",
    }
}

/// A section `[signer-peer-NAME]`: another signer of the same exchange.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Its name in logs and reports.
    pub name: String,
    /// Its address.
    pub address: Address,
    /// Its key.
    pub public_key: EddsaPublicKey,
}

/// A section `[signer-node-NAME]`: a node of the exchange.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its name in logs and reports.
    pub name: String,
    /// Its key.
    pub public_key: EddsaPublicKey,
}

/// Configuration of a signer.
#[derive(Clone, Debug)]
pub struct SignerConfig {
    /// The exchange's keys.
    pub keys: KeysConfig,
    /// Addresses to listen on.
    pub listen: Vec<Address>,
    /// File of its static key.
    pub key_file: PathBuf,
    /// File of its persisted role.
    pub state_file: PathBuf,
    /// Its configured role. A promotion of this signer or of a peer overrides it.
    pub role: Role,
    /// The exchange's nodes.
    pub nodes: Vec<NodeConfig>,
    /// The exchange's other signers.
    pub peers: Vec<PeerConfig>,
    /// The master public key, which signs revocations.
    pub master_public_key: EddsaPublicKey,
    /// Address of `/metrics` and `/dashboard`, if served: `ADDRESS:PORT`.
    pub http: Option<String>,
    /// Names under which clients reach these pages.
    pub hostnames: batzen_http::OwnNames,
    /// The maximum number of concurrent connections.
    pub connections_max: usize,
    /// Threads for cryptography; 0 means one per core.
    pub threads: usize,
}

/// The exchange's configuration of its signers.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Their addresses, the preferred one first.
    pub addresses: Vec<Address>,
    /// Their keys. Each signer must present one of them.
    pub public_keys: Vec<EddsaPublicKey>,
    /// File of the node's own static key.
    pub key_file: PathBuf,
}

/// Configuration of a key helper: a process with the private keys of one kind, for an exchange on the same
/// machine.
#[derive(Clone, Debug)]
pub struct HelperConfig {
    /// The kind of its keys.
    pub(crate) kind: ModuleKind,
    /// The exchange's keys.
    pub(crate) keys: KeysConfig,
    /// The local socket to listen on.
    pub(crate) socket: PathBuf,
    /// The master public key, which signs revocations; without it, the helper destroys no key before its time.
    pub(crate) master_public_key: Option<EddsaPublicKey>,
}

/// The exchange's configuration of its key helpers: their local sockets, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelpersConfig(pub [PathBuf; ModuleKind::ALL.len()]);

const SIGNER: &str = "signer";
const NODE_PREFIX: &str = "signer-node-";
const PEER_PREFIX: &str = "signer-peer-";

/// Known options of the signer's sections. Others are reported as misspelt.
pub const KNOWN: &[(&str, &[&str])] = &[
    (
        SIGNER,
        &["LISTEN", "KEY_FILE", "STATE_FILE", "ROLE", "HTTP", "HOSTNAMES", "CONNECTIONS_MAX", "THREADS"],
    ),
    ("signer-node-*", &["PUBLIC_KEY"]),
    ("signer-peer-*", &["PUBLIC_KEY", "ADDRESS"]),
];

/// The local socket of a key helper.
fn helper_socket(ini: &Config, kind: ModuleKind) -> Result<PathBuf, ConfigError> {
    let default = format!("${{TALER_RUNTIME_DIR}}/exchange-secmod-{}/server.sock", kind.name());
    path_or(ini, kind.section(), "UNIXPATH", &default)
}

impl HelperConfig {
    /// Reads the configuration of the helper for one kind of keys.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub fn from_ini(ini: &Config, kind: ModuleKind) -> Result<Self, ConfigError> {
        Ok(Self {
            kind,
            keys: KeysConfig::from_ini(ini)?,
            socket: helper_socket(ini, kind)?,
            master_public_key: optional_key(ini, "exchange", "MASTER_PUBLIC_KEY")?,
        })
    }
}

impl HelpersConfig {
    /// Reads `[exchange] KEY_HELPERS`. `None` if it is not YES.
    ///
    /// # Errors
    /// The first option that is invalid, with its place.
    pub fn from_ini(ini: &Config) -> Result<Option<Self>, ConfigError> {
        if !ini.get_or("exchange", "KEY_HELPERS", false)? {
            return Ok(None);
        }
        let [rsa, cs, eddsa] = ModuleKind::ALL.map(|kind| helper_socket(ini, kind));
        Ok(Some(Self([rsa?, cs?, eddsa?])))
    }
}

impl SignerConfig {
    /// Reads a signer's configuration.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub fn from_ini(ini: &Config) -> Result<Self, ConfigError> {
        let mut nodes = Vec::new();
        for (section, name) in ini.sections_with(&[NODE_PREFIX]) {
            nodes
                .push(NodeConfig { name: name.to_lowercase(), public_key: key(ini, section, "PUBLIC_KEY")? });
        }
        let mut peers = Vec::new();
        for (section, name) in ini.sections_with(&[PEER_PREFIX]) {
            let address = addresses(ini, section, "ADDRESS")?.unwrap_or_default();
            let [address] = address.as_slice() else {
                return Err(ConfigError::invalid(section, "ADDRESS must be one address: tcp://host:port"));
            };
            peers.push(PeerConfig {
                name: name.to_lowercase(),
                address: address.clone(),
                public_key: key(ini, section, "PUBLIC_KEY")?,
            });
        }
        let listen = addresses(ini, SIGNER, "LISTEN")?
            .ok_or_else(|| ini.missing(SIGNER, "LISTEN", "tcp://address:port or unix:///path"))?;
        let role = ini.choice(SIGNER, "ROLE", &[("primary", Role::Primary), ("follower", Role::Follower)])?;
        let connections = ini.number_in(SIGNER, "CONNECTIONS_MAX", 1..=65_536)?.unwrap_or(256);
        let threads = ini.number_in(SIGNER, "THREADS", 0..=1024)?.unwrap_or(0);
        let config = Self {
            keys: KeysConfig::from_ini(ini)?,
            listen,
            key_file: path_or(ini, SIGNER, "KEY_FILE", "${TALER_DATA_HOME}/signer/signer.key")?,
            state_file: path_or(ini, SIGNER, "STATE_FILE", "${TALER_DATA_HOME}/signer/state")?,
            role: role.unwrap_or(Role::Primary),
            nodes,
            peers,
            master_public_key: key(ini, "exchange", "MASTER_PUBLIC_KEY")?,
            http: ini.get(SIGNER, "HTTP")?,
            hostnames: batzen_service::front(ini, SIGNER)?.1,
            connections_max: usize::try_from(connections).expect("the range fits"),
            threads: usize::try_from(threads).expect("the range fits"),
        };
        if config.role == Role::Follower && config.peers.is_empty() {
            return Err(ConfigError::invalid(SIGNER, "a follower needs the primary as [signer-peer-NAME]"));
        }
        Ok(config)
    }
}

impl ClientConfig {
    /// Reads `[exchange] SIGNERS`. `None` if it is missing: the exchange holds its keys itself.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub fn from_ini(ini: &Config) -> Result<Option<Self>, ConfigError> {
        let Some(addresses) = addresses(ini, "exchange", "SIGNERS")? else { return Ok(None) };
        const EXPECTED: &str = "the signers' public keys (52 characters of base32 each), separated by commas";
        let read = |text: &str| {
            let parts = text.split([',', ' ', '\t', '\n']).filter(|part| !part.is_empty());
            let keys = parts.map(str::parse).collect::<Result<Vec<EddsaPublicKey>, _>>();
            keys.ok().filter(|keys| !keys.is_empty()).ok_or_else(|| Expected::new(EXPECTED))
        };
        let public_keys = ini.get_with("exchange", "SIGNER_PUBLIC_KEYS", read)?;
        Ok(Some(Self {
            addresses,
            public_keys: public_keys
                .ok_or_else(|| ini.missing("exchange", "SIGNER_PUBLIC_KEYS", EXPECTED))?,
            key_file: path_or(
                ini,
                "exchange",
                "SIGNER_KEY_FILE",
                "${TALER_DATA_HOME}/exchange-httpd/node.key",
            )?,
        }))
    }
}
