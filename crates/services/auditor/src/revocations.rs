//! Signing keys that the exchange has revoked, from its database or a copy of it. That a key is not revoked is looked up
//! each time; one read answers for all requests that waited for it. The auditor only reads, so a standby or a replica will do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use batzen_crypto::{EddsaPublicKey, EddsaSignature};
use batzen_postgres::schema::{SchemaError, Sql as _};
use batzen_postgres::{Connection, PgError, Target};
use batzen_protocol::signatures::{MasterSigningKeyRevoked, SignedMessage};
use batzen_service::storage::EXCHANGE;
use tokio::sync::Mutex;

/// The exchange has few signing keys, and revokes hardly any.
const REVOKED_MAX: usize = 65_536;

/// Why the exchange's database gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("the exchange's database: {0}")]
    Connection(#[from] PgError),
    #[error("the exchange's database: {0}")]
    Schema(#[from] SchemaError),
}

/// The exchange's revocations, if the auditor can read them.
pub(crate) struct Revocations {
    exchange: Option<(Target, EddsaPublicKey)>,
    latest: Arc<Mutex<Latest>>,
}

/// The latest read.
#[derive(Default)]
struct Latest {
    begun: Option<Instant>,
    revoked: Arc<HashMap<EddsaPublicKey, EddsaSignature>>,
    connection: Option<Connection>,
}

impl Revocations {
    /// Looks up signing keys of this exchange in the database at this address.
    ///
    /// # Errors
    /// An address that cannot be read.
    pub(crate) fn new(url: Option<&str>, master_pub: Option<EddsaPublicKey>) -> Result<Self, PgError> {
        if url.is_some() && master_pub.is_none() {
            tracing::warn!("[exchange] MASTER_PUBLIC_KEY is not set, so revocations are not looked up");
        }
        let target = url.map(|url| Ok::<_, PgError>(Target::parse(url)?.application("batzen-auditor")));
        Ok(Self { exchange: target.transpose()?.zip(master_pub), latest: Arc::default() })
    }

    /// The revocation of a signing key, signed by the master key.
    ///
    /// # Errors
    /// When the exchange's database cannot be read.
    pub(crate) async fn find(
        &self,
        master_pub: &EddsaPublicKey,
        exchange_pub: EddsaPublicKey,
    ) -> Result<Option<EddsaSignature>, LookupError> {
        let Some((target, _)) = self.exchange.as_ref().filter(|(_, known)| known == master_pub) else {
            return Ok(None);
        };
        let asked = Instant::now();
        let mut latest = Arc::clone(&self.latest).lock_owned().await;
        let revoked = if latest.begun.is_some_and(|begun| begun > asked) {
            Arc::clone(&latest.revoked)
        } else {
            let (target, master_pub) = (target.clone(), *master_pub);
            let read = move || latest.read(&target, &master_pub);
            tokio::task::spawn_blocking(read).await.expect("reading does not panic")?
        };
        Ok(revoked.get(&exchange_pub).copied())
    }
}

impl Latest {
    fn read(
        &mut self,
        target: &Target,
        master_pub: &EddsaPublicKey,
    ) -> Result<Arc<HashMap<EddsaPublicKey, EddsaSignature>>, LookupError> {
        let begun = Instant::now();
        let kept = self.connection.take().map(|connection| revoked(connection, master_pub));
        let (connection, revoked) = match kept {
            Some(Ok(read)) => read,
            // The server may have closed a session that was idle.
            _ => revoked(Connection::open_session(target)?, master_pub)?,
        };
        *self = Self { begun: Some(begun), revoked: Arc::new(revoked), connection: Some(connection) };
        Ok(Arc::clone(&self.revoked))
    }
}

/// Every revoked key, with the session if it can be used again.
fn revoked(
    mut connection: Connection,
    master_pub: &EddsaPublicKey,
) -> Result<(Connection, HashMap<EddsaPublicKey, EddsaSignature>), LookupError> {
    let rows = connection.rows(&format!(
        "SELECT encode(exchange_pub, 'hex'), encode(revoked, 'hex') FROM {}.signing_keys \
         WHERE revoked IS NOT NULL LIMIT {REVOKED_MAX}",
        EXCHANGE.schema
    ))?;
    let mut revoked = HashMap::new();
    for row in rows {
        let (Some(key), Some(signature)) = (bytes(row.text(0)), bytes(row.text(1))) else { continue };
        let key = EddsaPublicKey::from_bytes(key);
        let signature = EddsaSignature::from_bytes(signature);
        // The exchange may claim nothing that its master key has not signed.
        if (MasterSigningKeyRevoked { signkey_pub: key }).verify(master_pub, &signature) {
            revoked.insert(key, signature);
        }
    }
    Ok((connection, revoked))
}

/// Bytes in hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_bytes() {
        assert_eq!(bytes("00ff7f"), Some([0, 255, 127]));
        assert_eq!(bytes::<3>("00ff"), None);
        assert_eq!(bytes::<2>("00fg"), None);
    }
}
