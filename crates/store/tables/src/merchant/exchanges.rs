//! The signing keys of exchanges, as the backend remembers them.

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::Timestamp;
use batzen_store::table;

table! {
    /// Identifies an online signing key.
    pub key struct ExchangeSignkeyKey {
        /// The exchange's master key.
        pub master_pub: EddsaPublicKey,
        /// The signing key.
        pub exchange_pub: EddsaPublicKey,
    }

    /// An online signing key that an exchange has listed.
    pub struct ExchangeSignkeyRow {
        /// When the backend first saw it.
        pub first_seen: Timestamp,
        /// The end of the period in which it signs.
        pub stamp_expire: Timestamp,
        /// The time until which its signatures are legally valid. The row is forgotten then.
        pub stamp_end: Timestamp,
        /// When the exchange's list first left it out before its time. It is not accepted again, unless the operator forgets it.
        pub withdrawn: Option<Timestamp>,
    }

    /// The signing keys of exchanges.
    pub ExchangeSignkeys(422, "exchange_signkeys"): ExchangeSignkeyKey => ExchangeSignkeyRow, updated();
    /// By master key.
    BY_EXCHANGE = 1, "by_exchange", Prefix { key_bytes: 32 };
    |key, _, out| {
        out.add(Self::BY_EXCHANGE, &key.master_pub);
    }
}
