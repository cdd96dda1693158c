//! The messages that the master key has signed about rows.

use batzen_crypto::cs::CsVerifyingKey;
use batzen_crypto::denom::{DenomKey, DenomPublicKey};
use batzen_crypto::rsa::RsaPublicKey;
use batzen_crypto::{CsPublicKey, EddsaPublicKey, Wtid};
use batzen_protocol::payto::h_payto;
use batzen_protocol::signatures::{
    MasterDenominationKeyValidity, MasterDrainProfit, MasterGlobalFees, MasterSigningKeyValidity,
    MasterWireFees,
};
use batzen_protocol::{Currency, Timestamp, hash_text};

use super::{Cipher, DenomRow, DrainRow, GlobalFeeRow, SigningKeyRow, WireFeeKey, WireFeeRow};

impl DenomRow {
    /// The message about it.
    #[must_use]
    pub fn validity(&self, master_pub: EddsaPublicKey, currency: Currency) -> MasterDenominationKeyValidity {
        MasterDenominationKeyValidity {
            master_pub,
            start: self.start,
            expire_withdraw: self.expire_withdraw,
            expire_deposit: self.expire_deposit,
            expire_legal: self.expire_legal,
            value: self.value.of(currency),
            fee_withdraw: self.fee_withdraw.of(currency),
            fee_deposit: self.fee_deposit.of(currency),
            fee_refresh: self.fee_refresh.of(currency),
            fee_refund: self.fee_refund.of(currency),
            h_denom_pub: self.h_denom_pub,
        }
    }

    /// Its public key. `None` if its bytes are no key of its cipher.
    #[must_use]
    pub fn public(&self) -> Option<DenomPublicKey> {
        let key = match self.cipher {
            Cipher::Rsa => DenomKey::Rsa(RsaPublicKey::decode_own(&self.public_key).ok()?),
            Cipher::Cs => {
                let bytes = CsPublicKey::try_from(self.public_key.as_slice()).ok()?;
                DenomKey::Cs(CsVerifyingKey::new(&bytes).ok()?)
            }
        };
        Some(DenomPublicKey { age_mask: self.age_mask, key })
    }
}

impl SigningKeyRow {
    /// The message about this key.
    #[must_use]
    pub fn validity(&self, signkey_pub: EddsaPublicKey) -> MasterSigningKeyValidity {
        MasterSigningKeyValidity { start: self.start, expire: self.expire, end: self.end, signkey_pub }
    }
}

impl WireFeeRow {
    /// The message about the fees of this method and period.
    #[must_use]
    pub fn message(&self, key: &WireFeeKey, currency: Currency) -> MasterWireFees {
        MasterWireFees {
            h_wire_method: hash_text(&key.method),
            start_date: key.start,
            end_date: self.end,
            wire_fee: self.wire_fee.of(currency),
            closing_fee: self.closing_fee.of(currency),
        }
    }
}

impl GlobalFeeRow {
    /// The message about the fees of the period that begins at `start_date`.
    #[must_use]
    pub fn message(&self, start_date: Timestamp, currency: Currency) -> MasterGlobalFees {
        MasterGlobalFees {
            start_date,
            end_date: self.end,
            purse_timeout: self.purse_timeout,
            history_expiration: self.history_expiration,
            history_fee: self.history_fee.of(currency),
            account_fee: self.account_fee.of(currency),
            purse_fee: self.purse_fee.of(currency),
            purse_account_limit: self.purse_account_limit,
        }
    }
}

impl DrainRow {
    /// The message about the order with this identifier.
    #[must_use]
    pub fn message(&self, wtid: Wtid, currency: Currency) -> MasterDrainProfit {
        MasterDrainProfit {
            wtid,
            date: self.date,
            amount: self.amount.of(currency),
            h_section: hash_text(&self.account_section),
            h_payto: h_payto(&self.payto_uri),
        }
    }
}
