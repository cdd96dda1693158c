//! The policy of a signer, the same for any client. Pure functions.

use batzen_protocol::signatures::{
    ExchangeAccountSetupSuccess, ExchangeAffirmDenomExpired, ExchangeAffirmDenomUnknown,
    ExchangeConfirmDeposit, ExchangeConfirmIssued, ExchangeConfirmMelt, ExchangeConfirmPurseCreation,
    ExchangeConfirmPurseMerged, ExchangeConfirmPurseRefund, ExchangeConfirmRecoup,
    ExchangeConfirmRecoupRefresh, ExchangeConfirmRefund, ExchangeConfirmWire, ExchangeConfirmWireDeposit,
    ExchangeKeySet, ExchangeLiabilities, ExchangePurseStatus, ExchangeReserveAttestDetails,
    ExchangeReserveClosed, HEADER_SIZE, SignedMessage,
};
use batzen_protocol::{Duration, Timestamp};

use crate::frame::MESSAGE_BYTES_MAX;

/// The tolerated difference between the clocks of a node and its signer.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(300);

macro_rules! purposes {
    ($($message:ty),* $(,)?) => {
        /// The messages that online keys sign: the purpose and size of every confirmation of the exchange.
        pub(crate) const PURPOSES: &[(u32, usize)] =
            &[$((<$message as SignedMessage>::PURPOSE, <$message as SignedMessage>::SIZE)),*];
        $(const _: () = assert!(<$message as SignedMessage>::SIZE <= MESSAGE_BYTES_MAX);)*
    };
}

purposes![
    ExchangeConfirmDeposit,
    ExchangeConfirmMelt,
    ExchangeKeySet,
    ExchangeConfirmWire,
    ExchangeConfirmWireDeposit,
    ExchangeConfirmRefund,
    ExchangeConfirmRecoup,
    ExchangeConfirmRecoupRefresh,
    ExchangeReserveClosed,
    ExchangeAffirmDenomUnknown,
    ExchangeAffirmDenomExpired,
    ExchangeAccountSetupSuccess,
    ExchangeConfirmPurseCreation,
    ExchangeConfirmPurseMerged,
    ExchangePurseStatus,
    ExchangeReserveAttestDetails,
    ExchangeConfirmPurseRefund,
    ExchangeLiabilities,
    ExchangeConfirmIssued,
];

/// Returns whether an online key signs this message. The message states its purpose and size; both must be
/// known, and the size must be correct.
pub(crate) fn may_sign(message: &[u8]) -> bool {
    let Some((header, _)) = message.split_first_chunk::<HEADER_SIZE>() else { return false };
    let [s0, s1, s2, s3, p0, p1, p2, p3] = *header;
    let (size, purpose) = (u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([p0, p1, p2, p3]));
    size as usize == message.len() && PURPOSES.contains(&(purpose, message.len()))
}

/// Returns whether a key with a period of use from `anchor` to `until` signs now.
pub(crate) fn in_period(anchor: Timestamp, until: Timestamp, now: Timestamp) -> bool {
    anchor <= now.saturating_add(CLOCK_SKEW) && now <= until.saturating_add(CLOCK_SKEW)
}

#[cfg(test)]
mod tests {
    use batzen_crypto::HashCode;
    use batzen_protocol::signatures::MasterSigningKeyRevoked;

    use super::*;

    #[test]
    fn only_confirmations_of_the_exchange_are_signed() {
        let good = ExchangeAffirmDenomUnknown { timestamp: Timestamp::ZERO, h_denom_pub: HashCode::ZERO };
        let good = good.message();
        assert!(may_sign(&good));
        assert!(!may_sign(&good[..good.len() - 1]), "a wrong size");
        assert!(!may_sign(&[&good[..], &[0]].concat()), "bytes after the message");
        let mut other = good;
        other[7] ^= 0x20;
        assert!(!may_sign(&other), "another purpose of the same size");
        let revoked = MasterSigningKeyRevoked { signkey_pub: batzen_crypto::EddsaPublicKey::ZERO };
        assert!(!may_sign(&revoked.message()), "a message for the master key");
        assert!(!may_sign(&[]) && !may_sign(&[0; 7]) && !may_sign(&[0; 8]));
    }

    #[test]
    fn keys_sign_in_their_period_with_some_slack_for_clocks() {
        let at = Timestamp::from_secs;
        let (anchor, until) = (at(10_000), at(20_000));
        for (now, signs) in [(9_699, false), (9_700, true), (15_000, true), (20_300, true), (20_301, false)] {
            assert_eq!(in_period(anchor, until, at(now)), signs, "{now}");
        }
    }
}
