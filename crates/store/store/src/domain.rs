//! Columns of the protocol's types, so that rows contain coins and amounts instead of byte arrays.

use batzen_crypto::{
    AgePublicKey, BlindedDenomSignature, Cipher, CsBlindSignature, CsNonce, CsPublicKey, CsRPub, CsScalar,
    CsSignature, DenomSignature, EcdhePublicKey, EddsaPublicKey, EddsaSignature, HashCode, ShortHash,
    WireSalt, Wtid,
};
use batzen_protocol::payto::AccountHash;
use batzen_protocol::{Duration, Money, Timestamp};

use crate::{Column, ColumnKind, ColumnType, DecodeError, put_bytes, take_array, take_bytes};

macro_rules! bytes_columns {
    ($($t:ty),* $(,)?) => {$(
        impl Column for $t {
            const TYPE: ColumnType = ColumnType::new(ColumnKind::Fixed(<$t>::SIZE));
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(self.as_bytes());
            }
            fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
                Ok(Self::from_bytes(take_array(input, stringify!($t))?))
            }
        }
    )*};
}

bytes_columns!(
    AccountHash,
    AgePublicKey,
    CsNonce,
    CsPublicKey,
    CsRPub,
    CsScalar,
    EcdhePublicKey,
    EddsaPublicKey,
    EddsaSignature,
    HashCode,
    ShortHash,
    WireSalt,
    Wtid,
);

impl Column for Money {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Amount);
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_compact());
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Self::from_compact(take_array(input, "amount")?)
            .map_err(|e| DecodeError::invalid("amount", e.to_string()))
    }
}

impl Column for Timestamp {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Timestamp);
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_nbo());
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(Self::from_nbo(take_array(input, "timestamp")?))
    }
}

/// Microseconds; `u64::MAX` means for ever.
impl Column for Duration {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::U64);
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_micros().encode(out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(Self::from_micros(u64::decode(input)?))
    }
}

const RSA: u8 = 1;
const CS: u8 = 2;

/// One byte: 1 RSA, 2 Clause Blind Schnorr.
impl Column for Cipher {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::U8);
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Rsa => RSA,
            Self::Cs => CS,
        });
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::decode(input)? {
            RSA => Ok(Self::Rsa),
            CS => Ok(Self::Cs),
            other => Err(DecodeError::invalid("cipher", other.to_string())),
        }
    }
}

/// Bytes: cipher, then the RSA signature, or b (one byte) and s.
impl Column for BlindedDenomSignature {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Bytes);
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Rsa(signature) => put_signature(RSA, &[signature], out),
            Self::Cs(CsBlindSignature { b, s }) => put_signature(CS, &[&[*b], s.as_bytes()], out),
        }
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let bytes = take_bytes(input, "blind signature")?;
        match bytes.split_first() {
            Some((&RSA, signature)) => Ok(Self::Rsa(signature.to_vec())),
            Some((&CS, mut rest)) => {
                let b = u8::from(bool::decode(&mut rest)?);
                let s = CsScalar::decode(&mut rest)?;
                end(rest)?;
                Ok(Self::Cs(CsBlindSignature { b, s }))
            }
            _ => Err(DecodeError::invalid("blind signature", "unknown cipher")),
        }
    }
}

/// Bytes: cipher, then the RSA signature, or R and s.
impl Column for DenomSignature {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Bytes);
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Rsa(signature) => put_signature(RSA, &[signature], out),
            Self::Cs(CsSignature { r, s }) => put_signature(CS, &[r.as_bytes(), s.as_bytes()], out),
        }
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let bytes = take_bytes(input, "denomination signature")?;
        match bytes.split_first() {
            Some((&RSA, signature)) => Ok(Self::Rsa(signature.to_vec())),
            Some((&CS, mut rest)) => {
                let r = CsRPub::decode(&mut rest)?;
                let s = CsScalar::decode(&mut rest)?;
                end(rest)?;
                Ok(Self::Cs(CsSignature { r, s }))
            }
            _ => Err(DecodeError::invalid("denomination signature", "unknown cipher")),
        }
    }
}

fn put_signature(cipher: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    let mut bytes = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    bytes.push(cipher);
    for part in parts {
        bytes.extend_from_slice(part);
    }
    put_bytes(&bytes, out);
}

fn end(rest: &[u8]) -> Result<(), DecodeError> {
    if rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { left: rest.len() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<C: Column + PartialEq + std::fmt::Debug>(value: &C) {
        let bytes = Column::to_bytes(value);
        if let Some(size) = C::TYPE.fixed_bytes() {
            assert_eq!(bytes.len(), size);
        }
        let mut rest = bytes.as_slice();
        assert_eq!(&C::decode(&mut rest).expect("it was encoded"), value);
        assert!(rest.is_empty());
    }

    #[test]
    fn protocol_types_round_trip_and_sort() {
        for money in [Money::ZERO, Money::UNIT, Money::MAX] {
            round_trip(&money);
        }
        for time in [Timestamp::ZERO, Timestamp::from_secs(1_700_000_000), Timestamp::NEVER] {
            round_trip(&time);
        }
        round_trip(&Duration::FOREVER);
        round_trip(&HashCode::from_bytes([7; 64]));
        round_trip(&Cipher::Cs);
        round_trip(&BlindedDenomSignature::Rsa(vec![0, 1, 0, 255]));
        let s = CsScalar::from_bytes([3; 32]);
        round_trip(&BlindedDenomSignature::Cs(CsBlindSignature { b: 1, s }));
        round_trip(&DenomSignature::Rsa(Vec::new()));
        round_trip(&DenomSignature::Cs(CsSignature { r: CsRPub::from_bytes([4; 32]), s }));
        round_trip(&Some(EddsaPublicKey::from_bytes([9; 32])));
        assert!(Column::to_bytes(&Money::UNIT) < Column::to_bytes(&Money::MAX));
        assert!(Column::to_bytes(&Timestamp::from_secs(1)) < Column::to_bytes(&Timestamp::NEVER));
        assert!(Money::decode(&mut [0xff; 12].as_slice()).is_err());
    }
}
