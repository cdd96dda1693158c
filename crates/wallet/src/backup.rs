//! Backups: everything in the wallet as one file, encrypted under a passphrase.
//!
//! Format: a magic line, the iteration count (4 bytes, big endian), a salt (16 bytes), and the encrypted
//! zlib-compressed JSON text. The key is PBKDF2-HMAC-SHA-512 of the passphrase. If the user chooses no
//! passphrase, the file is the plain JSON text.

use std::io::Read;

use batzen_crypto::{CryptoError, blob};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::core::Change;
use crate::core::coin::Coin;
use crate::core::evidence::Evidence;
use crate::core::exchange::Exchange;
use crate::core::purchase::Order;
use crate::core::state::WalletOperation;

const MAGIC: &[u8] = b"batzen-wallet-backup-1\n";
const LABEL: &[u8] = b"batzen-wallet-backup";
/// Iteration count for new backups (about 0.2 s on a small machine).
const ITERATIONS: u32 = 210_000;
/// Largest iteration count accepted from a file. A larger one would only waste CPU time.
const MAX_ITERATIONS: u32 = 10_000_000;
const SALT_SIZE: usize = 16;
/// Largest size of a decompressed backup.
const MAX_SIZE: u64 = 1 << 30;

/// Why a backup cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file is not a wallet backup.
    #[error("this is not a wallet backup")]
    NotABackup,
    /// The passphrase is wrong, or the file is damaged.
    #[error("wrong passphrase, or the file is damaged")]
    Decryption(#[from] CryptoError),
    /// A passphrase is needed.
    #[error("this backup is encrypted: give its passphrase")]
    PassphraseNeeded,
    /// Another version wrote the backup.
    #[error("this backup has format {0}, this version knows format 1; use a newer version")]
    Version(u32),
    /// Its JSON text does not parse.
    #[error("the backup is damaged: {0}")]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
struct Document {
    /// Format version of the records.
    batzen_wallet_backup: u32,
    exchanges: Vec<Exchange>,
    operations: Vec<WalletOperation>,
    coins: Vec<Coin>,
    #[serde(default)]
    evidence: Vec<Evidence>,
    #[serde(default)]
    orders: Vec<Order>,
}

/// All records as JSON text. Anyone who can read it can spend the money.
#[must_use]
pub fn to_json(changes: Vec<Change>) -> Zeroizing<Vec<u8>> {
    let mut document = Document {
        batzen_wallet_backup: 1,
        exchanges: Vec::new(),
        operations: Vec::new(),
        coins: Vec::new(),
        evidence: Vec::new(),
        orders: Vec::new(),
    };
    for change in changes {
        match change {
            Change::Exchange(exchange) => document.exchanges.push(*exchange),
            Change::Operation(operation) => document.operations.push(*operation),
            Change::Coin(coin) => document.coins.push(*coin),
            Change::Evidence(evidence) => document.evidence.push(*evidence),
            Change::Order(order) => document.orders.push(*order),
        }
    }
    Zeroizing::new(
        serde_json::to_vec(&document).expect("records have texts as keys and no floating-point numbers"),
    )
}

/// Encrypts all records under `passphrase`.
#[must_use]
pub fn seal(changes: Vec<Change>, passphrase: &str) -> Vec<u8> {
    let json = to_json(changes);
    let mut packed = Zeroizing::new(Vec::new());
    flate2::read::ZlibEncoder::new(json.as_slice(), flate2::Compression::default())
        .read_to_end(&mut packed)
        .expect("compressing memory into memory does no I/O");
    let mut salt = [0u8; SALT_SIZE];
    batzen_crypto::fill_random(&mut salt);
    let key = stretch(passphrase, &salt, ITERATIONS);
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&ITERATIONS.to_be_bytes());
    out.extend_from_slice(&salt);
    out.extend_from_slice(&blob::seal(&*key, LABEL, &packed));
    out
}

/// Reads a backup, encrypted or not.
///
/// # Errors
/// See [`BackupError`].
pub fn open(file: &[u8], passphrase: Option<&str>) -> Result<Vec<Change>, BackupError> {
    let json = match file.strip_prefix(MAGIC) {
        None if file.first() == Some(&b'{') => Zeroizing::new(file.to_vec()),
        None => return Err(BackupError::NotABackup),
        Some(rest) => {
            let passphrase = passphrase.ok_or(BackupError::PassphraseNeeded)?;
            let (iterations, rest) = rest.split_first_chunk::<4>().ok_or(BackupError::NotABackup)?;
            let (salt, sealed) = rest.split_first_chunk::<SALT_SIZE>().ok_or(BackupError::NotABackup)?;
            let iterations = u32::from_be_bytes(*iterations);
            if !(1..=MAX_ITERATIONS).contains(&iterations) {
                return Err(BackupError::NotABackup);
            }
            let packed = blob::open(&*stretch(passphrase, salt, iterations), LABEL, sealed)?;
            let mut json = Zeroizing::new(Vec::new());
            flate2::read::ZlibDecoder::new(packed.as_slice())
                .take(MAX_SIZE)
                .read_to_end(&mut json)
                .map_err(|error| BackupError::Damaged(error.to_string()))?;
            json
        }
    };
    #[derive(Deserialize)]
    struct Version {
        batzen_wallet_backup: u32,
    }
    let version: Version = serde_json::from_slice(&json).map_err(|_| BackupError::NotABackup)?;
    if version.batzen_wallet_backup != 1 {
        return Err(BackupError::Version(version.batzen_wallet_backup));
    }
    let document: Document =
        serde_json::from_slice(&json).map_err(|error| BackupError::Damaged(error.to_string()))?;
    let exchanges = document.exchanges.into_iter().map(|record| Change::Exchange(Box::new(record)));
    let operations = document.operations.into_iter().map(|record| Change::Operation(Box::new(record)));
    let coins = document.coins.into_iter().map(|record| Change::Coin(Box::new(record)));
    let evidence = document.evidence.into_iter().map(|record| Change::Evidence(Box::new(record)));
    let orders = document.orders.into_iter().map(|record| Change::Order(Box::new(record)));
    Ok(exchanges.chain(operations).chain(coins).chain(evidence).chain(orders).collect())
}

/// PBKDF2 (RFC 8018) with HMAC-SHA-512, one block of output.
fn stretch(passphrase: &str, salt: &[u8], iterations: u32) -> Zeroizing<[u8; 64]> {
    type Prf = Hmac<batzen_crypto::hash::Sha512>;
    let keyed = Prf::new_from_slice(passphrase.as_bytes()).expect("HMAC takes keys of any size");
    let prf = |data: &[&[u8]]| -> [u8; 64] {
        let mut mac = keyed.clone();
        for part in data {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    };
    let mut block = prf(&[salt, &1u32.to_be_bytes()]);
    let mut key = Zeroizing::new(block);
    for _ in 1..iterations {
        block = prf(&[&block]);
        for (sum, byte) in key.iter_mut().zip(block) {
            *sum ^= byte;
        }
    }
    zeroize::Zeroize::zeroize(&mut block);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published vectors for PBKDF2-HMAC-SHA-512 (the inputs of RFC 6070).
    #[test]
    fn pbkdf2_vectors() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(&*stretch("password", b"salt", 1)),
            "867f70cf1ade02cff3752599a3a53dc4af34c7a669815ae5d513554e1c8cf252\
             c02d470a285a0501bad999bfe943c08f050235d7d68b1da55e63f73b60a57fce"
        );
        assert_eq!(
            hex(&*stretch("password", b"salt", 2)),
            "e1d9c16aa681708a45f5c7c4e215ceb66e011a2e9f0040713f18aefdb866d53c\
             f76cab2868a39b9f7840edce4fef5a82be67335c77a6068e04112754f27ccf4e"
        );
    }

    #[test]
    fn a_backup_opens_with_its_passphrase_only() {
        let file = seal(Vec::new(), "correct horse");
        assert_eq!(open(&file, Some("correct horse")).expect("opens"), Vec::new());
        assert!(matches!(open(&file, Some("wrong")), Err(BackupError::Decryption(_))));
        assert!(matches!(open(&file, None), Err(BackupError::PassphraseNeeded)));
        let mut damaged = file.clone();
        *damaged.last_mut().expect("not empty") ^= 1;
        assert!(matches!(open(&damaged, Some("correct horse")), Err(BackupError::Decryption(_))));
        assert!(matches!(open(&file[..30], Some("x")), Err(BackupError::NotABackup)));
        assert!(matches!(open(b"hello", None), Err(BackupError::NotABackup)));
        assert_eq!(open(&to_json(Vec::new()), None).expect("opens"), Vec::new());
    }
}
