//! Encrypted contracts of payments between people, and KYC attributes at rest: compressed JSON in an
//! encrypted blob.

use std::io::{Read, Write};

use batzen_crypto::blob::{self, NONCE_SIZE};
use batzen_crypto::ecdh::ecdh_eddsa_pub;
use batzen_crypto::{CryptoError, EcdhePrivateKey, EddsaPrivateKey, EddsaPublicKey, TransferSecret};
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde_json::Value;

use crate::canonical::{self, CanonicalError};

/// Largest contract or set of attributes, in bytes of uncompressed text.
pub(crate) const MAX_TEXT_SIZE: usize = 1 << 20;

const OFFER: u32 = 0;
const REQUEST: u32 = 1;
const OFFER_LABEL: &[u8] = b"p2p-merge-contract";
const REQUEST_LABEL: &[u8] = b"p2p-deposit-contract";
const ATTRIBUTES_LABEL: &[u8] = b"kyc-attributes";

/// Why a contract cannot be encrypted or decrypted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EcontractError {
    /// The purse key is not a point of the curve, or the blob does not decrypt.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
    /// The contract is not canonical JSON.
    #[error(transparent)]
    Json(#[from] CanonicalError),
    /// The decrypted content is malformed.
    #[error("malformed encrypted contract")]
    Malformed,
    /// The text is larger than `MAX_TEXT_SIZE`.
    #[error("contract is too large")]
    TooLarge,
}

/// The content of an encrypted contract.
#[derive(Debug, Clone, PartialEq)]
pub enum PeerContract {
    /// Push: the payer offers money, and gives the key that merges the purse.
    Offer {
        /// Private merge key.
        merge_priv: EddsaPrivateKey,
        /// Contract terms.
        contract: Value,
    },
    /// Pull: the receiver asks for money.
    Request {
        /// Contract terms.
        contract: Value,
    },
}

impl PeerContract {
    /// Contract terms.
    pub fn contract(&self) -> &Value {
        match self {
            Self::Offer { contract, .. } | Self::Request { contract } => contract,
        }
    }

    fn label(&self) -> &'static [u8] {
        match self {
            Self::Offer { .. } => OFFER_LABEL,
            Self::Request { .. } => REQUEST_LABEL,
        }
    }

    /// The plain text in the form of wallets: kind, length, merge key of an offer, compressed text with a
    /// zero byte.
    fn to_plain(&self) -> Result<Vec<u8>, EcontractError> {
        let mut text = canonical::to_canonical(self.contract())?.into_bytes();
        text.push(0);
        let mut out = Vec::new();
        let kind = if matches!(self, Self::Offer { .. }) { OFFER } else { REQUEST };
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&text_length(&text)?);
        if let Self::Offer { merge_priv, .. } = self {
            out.extend_from_slice(merge_priv.as_bytes());
        }
        compress(&text, &mut out);
        Ok(out)
    }

    /// Encrypts in the form of wallets, under a random nonce.
    ///
    /// # Errors
    /// [`EcontractError::Crypto`] for a malformed purse key, [`EcontractError::Json`] if the contract is not
    /// canonical, [`EcontractError::TooLarge`].
    #[cfg(test)]
    pub(crate) fn encrypt(
        &self,
        contract_priv: &EcdhePrivateKey,
        purse_pub: &EddsaPublicKey,
    ) -> Result<Vec<u8>, EcontractError> {
        let key = ecdh_eddsa_pub(contract_priv, purse_pub)?;
        Ok(blob::seal(key.as_bytes(), self.label(), &self.to_plain()?))
    }

    /// Encrypts under a nonce that was never used before with this key.
    ///
    /// # Errors
    /// [`EcontractError::Crypto`] for a malformed purse key, [`EcontractError::Json`] if the contract is not
    /// canonical, [`EcontractError::TooLarge`].
    pub fn encrypt_with_nonce(
        &self,
        nonce: &[u8; NONCE_SIZE],
        contract_priv: &EcdhePrivateKey,
        purse_pub: &EddsaPublicKey,
    ) -> Result<Vec<u8>, EcontractError> {
        let key = ecdh_eddsa_pub(contract_priv, purse_pub)?;
        Ok(blob::seal_with_nonce(nonce, key.as_bytes(), self.label(), &self.to_plain()?))
    }

    /// Decrypts an offer. Both forms in use are read: with and without the zero byte.
    ///
    /// # Errors
    /// [`EcontractError`].
    pub fn decrypt_offer(
        contract_priv: &EcdhePrivateKey,
        purse_pub: &EddsaPublicKey,
        econtract: &[u8],
    ) -> Result<Self, EcontractError> {
        let key = ecdh_eddsa_pub(contract_priv, purse_pub)?;
        Self::from_plain(&blob::open(key.as_bytes(), OFFER_LABEL, econtract)?, OFFER)
    }

    /// Decrypts a request. Both forms in use are read: with and without the zero byte, and with or without
    /// the purse key in front.
    ///
    /// # Errors
    /// [`EcontractError`].
    pub fn decrypt_request(
        contract_priv: &EcdhePrivateKey,
        purse_pub: &EddsaPublicKey,
        econtract: &[u8],
    ) -> Result<Self, EcontractError> {
        let key: TransferSecret = ecdh_eddsa_pub(contract_priv, purse_pub)?;
        let plain = match (
            blob::open(key.as_bytes(), REQUEST_LABEL, econtract),
            econtract.strip_prefix(purse_pub.as_bytes()),
        ) {
            (Ok(plain), _) => plain,
            (Err(_), Some(rest)) => blob::open(key.as_bytes(), REQUEST_LABEL, rest)?,
            (Err(error), None) => return Err(error.into()),
        };
        Self::from_plain(&plain, REQUEST)
    }

    /// Reads the decrypted content of the expected kind.
    pub(crate) fn from_plain(plain: &[u8], expected: u32) -> Result<Self, EcontractError> {
        let (kind, rest) = split_u32(plain)?;
        let (length, rest) = split_u32(rest)?;
        if kind != expected {
            return Err(EcontractError::Malformed);
        }
        let (merge_priv, compressed) = if kind == OFFER {
            let (key, rest) = rest.split_first_chunk::<32>().ok_or(EcontractError::Malformed)?;
            (Some(EddsaPrivateKey::from_bytes(*key)), rest)
        } else {
            (None, rest)
        };
        let text = inflate(compressed, length)?;
        let contract = canonical::parse(text.strip_suffix(&[0]).unwrap_or(&text))?;
        if !contract.is_object() {
            return Err(EcontractError::Malformed);
        }
        Ok(match merge_priv {
            Some(merge_priv) => Self::Offer { merge_priv, contract },
            None => Self::Request { contract },
        })
    }
}

/// The contract's public key as wallets send it: the Ed25519 key whose seed is the private contract key.
pub fn contract_pub(contract_priv: &EcdhePrivateKey) -> EddsaPublicKey {
    EddsaPrivateKey::from_bytes(*contract_priv.as_bytes()).public_key()
}

/// Encrypts KYC attributes for the database, under a nonce that was never used before with this key.
///
/// # Errors
/// [`EcontractError::Json`] for numbers that are not integers, [`EcontractError::TooLarge`].
pub fn seal_attributes(
    nonce: &[u8; NONCE_SIZE],
    key: &[u8; 64],
    attributes: &Value,
) -> Result<Vec<u8>, EcontractError> {
    let text = canonical::to_plain(attributes)?.into_bytes();
    let mut plain = text_length(&text)?.to_vec();
    compress(&text, &mut plain);
    Ok(blob::seal_with_nonce(nonce, key, ATTRIBUTES_LABEL, &plain))
}

/// Decrypts KYC attributes.
///
/// # Errors
/// [`EcontractError`].
pub fn open_attributes(key: &[u8; 64], encrypted: &[u8]) -> Result<Value, EcontractError> {
    let plain = blob::open(key, ATTRIBUTES_LABEL, encrypted)?;
    let (length, compressed) = split_u32(&plain)?;
    Ok(canonical::parse(&inflate(compressed, length)?)?)
}

fn text_length(text: &[u8]) -> Result<[u8; 4], EcontractError> {
    if text.len() > MAX_TEXT_SIZE {
        return Err(EcontractError::TooLarge);
    }
    Ok(u32::try_from(text.len()).map_err(|_| EcontractError::TooLarge)?.to_be_bytes())
}

fn split_u32(bytes: &[u8]) -> Result<(u32, &[u8]), EcontractError> {
    let (number, rest) = bytes.split_first_chunk().ok_or(EcontractError::Malformed)?;
    Ok((u32::from_be_bytes(*number), rest))
}

fn compress(text: &[u8], out: &mut Vec<u8>) {
    let mut encoder = ZlibEncoder::new(out, Compression::default());
    encoder.write_all(text).expect("writing into memory does not fail");
    encoder.finish().expect("writing into memory does not fail");
}

/// Decompresses text of exactly the announced length, and never more than [`MAX_TEXT_SIZE`].
fn inflate(compressed: &[u8], length: u32) -> Result<Vec<u8>, EcontractError> {
    let length = usize::try_from(length).map_err(|_| EcontractError::TooLarge)?;
    if length > MAX_TEXT_SIZE {
        return Err(EcontractError::TooLarge);
    }
    let mut text = Vec::new();
    // One byte more than announced, to detect extra data.
    let limit = u64::try_from(length).unwrap_or(u64::MAX).saturating_add(1);
    ZlibDecoder::new(compressed).take(limit).read_to_end(&mut text).map_err(|_| EcontractError::Malformed)?;
    if text.len() == length { Ok(text) } else { Err(EcontractError::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn keys() -> (EcdhePrivateKey, EddsaPublicKey) {
        (EcdhePrivateKey::generate(), EddsaPrivateKey::generate().public_key())
    }

    #[test]
    fn round_trip() {
        let (contract_priv, purse_pub) = keys();
        let contract = json!({"amount": "EUR:5", "summary": "Hello"});
        let offer =
            PeerContract::Offer { merge_priv: EddsaPrivateKey::generate(), contract: contract.clone() };
        let blob = offer.encrypt(&contract_priv, &purse_pub).unwrap();
        assert_eq!(PeerContract::decrypt_offer(&contract_priv, &purse_pub, &blob).unwrap(), offer);
        assert!(PeerContract::decrypt_request(&contract_priv, &purse_pub, &blob).is_err());
        let request = PeerContract::Request { contract };
        let blob = request.encrypt(&contract_priv, &purse_pub).unwrap();
        assert_eq!(PeerContract::decrypt_request(&contract_priv, &purse_pub, &blob).unwrap(), request);
        let prefixed = [purse_pub.as_bytes().as_slice(), &blob].concat();
        assert_eq!(PeerContract::decrypt_request(&contract_priv, &purse_pub, &prefixed).unwrap(), request);
    }

    #[test]
    fn decompression_bombs_are_refused() {
        let (contract_priv, purse_pub) = keys();
        let key = ecdh_eddsa_pub(&contract_priv, &purse_pub).unwrap();
        for announced in [100u32, 64 << 20] {
            let mut plain = REQUEST.to_be_bytes().to_vec();
            plain.extend_from_slice(&announced.to_be_bytes());
            compress(&vec![b' '; 64 << 20], &mut plain);
            let blob = blob::seal(key.as_bytes(), REQUEST_LABEL, &plain);
            assert!(PeerContract::decrypt_request(&contract_priv, &purse_pub, &blob).is_err());
        }
    }

    /// The examples generated by a wallet, from the document on payments between people.
    #[test]
    fn wallet_examples() {
        let purse_pub = "P4PD9BP9ZRMZ3WDNTF2F2JSKPVAJS2X8MJFXVM937D7JMWBT1C5G".parse().unwrap();
        let contract_priv: EcdhePrivateKey =
            "7GJX932T28T4X72K5QXCAKWV20H4N3XVYDMZCJ3CZY8NN3RTH110".parse().unwrap();
        assert_eq!(
            contract_pub(&contract_priv).to_string(),
            "8HH3W6Y2G7KG0ESPR3B6TGR9202FVQNJBVJ14DE9HEZBHXWW8EPG"
        );
        let terms =
            json!({"amount": "TESTKUDOS:5", "purse_expiration": {"t_s": 1_700_000_000}, "summary": "Hello"});
        let offer = batzen_crypto::base32::decode(concat!(
            "5WSHZWKB3J4EJVWRFV9T5CQJGSFXY9S212RQNX6T2RK7RJ4HKEJBKMMS90YND73W9HQ1NWSBVVBTVHVKKQAFZ302169RZ4X3",
            "5S7114J958Q22RJGJB1ZWZYP0T68XTMQ53R7SN4AYZF1S6Q88RSC7W7GNDESJFMQ859AZV52HKJ7C4KW4DV3SNP6N0W3YQMA",
            "KER2PXDGJFP7PQCX353RRC89TDCZANZXW5NXQ76N1R7BDS4M2QSQEJKQ1W42GTT31CJ0"
        ))
        .unwrap();
        let merge_priv = "SVAV5CCQN1TA2VK9CMJNWV0TYHVCHEF3CW4CCEEBP9VMG0HD6JXG".parse().unwrap();
        let expected = PeerContract::Offer { merge_priv, contract: terms.clone() };
        assert_eq!(PeerContract::decrypt_offer(&contract_priv, &purse_pub, &offer).unwrap(), expected);
        let request = batzen_crypto::base32::decode(concat!(
            "73Z5H67AC0VSEGWPW2RAH59FGX3CRR8T076P7BHDQBDCPSZVK6SWZR2J5BR88VHKNRABF0NW384E397MSX087WSJTYRW35T4",
            "0T6BRWGZZP6YJBZNAD89FVEMH9QFQCW2C1W7GBY4P11DWP2F1RMV48CPGNCZZQ4T9JXC733TJVPH2BK4M2YAT9BD6NAJZE87",
            "JPH4AACGCS08BV95"
        ))
        .unwrap();
        let expected = PeerContract::Request { contract: terms };
        assert_eq!(PeerContract::decrypt_request(&contract_priv, &purse_pub, &request).unwrap(), expected);
    }

    #[test]
    fn attributes_round_trip() {
        let attributes = json!({"full_name": "Ä", "birthdate": "2000-01-01"});
        let blob = seal_attributes(&[1; NONCE_SIZE], &[7; 64], &attributes).unwrap();
        assert_eq!(open_attributes(&[7; 64], &blob).unwrap(), attributes);
        assert!(open_attributes(&[8; 64], &blob).is_err());
    }
}
