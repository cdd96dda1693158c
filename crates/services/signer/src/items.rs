//! The items of signing requests and answers. Pure functions of bytes.

use batzen_crypto::cs::{CsBlindSignature, CsOperation};
use batzen_crypto::{CsNonce, CsRPub, CsScalar, EddsaPublicKey, EddsaSignature, HashCode};

use crate::frame::{ITEM_STATUS_BYTES, ItemStatus, KEY_ID_BYTES, Kind, MESSAGE_BYTES_MAX, Malformed};

/// Identifier of a denomination key in requests: the first half of the hash of its bare public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub [u8; KEY_ID_BYTES]);

impl KeyId {
    /// The identifier of the key with this hash.
    pub fn of(h_bare: &HashCode) -> Self {
        Self(*h_bare.as_bytes().first_chunk().expect("64 bytes hold 32"))
    }
}

/// An item of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A blinded message, big endian, in the size of the modulus.
    Rsa {
        /// The key.
        key: KeyId,
        /// The blinded message.
        blinded: Vec<u8>,
    },
    /// Blinded challenges.
    Cs {
        /// The key.
        key: KeyId,
        /// The purpose for which the nonce was given out.
        operation: CsOperation,
        /// The nonce.
        nonce: CsNonce,
        /// The challenges.
        challenges: [CsScalar; 2],
    },
    /// A nonce.
    Values {
        /// The key.
        key: KeyId,
        /// Purpose.
        operation: CsOperation,
        /// The nonce.
        nonce: CsNonce,
    },
    /// A message.
    Eddsa {
        /// The key.
        key: EddsaPublicKey,
        /// The message to sign.
        message: Vec<u8>,
    },
    /// The revocation of a denomination.
    RevokeDenomination {
        /// The key.
        key: KeyId,
        /// The denomination's age mask, which its hash covers.
        age_mask: u32,
        /// `MASTER_DENOMINATION_KEY_REVOKED`.
        master_sig: EddsaSignature,
    },
    /// The revocation of an online key.
    RevokeSigning {
        /// The key.
        key: EddsaPublicKey,
        /// `MASTER_SIGNING_KEY_REVOKED`.
        master_sig: EddsaSignature,
    },
}

const fn operation_number(operation: CsOperation) -> u8 {
    match operation {
        CsOperation::Withdraw => 1,
        CsOperation::Melt => 2,
    }
}

const fn operation_of(number: u8) -> Result<CsOperation, Malformed> {
    match number {
        1 => Ok(CsOperation::Withdraw),
        2 => Ok(CsOperation::Melt),
        _ => Err(Malformed),
    }
}

/// Takes the first `N` bytes.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (front, rest) = bytes.split_first_chunk().ok_or(Malformed)?;
    *bytes = rest;
    Ok(*front)
}

impl Item {
    /// The kind of frame for this item.
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Rsa { .. } => Kind::Rsa,
            Self::Cs { .. } => Kind::Cs,
            Self::Values { .. } => Kind::Values,
            Self::Eddsa { .. } => Kind::Eddsa,
            Self::RevokeDenomination { .. } => Kind::RevokeDenomination,
            Self::RevokeSigning { .. } => Kind::RevokeSigning,
        }
    }

    /// The size of the modulus in the frame's header.
    pub fn modulus(&self) -> usize {
        match self {
            Self::Rsa { blinded, .. } => blinded.len(),
            _ => 0,
        }
    }

    /// Appends the item.
    ///
    /// # Panics
    /// If a message is longer than [`MESSAGE_BYTES_MAX`].
    pub fn push(&self, out: &mut Vec<u8>) {
        match self {
            Self::Rsa { key, blinded } => {
                out.extend_from_slice(&key.0);
                out.extend_from_slice(blinded);
            }
            Self::Cs { key, operation, nonce, challenges: [c0, c1] } => {
                out.extend_from_slice(&key.0);
                out.extend_from_slice(&[operation_number(*operation), 0, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(nonce.as_bytes());
                out.extend_from_slice(c0.as_bytes());
                out.extend_from_slice(c1.as_bytes());
            }
            Self::Values { key, operation, nonce } => {
                out.extend_from_slice(&key.0);
                out.extend_from_slice(&[operation_number(*operation), 0, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(nonce.as_bytes());
            }
            Self::Eddsa { key, message } => {
                out.extend_from_slice(key.as_bytes());
                out.extend_from_slice(&(message.len() as u64).to_le_bytes());
                let end = out.len() + MESSAGE_BYTES_MAX;
                out.extend_from_slice(message);
                assert!(out.len() <= end, "no message is longer than the longest");
                out.resize(end, 0);
            }
            Self::RevokeDenomination { key, age_mask, master_sig } => {
                out.extend_from_slice(&key.0);
                out.extend_from_slice(&u64::from(*age_mask).to_le_bytes());
                out.extend_from_slice(master_sig.as_bytes());
            }
            Self::RevokeSigning { key, master_sig } => {
                out.extend_from_slice(key.as_bytes());
                out.extend_from_slice(master_sig.as_bytes());
            }
        }
    }

    /// Reads an item of a frame of this kind.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn parse(kind: Kind, mut bytes: &[u8]) -> Result<Self, Malformed> {
        let rest = &mut bytes;
        let item = match kind {
            Kind::Rsa => Self::Rsa { key: KeyId(take(rest)?), blinded: std::mem::take(rest).to_vec() },
            Kind::Cs => {
                let key = KeyId(take(rest)?);
                let [operation, 0, 0, 0, 0, 0, 0, 0] = take::<8>(rest)? else { return Err(Malformed) };
                Self::Cs {
                    key,
                    operation: operation_of(operation)?,
                    nonce: CsNonce::from_bytes(take(rest)?),
                    challenges: [CsScalar::from_bytes(take(rest)?), CsScalar::from_bytes(take(rest)?)],
                }
            }
            Kind::Values => {
                let key = KeyId(take(rest)?);
                let [operation, 0, 0, 0, 0, 0, 0, 0] = take::<8>(rest)? else { return Err(Malformed) };
                let operation = operation_of(operation)?;
                Self::Values { key, operation, nonce: CsNonce::from_bytes(take(rest)?) }
            }
            Kind::Eddsa => {
                let key = EddsaPublicKey::from_bytes(take(rest)?);
                let length = u64::from_le_bytes(take(rest)?);
                let padded: [u8; MESSAGE_BYTES_MAX] = take(rest)?;
                let length = usize::try_from(length).map_err(|_| Malformed)?;
                let (message, padding) = padded.split_at_checked(length).ok_or(Malformed)?;
                if padding.iter().any(|byte| *byte != 0) {
                    return Err(Malformed);
                }
                Self::Eddsa { key, message: message.to_vec() }
            }
            Kind::RevokeDenomination => Self::RevokeDenomination {
                key: KeyId(take(rest)?),
                age_mask: u32::try_from(u64::from_le_bytes(take(rest)?)).map_err(|_| Malformed)?,
                master_sig: EddsaSignature::from_bytes(take(rest)?),
            },
            Kind::RevokeSigning => Self::RevokeSigning {
                key: EddsaPublicKey::from_bytes(take(rest)?),
                master_sig: EddsaSignature::from_bytes(take(rest)?),
            },
            Kind::Hello | Kind::Listing | Kind::Secrets | Kind::Status | Kind::Promote => {
                return Err(Malformed);
            }
        };
        if rest.is_empty() { Ok(item) } else { Err(Malformed) }
    }
}

/// The result of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignedItem {
    /// A blind RSA signature.
    Rsa(Vec<u8>),
    /// A Clause Blind Schnorr signature.
    Cs(CsBlindSignature),
    /// R values.
    Values([CsRPub; 2]),
    /// An Ed25519 signature.
    Eddsa(EddsaSignature),
    /// Done, without content.
    Nothing,
}

/// Appends the answer to an item of a frame of this kind.
pub fn push_answer(kind: Kind, modulus: usize, result: &Result<SignedItem, ItemStatus>, out: &mut Vec<u8>) {
    let size = kind.answer_item(modulus).expect("the answer consists of items");
    let (begin, end) = (out.len(), out.len() + size);
    out.resize(begin + ITEM_STATUS_BYTES, 0);
    match result {
        Err(status) => out[begin] = *status as u8,
        Ok(SignedItem::Rsa(signature)) => {
            out.resize(end - signature.len(), 0);
            out.extend_from_slice(signature);
        }
        Ok(SignedItem::Cs(signature)) => {
            out[begin + 1] = signature.b;
            out.extend_from_slice(signature.s.as_bytes());
        }
        Ok(SignedItem::Values([r0, r1])) => {
            out.extend_from_slice(r0.as_bytes());
            out.extend_from_slice(r1.as_bytes());
        }
        Ok(SignedItem::Eddsa(signature)) => out.extend_from_slice(signature.as_bytes()),
        Ok(SignedItem::Nothing) => {}
    }
    debug_assert!(out.len() <= end);
    out.resize(end, 0);
}

/// Reads the answer to an item of a frame of this kind.
///
/// # Errors
/// If the bytes are malformed.
pub fn parse_answer(kind: Kind, bytes: &[u8]) -> Result<Result<SignedItem, ItemStatus>, Malformed> {
    let (head, mut rest) = bytes.split_first_chunk::<ITEM_STATUS_BYTES>().ok_or(Malformed)?;
    let rest = &mut rest;
    let status = ItemStatus::from_number(head[0]).ok_or(Malformed)?;
    if status != ItemStatus::Done {
        return Ok(Err(status));
    }
    let made = match kind {
        Kind::Rsa => {
            let all = std::mem::take(rest);
            let zeros = all.iter().take_while(|byte| **byte == 0).count();
            SignedItem::Rsa(all[zeros..].to_vec())
        }
        Kind::Cs if head[1] <= 1 => {
            SignedItem::Cs(CsBlindSignature { b: head[1], s: CsScalar::from_bytes(take(rest)?) })
        }
        Kind::Values => {
            SignedItem::Values([CsRPub::from_bytes(take(rest)?), CsRPub::from_bytes(take(rest)?)])
        }
        Kind::Eddsa => SignedItem::Eddsa(EddsaSignature::from_bytes(take(rest)?)),
        Kind::RevokeDenomination | Kind::RevokeSigning => SignedItem::Nothing,
        _ => return Err(Malformed),
    };
    if rest.is_empty() { Ok(Ok(made)) } else { Err(Malformed) }
}
