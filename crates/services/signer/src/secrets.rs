//! Private keys for a follower: the request, and the answer's content.

use batzen_crypto::EddsaPublicKey;
use batzen_crypto::denom::Cipher;
use batzen_protocol::{Duration, Timestamp};
use zeroize::Zeroizing;

use crate::files::StoredKey;
use crate::frame::{KEY_ID_BYTES, Kind, Malformed, Status};
use crate::items::{KeyId, take};
use crate::modules::{Secret, SecurityModules};
use crate::state::Signer;

/// A requested private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The modules' own keys.
    Modules,
    /// A denomination key.
    Denomination(KeyId),
    /// An online signing key.
    Signing(EddsaPublicKey),
}

const MODULES: u8 = 0;
const DENOMINATION: u8 = 1;
const SIGNING: u8 = 2;

impl Wanted {
    /// Appends an item of a request.
    pub fn push(&self, out: &mut Vec<u8>) {
        let (kind, key) = match self {
            Self::Modules => (MODULES, [0; KEY_ID_BYTES]),
            Self::Denomination(key) => (DENOMINATION, key.0),
            Self::Signing(key) => (SIGNING, *key.as_bytes()),
        };
        out.extend_from_slice(&u64::from(kind).to_le_bytes());
        out.extend_from_slice(&key);
    }
}

/// Reads a request's items.
///
/// # Errors
/// If they are malformed.
pub(crate) fn read_request(body: &[u8]) -> Result<Vec<Wanted>, Malformed> {
    let items = body.chunks_exact(Kind::Secrets.request_item(0));
    let item = |bytes: &[u8]| {
        let (kind, key) = bytes.split_first_chunk::<8>().ok_or(Malformed)?;
        let key: [u8; KEY_ID_BYTES] = key.try_into().map_err(|_| Malformed)?;
        match *kind {
            [MODULES, 0, 0, 0, 0, 0, 0, 0] => Ok(Wanted::Modules),
            [DENOMINATION, 0, 0, 0, 0, 0, 0, 0] => Ok(Wanted::Denomination(KeyId(key))),
            [SIGNING, 0, 0, 0, 0, 0, 0, 0] => Ok(Wanted::Signing(EddsaPublicKey::from_bytes(key))),
            _ => Err(Malformed),
        }
    };
    items.map(item).collect()
}

/// The upper bound of one key's size in an answer: an RSA key of the largest size as DER, its section's name,
/// and the other fields.
const SECRET_BYTES_MAX: usize = 8192;

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).expect("keys and names are below 64 KiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a private key.
pub fn push(secret: &Secret, out: &mut Vec<u8>) {
    let stored = |out: &mut Vec<u8>, key: &StoredKey| {
        out.extend_from_slice(&key.anchor.to_nbo());
        out.extend_from_slice(&key.duration.to_nbo());
        push_bytes(out, &key.secret);
    };
    match secret {
        Secret::Modules(keys) => {
            out.push(MODULES);
            for key in keys {
                out.extend_from_slice(key.as_slice());
            }
        }
        Secret::Denomination(cipher, section, key) => {
            out.push(DENOMINATION);
            out.push(u8::try_from(cipher.tag()).expect("a cipher's tag is small"));
            push_bytes(out, section.as_bytes());
            stored(out, key);
        }
        Secret::Signing(key) => {
            out.push(SIGNING);
            stored(out, key);
        }
    }
}

fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = usize::from(u16::from_le_bytes(take(bytes)?));
    let (front, rest) = bytes.split_at_checked(length).ok_or(Malformed)?;
    *bytes = rest;
    Ok(front)
}

fn take_stored(bytes: &mut &[u8]) -> Result<StoredKey, Malformed> {
    let anchor = Timestamp::from_nbo(take(bytes)?);
    let duration = Duration::from_nbo(take(bytes)?);
    let secret = Zeroizing::new(take_bytes(bytes)?.to_vec());
    // Keys are named after whole seconds.
    let is_whole = anchor.as_secs().is_some_and(|secs| Timestamp::from_secs(secs) == anchor);
    if is_whole { Ok(StoredKey { anchor, duration, secret }) } else { Err(Malformed) }
}

/// A section's name must be safe as the name of a directory.
fn is_section(name: &str) -> bool {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+');
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(safe)
}

/// Reads the content of an answer.
///
/// # Errors
/// If the bytes are malformed.
pub(crate) fn read_answer(mut content: &[u8]) -> Result<Vec<Secret>, Malformed> {
    let rest = &mut content;
    let mut secrets = Vec::new();
    while !rest.is_empty() {
        let [kind] = take(rest)?;
        secrets.push(match kind {
            MODULES => Secret::Modules([
                Zeroizing::new(take(rest)?),
                Zeroizing::new(take(rest)?),
                Zeroizing::new(take(rest)?),
            ]),
            DENOMINATION => {
                let cipher = match take(rest)? {
                    [1] => Cipher::Rsa,
                    [2] => Cipher::Cs,
                    _ => return Err(Malformed),
                };
                let section = std::str::from_utf8(take_bytes(rest)?).map_err(|_| Malformed)?.to_owned();
                if !is_section(&section) {
                    return Err(Malformed);
                }
                Secret::Denomination(cipher, section, take_stored(rest)?)
            }
            SIGNING => Secret::Signing(take_stored(rest)?),
            _ => return Err(Malformed),
        });
    }
    Ok(secrets)
}

/// The content of an answer: the keys that exist here. Missing ones are left out.
pub(crate) fn export(signer: &Signer, wanted: &[Wanted]) -> Result<Zeroizing<Vec<u8>>, Status> {
    let keys = signer.keys();
    // Allocated with the final capacity: growing would leave copies of keys behind.
    let mut out = Zeroizing::new(Vec::with_capacity(wanted.len() * SECRET_BYTES_MAX));
    for wanted in wanted {
        let secret = match wanted {
            Wanted::Modules => signer.modules.export_own(),
            Wanted::Denomination(id) => match keys.denoms.get(id) {
                None => None,
                Some(key) => Some(SecurityModules::export(key).map_err(|_| Status::Failed)?),
            },
            Wanted::Signing(key) => keys.signing.get(key).map(|key| SecurityModules::export_signing(key)),
        };
        if let Some(secret) = secret {
            push(&secret, &mut out);
            signer.metrics.secrets.inc();
        }
    }
    Ok(out)
}
