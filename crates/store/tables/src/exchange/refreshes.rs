//! Refreshes of coins (melt and reveal), recoups, and the locks on Clause Blind Schnorr nonces.

use batzen_crypto::{CsNonce, EcdhePublicKey, EddsaSignature, HashCode};
use batzen_protocol::{Money, Timestamp};
use batzen_store::table;

use super::{CoinPub, FreshCoins, NonceKind, ReservePub};

table! {
    /// Identifies a melt, and the reveal that follows it.
    pub key struct MeltKey {
        /// The old coin.
        pub coin_pub: CoinPub,
        /// The refresh commitment.
        pub rc: HashCode,
    }

    /// A melt.
    pub struct MeltRow {
        /// The amount taken from the old coin, melt fee included.
        pub amount: Money,
        /// The old coin's signature (`WALLET_COIN_MELT`).
        pub coin_sig: EddsaSignature,
        /// The index that stays secret: 0, 1 or 2.
        pub noreveal_index: u8,
        /// The time.
        pub time: Timestamp,
    }

    /// Melts.
    pub Melts(20, "melts"): MeltKey => MeltRow, shard(32), shared_in_commit(&["coin_pub", "rc"]);
    /// By coin_pub.
    BY_COIN = 1, "by_coin", Prefix { key_bytes: 32 };
}

table! {
    /// Identifies a refresh commitment.
    pub key struct RcKey {
        /// The commitment.
        pub rc: HashCode,
    }

    /// The coin that a commitment belongs to.
    pub struct MeltByRcRow {
        /// The first coin that was melted under it.
        pub coin_pub: CoinPub,
    }

    /// Finds a melt by its commitment, which is all that a reveal has.
    pub MeltByRc(21, "melt_by_rc"): RcKey => MeltByRcRow,
        shard(64), claims(), shared_in_commit(&["rc", "coin_pub"]);
}

table! {
    /// A reveal: all fresh coins of one melt. Written once.
    pub struct RevealRow {
        /// The transfer key of the index that was not revealed.
        pub transfer_pub: EcdhePublicKey,
        /// The revealed transfer private keys in the order of their indexes, 32 bytes each. No longer secret.
        pub transfer_privs: [u8; 64],
        /// The refresh master secret, if a fresh coin is Clause Blind Schnorr: its nonces derive from it.
        pub rms: Option<[u8; 32]>,
        /// The fresh coins.
        pub fresh: FreshCoins,
        /// The time.
        pub time: Timestamp,
    }

    /// Reveals.
    pub Reveals(22, "reveals"): MeltKey => RevealRow, shard(32);
    /// By coin_pub: link.
    BY_COIN = 1, "by_coin", Prefix { key_bytes: 32 };
    /// By h_coin_ev of each fresh coin: recoup-refresh. The earliest serial counts.
    BY_COIN_EV = 2, "by_coin_ev", Hash.many();
    |_, row, out| {
        for (n, coin) in row.fresh.0.iter().enumerate() {
            // The same planchet may occur twice in one reveal; one entry is enough to find it.
            if row.fresh.0[..n].iter().all(|earlier| earlier.h_coin_ev != coin.h_coin_ev) {
                out.add(Self::BY_COIN_EV, &coin.h_coin_ev);
            }
        }
    }
}

table! {
    /// Identifies a recoup: a refund may refill a recouped coin, which is then recouped again.
    pub key struct RecoupKey {
        /// The recouped coin.
        pub coin_pub: CoinPub,
        /// Number of earlier recoups of the same kind.
        pub n: u32,
    }

    /// A recoup of a withdrawn coin: its value returned to its reserve.
    pub struct RecoupRow {
        /// The reserve.
        pub reserve_pub: ReservePub,
        /// The planchet that was withdrawn.
        pub h_coin_ev: HashCode,
        /// The amount.
        pub amount: Money,
        /// The blinding secret, no longer secret: it links coin and withdrawal.
        pub coin_blind: [u8; 32],
        /// The coin's signature (`WALLET_COIN_RECOUP`).
        pub coin_sig: EddsaSignature,
        /// The time.
        pub time: Timestamp,
    }

    /// Recoups of withdrawn coins.
    pub Recoups(23, "recoups"): RecoupKey => RecoupRow, shard(32);
    /// By coin_pub.
    BY_COIN = 1, "by_coin", Prefix { key_bytes: 32 };
}

table! {
    /// A recoup of a coin obtained by refresh: its value returned to the old coin.
    pub struct RecoupRefreshRow {
        /// The old coin.
        pub old_coin_pub: CoinPub,
        /// The melt of its refresh.
        pub rc: HashCode,
        /// The planchet that was revealed.
        pub h_coin_ev: HashCode,
        /// The amount.
        pub amount: Money,
        /// The blinding secret, no longer secret.
        pub coin_blind: [u8; 32],
        /// The fresh coin's signature (`WALLET_COIN_RECOUP_REFRESH`).
        pub coin_sig: EddsaSignature,
        /// The time.
        pub time: Timestamp,
    }

    /// Recoups of coins obtained by refresh, by the fresh coin.
    pub RecoupRefreshes(24, "recoup_refreshes"): RecoupKey => RecoupRefreshRow, shard(32);
    /// By coin_pub.
    BY_COIN = 1, "by_coin", Prefix { key_bytes: 32 };
}

table! {
    /// Identifies a credit by recoup-refresh.
    pub key struct RecoupRefreshCreditKey {
        /// The old coin, which got the value back.
        pub old_coin_pub: CoinPub,
        /// The fresh coin that was recouped.
        pub coin_pub: CoinPub,
        /// The recoup's number on the fresh coin.
        pub n: u32,
    }

    /// A credit by recoup-refresh.
    pub struct RecoupRefreshCreditRow {
        /// The amount returned.
        pub amount: Money,
        /// The time.
        pub time: Timestamp,
    }

    /// Credits by recoup-refresh, as the old coin's history needs them.
    pub RecoupRefreshCredits(25, "recoup_refresh_credits"): RecoupRefreshCreditKey => RecoupRefreshCreditRow,
        shard(32);
    /// By old_coin_pub.
    BY_OLD_COIN = 1, "by_old_coin", Prefix { key_bytes: 32 };
}

table! {
    /// Identifies a secret from which Clause Blind Schnorr nonces derive.
    pub key struct CsNonceKey {
        /// The kind of secret.
        pub kind: NonceKind,
        /// The nonce, or the refresh master secret (no longer secret).
        pub nonce: CsNonce,
    }

    /// The use of a nonce. Nothing else is ever signed under it.
    pub struct CsNonceRow {
        /// The withdrawal's h_coin_ev or the melt's commitment.
        pub operation: HashCode,
        /// The highest denomination serial at that time. Once all denominations up to it have expired, the
        /// lock may be dropped.
        pub denom_max: u32,
    }

    /// Locks on nonces.
    pub CsNonces(26, "cs_nonces"): CsNonceKey => CsNonceRow, shard(33), claims();
}
