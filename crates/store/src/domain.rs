//! Columns of the protocol's own types, so that rows speak of coins and amounts, not of byte arrays.

use batzen_crypto::{
    AgePublicKey, CsNonce, CsPublicKey, CsRPub, CsScalar, EcdhePublicKey, EddsaPublicKey, EddsaSignature,
    HashCode, ShortHash, WireSalt, Wtid,
};
use batzen_protocol::{Duration, Money, Timestamp};

use crate::{Column, ColumnKind, ColumnType, DecodeError, take_array};

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

/// Microseconds; `u64::MAX` is forever.
impl Column for Duration {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::U64);
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_micros().encode(out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(Self::from_micros(u64::decode(input)?))
    }
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
        assert_eq!(&C::decode(&mut rest).unwrap(), value);
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
        round_trip(&Some(EddsaPublicKey::from_bytes([9; 32])));
        assert!(Column::to_bytes(&Money::UNIT) < Column::to_bytes(&Money::MAX));
        assert!(Column::to_bytes(&Timestamp::from_secs(1)) < Column::to_bytes(&Timestamp::NEVER));
        assert!(Money::decode(&mut [0xff; 12].as_slice()).is_err());
    }
}
